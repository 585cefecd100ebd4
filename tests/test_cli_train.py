"""`dew train` runs what a YAML names, and `dew sweep` a space of it, with the usual statuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import yaml
from jax.experimental.compilation_cache import compilation_cache
from run_configs import lm_config

from dew.cli import main as program
from dew.cli import sweep as sweep_command
from dew.cli import train as train_command
from dew.cli.main import main
from dew.cli.options import parse
from dew.config import RunConfig
from dew.tracking import LocalTracker


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One folder of compiled steps for all tests, here and in child processes."""
    folder = tmp_path_factory.mktemp("compiled")
    wanted = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield folder
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True)
def commands(monkeypatch, cache):
    """The two commands as entry points, whatever was installed."""

    class Point:
        def __init__(self, module):
            self.name, self.load = module.COMMAND.name, lambda: module.COMMAND

    points = [Point(train_command), Point(sweep_command)]
    monkeypatch.setattr(program, "entry_points", lambda group: points)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(cache))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def written(folder: Path, **trainer) -> tuple[str, RunConfig]:
    """Write a run's YAML with its token files, and return its path."""
    config = lm_config(folder, **trainer)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()))
    return str(path), config


def test_a_run_trains_reports_and_goes_on(tmp_path, capsys):
    options = {"eval_every": 4, "checkpoint_every": 4, "metrics": ("perplexity",)}
    path, config = written(tmp_path, **options)
    assert main(["train", path]) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "runs/tiny"
    assert "step 4/8" in out
    assert out.splitlines()[-1].startswith(f"{folder}: 8 steps, 8 updates; val/perplexity ")
    record = json.loads((folder / "run.json").read_text())
    assert RunConfig.from_dict(record) == config
    scalars = LocalTracker(folder / "tracking").scalars()
    first = [line for line in scalars if "val/perplexity" in line]
    # Uniform guesses have perplexity 4; the cycle of four tokens is learned from there.
    assert 1 < first[-1]["val/perplexity"] < 4
    # The same command with more steps goes on from the last checkpoint.
    assert main(["train", path, "--set", "trainer.steps=12", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "12 steps, 12 updates" in out
    assert "step 9" not in out


def test_a_dry_run_prints_the_resolved_configuration_and_touches_nothing(tmp_path, capsys):
    path, config = written(tmp_path)
    sets = ["--set", "optim.learning_rate=3e-4", "model.kwargs.rope={theta: 5}", "--set"]
    assert main(["train", path, *sets, "trainer.eval_every=null", "--dry-run"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    want = {"optim.learning_rate": 3e-4, "model.kwargs.rope": {"theta": 5}}
    assert RunConfig.from_dict(shown) == config.override(want)
    assert not (tmp_path / "runs").exists()


def test_the_record_of_a_run_is_a_configuration(tmp_path, capsys):
    path, _ = written(tmp_path)
    record = json.loads(json.dumps(yaml.safe_load(Path(path).read_text())))
    (tmp_path / "run.json").write_text(json.dumps({**record, "versions": {"jax": "1"}}))
    for words in ([str(tmp_path / "run.json")], ["--config", path]):
        assert main(["train", *words, "--dry-run"]) == 0
        assert yaml.safe_load(capsys.readouterr().out) == record


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["optim.lerning_rate=1"], "optim.learning_rate"),
        (["optim.learning_rate=fast"], "text 'fast'"),
        (["optim.learning_rate"], "a dotted path, = and a value"),
        (["=1"], "a dotted path"),
        (["trainer.steps=1", "trainer.steps=2"], "stands twice"),
        (["trainer.name=../../evil"], "letters, digits"),
        (["trainer.name=null"], "trainer.name is missing"),
        (["objective=null"], "objective is missing"),
        (["objective.kwargs.seq_len=99"], "seq_len 99 does not fit"),
        (["data=null"], "data is missing"),
        (["data.train=null"], "train is missing"),
        (["data.train=nowhere.npy"], "nowhere.npy"),
        (["model.kwargs.vocab_size=3"], "vocab_size is 3"),
        (["trainer.steps=!!python/object/apply:os.system [ls]"], "tag"),
        (["optim.learning_rate=[" + "[" * 50], "nested"),
        (["trainer.eval_every=2", "data.val=null"], "val"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_status_2(tmp_path, capsys, sets, words):
    path, _ = written(tmp_path)
    assert main(["train", path, *(word for each in sets for word in ("--set", each))]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert "Traceback" not in message
    assert not list(tmp_path.glob("runs/tiny/checkpoint-*"))


def test_flags_are_refused_by_name_and_a_missing_file_too(tmp_path, capsys):
    assert main(["train", str(tmp_path / "no.yaml")]) == 2
    assert "no.yaml" in capsys.readouterr().err
    assert main(["train"]) == 2
    assert "config is missing" in capsys.readouterr().err
    path, _ = written(tmp_path)
    assert main(["train", path, "--sett", "a=1"]) == 2
    assert "--set" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_diverges_leaves_with_status_1(tmp_path, capsys):
    path, _ = written(tmp_path)
    sets = ["optim.optimizer=sgd", "optim.learning_rate=1e30", "trainer.steps=8"]
    assert main(["train", path, "--quiet", "--set", *sets]) == 1
    assert "NonFinite" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_trains_its_grid_and_names_the_best(tmp_path, capsys):
    path, _ = written(tmp_path, steps=4)
    space = ["--space", "trainer.seed=[0, 1]", "--search", "grid", "--quiet"]
    assert main(["sweep", path, *space]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-3].startswith("trial 0  val/perplexity ")
    rows = json.loads((tmp_path / "runs/tiny/ledger.json").read_text())["trials"]
    assert [row["overrides"] for row in rows] == [{"trainer.seed": 0}, {"trainer.seed": 1}]
    low, high = sorted(rows, key=lambda row: row["value"])
    assert out[-1].startswith(f"best: trial {low['number']}, {low['value']:.6g}")
    assert out[-1].endswith(f"--set trainer.seed={low['number']}")
    assert (tmp_path / "runs/tiny/trial-1/run.json").exists()
    # Maximised, the other one is best; nothing is trained again.
    assert main(["sweep", path, *space, "--direction", "maximize"]) == 0
    assert f"best: trial {high['number']}, " in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_a_sweep_whose_trials_fail_leaves_with_status_1_and_shows_the_others(tmp_path, capsys):
    path, _ = written(tmp_path, steps=2)
    space = ["--space", "model.kwargs.num_heads=[2,3]", "--search", "grid", "--quiet"]
    assert main(["sweep", path, *space]) == 1
    told = capsys.readouterr()
    assert "trial 0  val/perplexity" in told.out
    assert "emb_features 16 is not divisible by num_heads 3" in told.err


@pytest.mark.parametrize(
    ("content", "flags", "words"),
    [
        ({"grid": {f"p{n}": list(range(10)) for n in range(9)}}, [], "1000000000 points"),
        ({"grid": {"optim.learning_rate": [1]}, "random": {}}, [], "one search"),
        ({"grid": {"optim.learning_rate": [1]}}, ["--search", "random"], "--search random"),
        ({"optim.learning_rate": [1]}, [], "needs --trials"),
        ({"optim.learning_rate": 1}, ["--trials", "2"], "list of values"),
        ({"optim.lerning_rate": [1]}, ["--trials", "2"], "optim.learning_rate"),
        ([1], [], "mapping"),
    ],
)
def test_bp090_a_space_that_makes_no_sense_is_refused(tmp_path, capsys, content, flags, words):
    path, _ = written(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    assert main(["sweep", path, "--space", str(tmp_path / "sweep.json"), *flags]) == 2
    assert words in capsys.readouterr().err


def test_the_flags_of_a_space_take_commas_inside_a_value():
    words = ["run.yaml", "--space", "a.b=[1,2]", "c=[x, y]", "--space", "d=[{e: 1}]"]
    settings = parse(sweep_command.COMMAND, words)
    _, space = sweep_command.space_of(settings["space"], None)
    assert space == {"a.b": [1, 2], "c": ["x", "y"], "d": [{"e": 1}]}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_last_line_says_how_to_go_on(tmp_path, number, status):
    path, _ = written(tmp_path, steps=10**6, checkpoint_every=10**6)
    code = "import sys; from dew.cli.{0} import COMMAND, run; from dew.cli.options import parse\n"
    code = code.format("train") + "sys.exit(run(parse(COMMAND, sys.argv[1:])))"
    root = str(Path(__file__).resolve().parents[1])
    child = subprocess.Popen(
        [sys.executable, "-c", code, path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": root},
    )  # fmt: skip
    assert child.stdout is not None
    while not (line := child.stdout.readline()).startswith("step 4/"):
        assert line or child.poll() is None, child.communicate()
    time.sleep(0.2)
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == status, errors
    last = errors.splitlines()[-1]
    assert "checkpoint-" in last
    assert last.endswith(f"go on with: dew train {path}")
    folders = (tmp_path / "runs/tiny").glob("checkpoint-*")
    newest = max(int(found.name.split("-")[1]) for found in folders)
    assert f"checkpoint-{newest} is saved" in last

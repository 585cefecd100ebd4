"""`RunConfig.train` keeps a folder: its record, checkpoints and journal, and goes on in it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from regression import Line, LinearRegression
from run_configs import run_config

from dew.config import RunConfig
from dew.config.durable import write_json
from dew.config.run_folder import RUN
from dew.errors import InputRefused
from dew.tracking import LocalTracker
from dew.training.progress import Silent

# As `begin` writes a run's record, in a process of its own.
WRITER = """
import sys
from pathlib import Path
from dew.config.durable import write_json
write_json(Path(sys.argv[1]), {"optim": {"learning_rate": float(sys.argv[2])}, "rest": [1] * 5000})
"""


def trained(config, **options):
    return config.train(LinearRegression(), Line().dataset(), progress=Silent(), **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run of six steps: its configuration, its folder and its last state."""
    folder = tmp_path_factory.mktemp("runs")
    config = run_config(folder)
    state = trained(config)
    return config, folder / "line", state


def test_the_run_is_as_the_formula_of_sgd_has_it(run):
    # By hand in float64: w - rate * gradient of the weighted mean of squared errors.
    config, _, state = run
    import jax

    first = LinearRegression().init(jax.random.key(0))["params"]
    w, b = np.asarray(first["w"], np.float64), float(first["b"])
    for step in range(6):
        batch = Line().take(4 * step + np.arange(4))
        mass = batch["weight"].sum()
        error = batch["x"] @ w + b - batch["y"]
        slope = 2 * batch["weight"] * error / mass
        w, b = w - config.optim.learning_rate * slope @ batch["x"], b - 0.05 * slope.sum()
    np.testing.assert_allclose(state.params["params"]["w"], w, rtol=1e-5)
    np.testing.assert_allclose(state.params["params"]["b"], b, rtol=1e-5)


def test_run_json_is_the_configuration_and_the_versions(run):
    config, folder, _ = run
    found = json.loads((folder / RUN).read_text())
    assert found["optim"]["learning_rate"] == 0.05
    assert found["versions"]["jax"] == __import__("jax").__version__
    # A record is a configuration that runs again.
    assert RunConfig.from_dict(found) == config


def test_the_folder_holds_checkpoints_and_the_journal(run):
    _, folder, _ = run
    assert (folder / "checkpoint-6").is_dir()
    scalars = LocalTracker(folder / "tracking").scalars()
    assert [line["step"] for line in scalars] == [6]
    assert scalars[0]["train/learning_rate"] == pytest.approx(0.05)


def test_a_run_goes_on_and_ends_as_if_it_had_not_stopped(run, tmp_path):
    _, _, state = run
    short = run_config(tmp_path, steps=3)
    assert int(trained(short).step) == 3
    more = trained(short.override({"trainer.steps": 6}))
    assert np.array_equal(more.params["params"]["w"], state.params["params"]["w"])
    assert json.loads((tmp_path / "line" / RUN).read_text())["trainer"]["steps"] == 6


def test_a_folder_of_another_configuration_is_refused(run):
    config, folder, _ = run
    before = (folder / RUN).read_bytes()
    with pytest.raises(InputRefused, match=r"optim.learning_rate: was 0\.05, now 0\.1"):
        trained(config.override({"optim.learning_rate": 0.1}))
    assert (folder / RUN).read_bytes() == before
    assert not (folder / ".lock").exists()


def test_a_folder_without_a_checkpoint_takes_any_configuration(tmp_path):
    write_json(tmp_path / "line" / RUN, {"optim": {"learning_rate": 7}})
    assert int(trained(run_config(tmp_path, steps=1)).step) == 1
    assert json.loads((tmp_path / "line" / RUN).read_text())["optim"]["learning_rate"] == 0.05


def test_the_argument_names_the_run_and_the_record_says_so(tmp_path):
    trained(run_config(tmp_path, steps=1), name="other/trial-3")
    found = json.loads((tmp_path / "other" / "trial-3" / RUN).read_text())
    assert found["trainer"]["name"] == "other/trial-3"


def test_a_run_without_a_name_or_of_another_batch_is_refused(tmp_path):
    with pytest.raises(InputRefused, match=r"trainer\.name is missing"):
        trained(run_config(tmp_path, name=None))
    with pytest.raises(InputRefused, match="batch_size is 8 and the dataset gives 4"):
        trained(run_config(tmp_path, batch_size=8))
    assert not any(tmp_path.iterdir())


def test_another_tracker_is_told_too_and_stays_open(tmp_path):
    with LocalTracker(tmp_path / "mine") as mine:
        trained(run_config(tmp_path, steps=1), tracker=mine)
        mine.log({"still": 1.0}, 2)
    assert [line["step"] for line in mine.scalars()] == [1, 2]
    assert "RunRecord" in (tmp_path / "mine/records.jsonl").read_text()


def test_metrics_are_built_by_their_names(tmp_path):
    config = run_config(tmp_path, steps=2, eval_every=2, metrics=("perplexity",))
    trained(config)
    scalars = LocalTracker(tmp_path / "line/tracking").scalars()
    assert any("val/perplexity" in line for line in scalars)


def write_run(path: Path, rate: float, **environment: str) -> subprocess.CompletedProcess:
    root = str(Path(__file__).resolve().parents[1])
    return subprocess.run(
        [sys.executable, "-c", WRITER, str(path), str(rate)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu"} | environment,
    )


@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "enospc", "eio"])
def test_a_fault_while_run_json_is_written_leaves_the_old_one_or_the_new(
    action, fault_library, tmp_path
):
    # FAULTS 31, at every call that changes a file; the oracle is the file: one whole record.
    def attempt(number: int, act: str = action) -> tuple[subprocess.CompletedProcess, float]:
        folder = tmp_path / f"{act}{number}" / "under"
        write_json(folder / RUN, {"optim": {"learning_rate": 1}})
        done = write_run(
            folder / RUN, 2, BREAK=f"{act}:{number}", BREAK_UNDER=str(folder),
            LD_PRELOAD=str(fault_library),
        )  # fmt: skip
        found = json.loads((folder / RUN).read_text())["optim"]["learning_rate"]
        return done, found

    counted, after = attempt(0, "count")
    calls = int(counted.stderr.partition("calls=")[2])
    assert (after, counted.returncode) == (2, 0)
    assert calls >= 4  # open, write, flush to the disk, rename
    seen = set()
    for number in range(1, calls + 1):
        done, found = attempt(number)
        seen.add(found)
        assert found in (1, 2)
        if action == "kill":
            assert done.returncode == -signal.SIGKILL
    assert seen == {1, 2}


def test_a_value_that_json_cannot_hold_leaves_the_file_as_it_was(tmp_path):
    write_json(tmp_path / RUN, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / RUN, {"a": float("nan")})
    assert json.loads((tmp_path / RUN).read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == [RUN]

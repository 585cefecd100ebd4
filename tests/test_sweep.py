"""A sweep trains each point once, remembers it in a ledger, and goes on where it was stopped."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from regression import Line, LinearRegression
from run_configs import run_config

from dew.config.sweep import SweepFailed, grid_search, optuna_search, sweep
from dew.errors import InputRefused
from dew.tracking import LocalTracker
from dew.training.progress import Silent
from dew.training.reporting import TrackerWarning

RATES = {"optim.learning_rate": [0.01, 0.02, 0.03]}


class Trained:
    """Scores a point by a formula, and remembers which runs it was asked for."""

    def __init__(self, fail=(), stop=()):
        self.names, self.fail, self.stop = [], set(fail), set(stop)

    def __call__(self, run):
        name = run.trainer.name
        self.names.append(name)
        number = int(name.rpartition("-")[2])
        if number in self.fail:
            raise RuntimeError(f"no luck with {number}")
        if number in self.stop:
            raise KeyboardInterrupt
        return 100 * run.optim.learning_rate + run.trainer.seed


@pytest.fixture
def swept(tmp_path):
    config = run_config(tmp_path, name="rates")

    def act(train, space=RATES, config=config, **options):
        options = {
            "trials": 3,
            "ledger": tmp_path / "ledger.json",
            "search": grid_search,
            **options,
        }
        return sweep(config, space, train=train, **options)

    act.config, act.folder = config, tmp_path
    return act


def rows(folder: Path) -> list[dict]:
    return json.loads((folder / "ledger.json").read_text())["trials"]


def test_each_trial_is_a_run_of_its_own_name_and_point(swept):
    train = Trained()
    trials = swept(train)
    assert train.names == ["rates/trial-0", "rates/trial-1", "rates/trial-2"]
    assert [trial.value for trial in trials] == pytest.approx([1, 2, 3])
    assert [trial.overrides for trial in trials] == [
        {"optim.learning_rate": rate} for rate in RATES["optim.learning_rate"]
    ]
    assert min(trials, key=lambda trial: trial.value).overrides == {"optim.learning_rate": 0.01}


def test_trials_train_in_folders_of_their_own(swept):
    def train(run):
        state = run.train(LinearRegression(), Line().dataset(), progress=Silent())
        return float(state.params["params"]["b"])

    trials = swept(train, trials=2)
    assert trials[0].value != trials[1].value
    for number, rate in enumerate((0.01, 0.02)):
        folder = swept.folder / f"rates/trial-{number}"
        assert json.loads((folder / "run.json").read_text())["optim"]["learning_rate"] == rate
        assert (folder / "checkpoint-6").is_dir()
        assert (folder / "tracking/scalars.jsonl").is_file()


def test_a_finished_sweep_trains_nothing_again_and_gives_the_same(swept):
    first, again = swept(Trained()), Trained()
    assert swept(again) == first
    assert again.names == []
    more = Trained()
    assert len(swept(more, space=RATES, trials=9)) == 3  # the grid has no more
    assert more.names == []


def test_a_stopped_sweep_goes_on_with_the_trial_it_stopped_on(swept):
    with pytest.raises(KeyboardInterrupt):
        swept(Trained(stop={1}))
    assert [row["status"] for row in rows(swept.folder)] == ["finished", "begun"]
    again = Trained()
    assert len(swept(again)) == 3
    assert again.names == ["rates/trial-1", "rates/trial-2"]


def test_the_point_of_a_stopped_trial_is_kept_whatever_searches_next(swept):
    with pytest.raises(KeyboardInterrupt):
        swept(Trained(stop={1}))
    trials = swept(Trained(), search=lambda space, number, ended: {"optim.learning_rate": 0.01})
    assert [trial.overrides["optim.learning_rate"] for trial in trials] == [0.01, 0.02, 0.01]


def test_faults29_a_trial_that_fails_is_written_down_and_the_others_finish(swept):
    train = Trained(fail={1})
    with pytest.raises(SweepFailed, match=r"trial 1 .*0\.02.*RuntimeError: no luck") as caught:
        swept(train)
    assert len(train.names) == 3
    assert [trial.number for trial in caught.value.finished] == [0, 2]
    assert rows(swept.folder)[1]["error"] == "RuntimeError: no luck with 1"
    # The next sweep trains only what is missing, at the same point.
    again = Trained()
    trials = swept(again)
    assert again.names == ["rates/trial-1"]
    assert [trial.value for trial in trials] == pytest.approx([1, 2, 3])


@pytest.mark.parametrize("value", [None, "good", [1]])
def test_a_score_that_is_no_number_is_a_failure_that_says_so(swept, value):
    with pytest.raises(SweepFailed, match="train has to return a number"):
        swept(lambda run: value, trials=1)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_score_that_is_not_finite_is_kept_as_it_is(swept, value):
    swept(lambda run: value, trials=1)
    (trial,) = swept(Trained(), trials=1)
    assert trial.value == value or (math.isnan(trial.value) and math.isnan(value))
    assert isinstance(rows(swept.folder)[0]["value"], str)


def test_scores_survive_the_ledger_to_the_last_bit(swept):
    swept(lambda run: 0.1 + 0.2, trials=1)
    assert swept(Trained(), trials=1)[0].value == 0.1 + 0.2


def test_the_ledger_has_a_trial_before_the_tracker_hears_of_it(swept):
    class Asks(LocalTracker):
        seen = ()

        def log(self, scalars, step):
            self.seen = (*self.seen, (dict(scalars), step, rows(swept.folder)[step]["value"]))

    tracker = Asks(swept.folder / "tracking")
    swept(Trained(), tracker=tracker)
    assert [step for _, step, _ in tracker.seen] == [0, 1, 2]
    assert all(scalars["sweep/value"] == kept for scalars, _, kept in tracker.seen)


def test_the_tracker_gets_values_and_records_at_the_trials_numbers(swept):
    with LocalTracker(swept.folder / "tracking") as tracker, pytest.raises(SweepFailed):
        swept(Trained(fail={1}), tracker=tracker)
    assert [(line["step"], line["sweep/value"]) for line in tracker.scalars()] == [
        (0, pytest.approx(1)),
        (2, pytest.approx(3)),
    ]
    text = (swept.folder / "tracking/records.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    assert len(found) == 3
    assert all("TrialFinished" in json.dumps(record) for record in found)
    assert "no luck with 1" in json.dumps(found[1])


def test_a_tracker_that_fails_stops_no_trial(swept):
    class Broken(LocalTracker):
        def log(self, scalars, step):
            raise OSError("no space left")

    with pytest.warns(TrackerWarning, match="OSError: no space left"):
        assert len(swept(Trained(), tracker=Broken(swept.folder / "t"))) == 3
    # What it did not take is kept beside the trials.
    kept = LocalTracker(swept.folder / "rates/unreported").scalars()
    assert [line["sweep/value"] for line in kept] == pytest.approx([1, 2, 3])


def test_a_ledger_of_another_space_or_configuration_is_refused(swept):
    swept(Trained())
    before = (swept.folder / "ledger.json").read_bytes()
    with pytest.raises(InputRefused, match=r"(?s)another sweep.*space.*0\.03.*0\.04"):
        swept(Trained(), space={"optim.learning_rate": [0.01, 0.02, 0.04]})
    with pytest.raises(InputRefused, match=r"(?s)space\['data\.seed'\]"):
        swept(Trained(), space={**RATES, "data.seed": [1]})
    with pytest.raises(InputRefused, match=r"config\['trainer'\]\['seed'\]: was 0, now 5"):
        swept(Trained(), config=swept.config.override({"trainer.seed": 5}))
    assert (swept.folder / "ledger.json").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"trials": 3}',
        b"\xff",
        b'{"space": {}, "config": {}, "trials": [{"number": 0}]}',
        b'{"space": {}, "config": {}, "trials": [{"number": 0, "overrides": {}, "status": "?"}]}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(swept, content):
    (swept.folder / "ledger.json").write_bytes(content)
    with pytest.raises(InputRefused, match="no ledger"):
        swept(Trained())
    assert (swept.folder / "ledger.json").read_bytes() == content


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"optim.lerning_rate": [1]}, "did you mean 'optim.learning_rate'"),
        ({"optim.learning_rate": [0.1, "x"]}, "text 'x'"),
        ({"model.kwargs.num_layer": [1]}, "num_layers"),
        ({"trainer.name": ["a", "b"]}, "each trial has its own"),
        ({"optim.learning_rate": []}, "list of values"),
        ({}, "space"),
    ],
)
def test_a_space_that_does_not_fit_is_refused_before_anything_is_trained(swept, space, words):
    train = Trained()
    with pytest.raises(InputRefused, match=words):
        swept(train, space=space)
    assert train.names == []
    assert not (swept.folder / "ledger.json").exists()


def test_a_sweep_needs_a_name_and_a_trial(swept):
    with pytest.raises(InputRefused, match=r"trainer\.name"):
        swept(Trained(), config=swept.config.override({"trainer.name": None}))
    with pytest.raises(InputRefused, match="trials is 0"):
        swept(Trained(), trials=0)


def test_optuna_goes_on_from_the_ledger(swept):
    first = swept(Trained(), trials=2, search=optuna_search)
    trials = swept(Trained(), trials=5, search=optuna_search)
    assert trials[:2] == first
    assert len(trials) == 5


SWEEPER = """
import sys, time
from pathlib import Path
from run_configs import run_config
from dew.config.sweep import grid_search, sweep
folder = Path(sys.argv[1])
def train(run):
    with (folder / "trained.log").open("a") as log:
        log.write(run.trainer.name + "\\n")
    time.sleep(0.3)
    return run.optim.learning_rate
print("ready", flush=True)
sys.stdin.readline()
trials = sweep(run_config(folder, name="rates"), {"optim.learning_rate": [0.1, 0.2, 0.3]},
               train=train, trials=3, ledger=folder / "ledger.json", search=grid_search)
print(len(trials))
"""


def test_faults30_two_sweepers_in_one_folder_train_each_run_once(tmp_path):
    root = Path(__file__).resolve().parents[1]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", SWEEPER, str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
        )
        for _ in range(2)
    ]  # fmt: skip
    for child in pair:
        assert child.stdout.readline() == "ready\n"
    for child in pair:
        child.stdin.write("\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=60) for child in pair]
    done = [out for (out, _), child in zip(outputs, pair, strict=True) if child.returncode == 0]
    assert done == ["3\n"]
    (refused,) = [err for (_, err), child in zip(outputs, pair, strict=True) if child.returncode]
    assert "is in use by run" in refused
    assert (tmp_path / "trained.log").read_text().split() == [f"rates/trial-{n}" for n in range(3)]
    assert [row["status"] for row in rows(tmp_path)] == ["finished"] * 3

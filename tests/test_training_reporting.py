"""A fit and its trackers: nothing a tracker does stops the run, slows it, or moves a draw."""

from __future__ import annotations

import json
import socket
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from regression import Line, LinearRegression, NoisyRegression

from dew.artifacts import TextSamples, TokenScores
from dew.checkpoints import Checkpoints
from dew.data import Dataset
from dew.evaluation import Perplexity
from dew.telemetry.records import FitEnded, Record, record_fields
from dew.tracking import LocalTracker, MLflowTracker, Trackers
from dew.training import NonFinite, TrackerWarning, Trainer, reporting
from dew.training.progress import Silent
from dew.training.reporting import Reporting

QUIET = Silent()
KEY = jax.random.key(3)
COMPILED = {}
SCORED = (Perplexity(),)


class Scalars:
    """Takes scalars only: it has no `artifact` at all."""

    def __init__(self):
        self.steps = []

    def log(self, scalars, step):
        self.steps.append(step)

    def close(self):
        pass


class Failing(Scalars):
    def log(self, scalars, step):
        raise OSError("no space left")

    def artifact(self, value, step):
        raise OSError("no space left")


class Refusing(Scalars):
    """Has an `artifact` that refuses everything."""

    def artifact(self, value, step):
        raise TypeError(f"{type(value).__name__} has no form here")


class Drawing(NoisyRegression):
    """Scores and previews depend on their keys; both are counted."""

    def __init__(self):
        super().__init__()
        self.previews = self.traces = 0

    def evaluate(self, variables, batch, step):
        self.traces += 1
        noise = jax.random.normal(step.key, batch["y"].shape)
        return TokenScores(noise[:, None] ** 2, batch["weight"][:, None])

    def preview(self, variables, batch, step, *, scored=None):
        self.previews += 1
        return TextSamples(jax.random.randint(step.key, (1, 3), 0, 1000))


def trainer_of(objective=None, **options) -> Trainer:
    """A trainer; those without an objective of their own share what they compiled."""
    trainer = Trainer(objective or LINE, optax.sgd(0.05), key=KEY, **options)
    trainer._compiled = COMPILED.setdefault(trainer.objective, trainer.compiled_step())
    return trainer


LINE = NoisyRegression()


def fit(trainer, steps=6, **options):
    options = {"log_every": 2, "progress": QUIET} | options
    return trainer.fit(Line().dataset(), steps=steps, **options)


def told_once(seen) -> bool:
    """Whether one tracker's trouble was told; other packages warn of things of their own."""
    return [warning.category for warning in seen].count(TrackerWarning) == 1


def types(tracker) -> list[tuple[str, int]]:
    return [(record["type"], record["step"]) for record in tracker.records()]


def test_a_fit_reports_its_records(tmp_path):
    with LocalTracker(tmp_path / "tracking") as tracker:
        trainer = trainer_of(checkpoints=Checkpoints(str(tmp_path / "run")), tracker=tracker)
        fit(trainer, checkpoint_every=3)
    assert types(tracker) == [
        ("FitStarted", 0),
        ("CheckpointRequested", 3),
        ("CheckpointRequested", 6),
        ("FitEnded", 6),
    ]
    started, saved, _, ended = tracker.records()
    assert (started["first_step"], started["steps"], started["parameters"]) == (0, 6, 4)
    assert started["device_kind"] == jax.devices()[0].device_kind
    assert saved["directory"] == Checkpoints(str(tmp_path / "run")).path(3)
    assert saved["metrics"]["loss"] > 0
    assert (ended["status"], ended["error"]) == ("completed", "")
    assert ended["seconds"] > 0
    with LocalTracker(tmp_path / "again") as again:
        fit(trainer_of(checkpoints=Checkpoints(str(tmp_path / "run")), tracker=again), steps=8)
    assert again.records()[0]["first_step"] == 6


def test_a_fit_that_fails_says_so_and_the_error_is_its_own(tmp_path):
    data, tracker = Line().dataset(bad_at=3), LocalTracker(tmp_path)
    trainer = trainer_of(tracker=tracker)
    with pytest.raises(NonFinite):
        trainer.fit(data, steps=6, progress=QUIET)
    last = tracker.records()[-1]
    assert (last["type"], last["status"]) == ("FitEnded", "failed")
    assert last["error"].startswith("NonFinite: step 4")


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_tracker_that_raises_loses_nobody_elses_reports_nor_the_checkpoint(tmp_path, place):
    local = LocalTracker(tmp_path / "tracking")
    trackers = (Failing(), local) if place == "before" else (local, Failing())
    trainer = trainer_of(
        checkpoints=Checkpoints(str(tmp_path / "run")), tracker=Trackers(*trackers)
    )
    with pytest.warns(TrackerWarning, match=r"Failing OSError: no space left.*unreported") as seen:
        state = fit(trainer, eval_every=3, metrics=(Perplexity(),))
    assert told_once(seen)
    assert int(state.step) == 6
    assert Checkpoints(str(tmp_path / "run")).latest == 6
    assert [record["step"] for record in local.scalars()] == [2, 3, 4, 6, 6]
    assert types(local)[-1] == ("FitEnded", 6)
    kept = LocalTracker(tmp_path / "run" / "unreported")
    without_time = [
        {name: value for name, value in record.items() if not name.endswith("seconds")}
        for tracker in (kept, local)
        for record in [*tracker.scalars(), *tracker.records()]
    ]
    half = len(without_time) // 2
    assert without_time[:half] == without_time[half:], "the failing one's are kept, all of them"


def test_where_warnings_are_errors_the_run_still_ends_whole(tmp_path):
    trainer = trainer_of(checkpoints=Checkpoints(str(tmp_path)), tracker=Failing())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TrackerWarning, match="no space left"):
            fit(trainer)
    assert Checkpoints(str(tmp_path)).latest == 6


def test_without_a_checkpoint_directory_the_reports_are_kept_in_a_temporary_one():
    with pytest.warns(TrackerWarning, match="unreported") as seen:
        fit(trainer_of(tracker=Failing()))
    folder = str(seen.pop(TrackerWarning).message).rsplit(" ", 1)[1].rstrip(".")
    assert [record["step"] for record in LocalTracker(folder).scalars()] == [2, 4, 6]


@pytest.mark.parametrize("kind", [Scalars, Refusing])
def test_a_tracker_of_scalars_gets_them_and_breaks_no_run(kind):
    tracker = kind()
    fit(trainer_of(tracker=tracker), eval_every=3)
    assert tracker.steps == [2, 3, 4, 6, 6]


def test_previews_are_drawn_once_an_event_and_only_where_they_can_be_shown(tmp_path):
    """Without a tracker, with one of scalars only, unasked, or on an empty pass: none is drawn."""
    objective = Drawing()

    def previews(tracker, preview=True, val_batches=2):
        before = objective.previews
        trainer = trainer_of(objective, tracker=tracker)
        data = Line().dataset(val_batches=val_batches)
        trainer.fit(data, steps=4, eval_every=2, preview=preview, progress=QUIET)
        return objective.previews - before

    local = LocalTracker(tmp_path)
    assert previews(None) == 0
    assert previews(Scalars()) == 0
    assert previews(Trackers(Scalars())) == 0
    assert previews(local, preview=False) == 0
    assert previews(local, val_batches=0) == 0
    assert not (tmp_path / "previews").exists()
    assert previews(Trackers(Scalars(), local)) == 2
    assert sorted(p.name for p in (tmp_path / "previews").iterdir()) == ["text-2.txt", "text-4.txt"]
    assert objective.traces == 0, "without metrics nothing is scored"


def test_a_tracker_a_preview_or_a_metric_changes_no_draw(tmp_path):
    """Training, scores and previews, bit for bit, whatever else is asked for."""
    objective = Drawing()

    def run(name, *, metrics=SCORED, preview=False, tracker=True):
        local = LocalTracker(tmp_path / name)
        scores = {}
        state = fit(
            trainer_of(objective, tracker=local if tracker else None),
            eval_every=2,
            metrics=metrics,
            preview=preview,
            on_report=lambda scalars, step: scores.update({step: scalars.get("val/perplexity")}),
        )
        drawn = (tmp_path / name / "previews").glob("*")
        return state.params, scores, {path.name: path.read_text() for path in drawn}

    plain = run("plain", tracker=False)
    tracked = run("tracked")
    shown = run("shown", preview=True)
    more = run("more", metrics=(Perplexity(), Perplexity(name="again")), preview=True)
    unscored = run("unscored", metrics=(), preview=True)
    for other in (tracked, shown, more, unscored):
        jax.tree.map(np.testing.assert_array_equal, plain[0], other[0])
    assert plain[1] == tracked[1] == shown[1] == more[1]
    assert shown[2] == more[2] == unscored[2]
    assert len(shown[2]) == 3


def test_previews_never_reach_the_metrics(tmp_path):
    """The metric reads TextSamples, which only the preview gives."""
    from dew.errors import InputRefused

    with pytest.raises(InputRefused, match="reads TextSamples"):
        fit(
            trainer_of(Drawing(), tracker=LocalTracker(tmp_path)),
            eval_every=2,
            metrics=(Perplexity(reads=TextSamples),),
            preview=True,
        )


def test_the_event_key_is_printed_beside_the_counts(capsys):
    from dew.training.progress import Lines

    trainer_of().fit(Line().dataset(), steps=2, eval_every=2, progress=Lines())
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "event key" in line]
    words = np.asarray(jax.random.key_data(jax.random.fold_in(KEY, 2)))
    assert "evaluation/coordinated_batches 2  evaluation/records 8" in line
    assert line.split("event key ")[1].split()[0] == ":".join(f"{word:08x}" for word in words)


class Gated(Scalars):
    """Answers once it is let."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.records = []

    def log(self, scalars, step):
        self.gate.wait()
        super().log(scalars, step)

    def artifact(self, value, step):
        self.gate.wait()
        self.records.append((type(value).__name__, step))


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(reporting, "FIRST_WAIT", 0.1)
    monkeypatch.setattr(reporting, "PATIENCE", 0.3)


def test_a_tracker_that_answers_late_gets_all_in_order_and_nobody_is_warned(impatient, tmp_path):
    slow = Gated()
    told = Reporting(slow, tmp_path)
    for step in range(5):
        told.log({"a": 1.0}, step)
    assert slow.steps == []
    slow.gate.set()
    told.artifact(FitEnded("completed"), 5)
    told.close()
    assert slow.steps == [0, 1, 2, 3, 4]
    assert slow.records == [("FitEnded", 5)]
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_never_answers_costs_a_set_time_and_one_warning(impatient, tmp_path):
    """The waits add up to FIRST_WAIT, or the hundredth of the run's time where that is more."""
    stuck, local = Gated(), LocalTracker(tmp_path / "local")
    told = Reporting(Trackers(stuck, local), tmp_path)
    began = time.monotonic()
    for step in range(200):
        told.log({"a": 1.0}, step)
    waited = time.monotonic() - began
    assert waited < reporting.FIRST_WAIT + 1.0, "two hundred reports, one wait"
    time.sleep(reporting.PATIENCE)

    def end() -> None:
        told.log({"a": 1.0}, 200)
        told.log({"a": 1.0}, 201)
        told.close()

    with pytest.warns(TrackerWarning, match=r"Gated has not answered for \d+ s") as seen:
        end()
    assert told_once(seen)
    steps = list(range(202))
    assert [record["step"] for record in local.scalars()] == steps
    assert [r["step"] for r in LocalTracker(tmp_path / "unreported").scalars()] == steps
    stuck.gate.set()


def test_a_server_that_never_answers_does_not_hold_a_run(impatient, tmp_path):
    """Fault 24, hang: MLflow's own client against a socket that takes the call and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        local = LocalTracker(tmp_path / "local")
        trainer = trainer_of(
            checkpoints=Checkpoints(str(tmp_path / "run")),
            tracker=Trackers(MLflowTracker("study", uri=uri), local),
        )
        with pytest.warns(TrackerWarning, match="MLflowTracker .*answer.*unreported") as seen:
            fit(trainer)
    assert told_once(seen)
    assert Checkpoints(str(tmp_path / "run")).latest == 6
    kept = LocalTracker(tmp_path / "run" / "unreported")
    assert [record["step"] for record in kept.scalars()] == [2, 4, 6]
    assert [record["step"] for record in local.scalars()] == [2, 4, 6]


def test_a_server_that_refuses_does_not_end_a_run(tmp_path, monkeypatch):
    """Fault 24, refused: nobody listens at the port."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    tracker = MLflowTracker("study", uri=f"http://127.0.0.1:{port}")
    trainer = trainer_of(checkpoints=Checkpoints(str(tmp_path)), tracker=tracker)
    with pytest.warns(TrackerWarning, match="MLflowTracker .*unreported") as seen:
        fit(trainer)
    assert told_once(seen)
    assert Checkpoints(str(tmp_path)).latest == 6
    kept = LocalTracker(tmp_path / "unreported")
    assert [record["step"] for record in kept.scalars()] == [2, 4, 6]


def test_a_tracker_without_room_does_not_end_a_run(tmp_path):
    """Fault 24, disk: the tracker's folder cannot be made, for a file is in its place."""
    (tmp_path / "taken").write_text("a file")
    tracker = LocalTracker(tmp_path / "taken")
    trainer = trainer_of(checkpoints=Checkpoints(str(tmp_path / "run")), tracker=tracker)
    with pytest.warns(TrackerWarning, match="LocalTracker FileExistsError") as seen:
        fit(trainer)
    assert told_once(seen)
    kept = LocalTracker(tmp_path / "run" / "unreported")
    assert [record["step"] for record in kept.scalars()] == [2, 4, 6]


def test_a_record_of_the_callers_own_is_filed_by_its_name(tmp_path):
    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class Note(Record):
        text: str
        values: object = None

    tracker = LocalTracker(tmp_path)
    tracker.artifact(Note("hello", jnp.array([1.5, jnp.nan])), 3)
    assert tracker.records() == [
        {"type": "Note", "step": 3, "text": "hello", "values": [1.5, "NaN"]}
    ]
    assert json.dumps(record_fields(Note("x", {1: (2,)}))) == '{"text": "x", "values": {"1": [2]}}'


def test_the_log_says_how_hard_the_machine_works():
    seen = []
    trainer = trainer_of(LinearRegression())
    fit(trainer, on_report=lambda scalars, step: seen.append(scalars))
    assert isinstance(Line().dataset(), Dataset)
    for name in ("step_seconds", "tokens_per_second_per_device", "tflops_per_device"):
        assert all(scalars[f"train/{name}"] > 0 for scalars in seen)
    assert seen[0]["train/compile_seconds"] > 0
    assert "train/compile_seconds" not in seen[1]
    assert seen[-1]["train/peak_memory_gib"] > 0.05
    assert "train/mfu" not in seen[0], "nobody knows the peak of a CPU"

"""Trackers: what is logged is on disk at once, and no report is dropped."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from dew.artifacts import TextSamples, TokenScores
from dew.telemetry.records import FitEnded, RunRecord
from dew.tracking import LocalTracker, Tracker, Trackers
from dew.tracking.plots import curves_of


class Failing:
    """Fails at whatever is in `at`, and remembers what reached it."""

    def __init__(self, *at):
        self.at = at
        self.seen = []

    def _do(self, name):
        self.seen.append(name)
        if name in self.at:
            raise RuntimeError(f"{name} failed in {self.at}")

    def log(self, scalars, step):
        self._do("log")

    def artifact(self, value, step):
        self._do("artifact")

    def close(self):
        self._do("close")


def test_each_report_is_a_line_before_the_call_returns(tmp_path):
    tracker = LocalTracker(tmp_path / "tracking")
    assert not (tmp_path / "tracking").exists()
    for step in (5, 10):
        tracker.log({"train/loss": 1.5, "train/tokens": np.int64(7)}, step)
        lines = (tmp_path / "tracking" / "scalars.jsonl").read_text().splitlines()
        assert json.loads(lines[-1]) == {"step": step, "train/loss": 1.5, "train/tokens": 7}
    assert len(lines) == 2


def test_values_that_are_not_finite_are_strings_that_float_reads(tmp_path):
    tracker = LocalTracker(tmp_path)
    tracker.log({"a": math.nan, "b": math.inf, "c": np.float32(-np.inf)}, 1)
    text = (tmp_path / "scalars.jsonl").read_text()
    record = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert record == {"step": 1, "a": "NaN", "b": "+Inf", "c": "-Inf"}
    assert math.isnan(float(record["a"]))
    assert float(record["b"]) == math.inf
    assert float(record["c"]) == -math.inf


def test_a_journal_is_added_to_and_a_half_line_of_a_killed_run_goes(tmp_path):
    LocalTracker(tmp_path).log({"train/loss": 1.0}, 1)
    with (tmp_path / "scalars.jsonl").open("a") as journal:
        journal.write('{"step": 2, "train/lo')
    assert LocalTracker(tmp_path).scalars() == [{"step": 1, "train/loss": 1.0}]
    tracker = LocalTracker(tmp_path)
    tracker.log({"train/loss": 0.5}, 2)
    assert [record["step"] for record in tracker.scalars()] == [1, 2]


def test_text_samples_become_a_file(tmp_path):
    tracker = LocalTracker(tmp_path)
    tracker.artifact(TextSamples(np.zeros((2, 1)), "Once", ("upon é", "more")), 3)
    text = (tmp_path / "previews" / "text-3.txt").read_text(encoding="utf-8")
    assert text == "prompt: Once\n\nupon é\n\n---\n\nmore\n"
    tracker.artifact(TextSamples(np.array([[1, 2], [3, 4]])), 4)
    assert (tmp_path / "previews" / "text-4.txt").read_text() == "1 2\n\n---\n\n3 4\n"
    with pytest.raises(TypeError, match="TokenScores"):
        tracker.artifact(TokenScores(np.zeros(1), np.zeros(1)), 4)


def test_records_are_typed_lines_of_their_own_journal(tmp_path):
    tracker = LocalTracker(tmp_path)
    tracker.artifact(FitEnded("failed", error="x", seconds=math.inf), 7)
    tracker.artifact(RunRecord("a", {"rates": (1, math.nan)}, versions={}), 0)
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert lines == tracker.records()
    assert lines[0] == {
        "type": "FitEnded",
        "step": 7,
        "status": "failed",
        "error": "x",
        "seconds": "+Inf",
    }
    assert lines[1]["config"] == {"rates": [1, "NaN"]}
    assert not (tmp_path / "scalars.jsonl").exists()
    assert not (tmp_path / "run.json").exists()


def test_a_full_disk_is_an_error_and_the_next_report_starts_a_line_of_its_own(tmp_path):
    """RLIMIT_FSIZE in a process of its own: the kernel cuts a write as a full disk does."""
    code = (
        "import resource, signal, sys; from dew import LocalTracker\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "tracker = LocalTracker(sys.argv[1]); tracker.log({'a': 1.0}, 1)\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30, hard))\n"
        "try: tracker.log({'a': 2.0}, 2); print('written')\n"
        "except OSError as error: print('refused')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "tracker.log({'a': 3.0}, 3)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout == "refused\n"
    assert [record["step"] for record in LocalTracker(tmp_path).scalars()] == [1, 3]


def test_a_closed_tracker_takes_nothing_more(tmp_path):
    tracker = LocalTracker(tmp_path)
    tracker.close()
    tracker.close()
    with pytest.raises(ValueError, match="closed"):
        tracker.log({}, 1)
    with pytest.raises(ValueError, match="closed"):
        tracker.artifact(TextSamples(np.zeros((1, 1))), 1)


def test_plots_show_every_group_of_scalars_and_mark_what_is_not_finite(tmp_path):
    """Marks and gaps are those of matplotlib's own figure; a file is a PNG that Pillow reads."""
    from PIL import Image

    with LocalTracker(tmp_path, plots=True) as tracker:
        for step, loss in enumerate([3.0, 2.0, math.nan, 1.0], start=1):
            tracker.log({"train/loss": loss, "train/step_seconds": 1.0}, step)
        tracker.log({"val/loss": 4.0, "val/psnr": math.inf}, 4)
        assert not (tmp_path / "plots").exists(), "nothing is drawn while training"
    files = [tmp_path / "plots" / f"{name}.png" for name in ("loss", "psnr", "step_seconds")]
    assert sorted((tmp_path / "plots").iterdir()) == files
    for file in files:
        with Image.open(file) as picture:
            assert picture.size == (840, 480)
    assert tracker.plot() == files
    assert [record["train/loss"] for record in tracker.scalars()[:4]] == [3.0, 2.0, "NaN", 1.0]
    assert LocalTracker(tmp_path / "empty").plot() == []


def test_plotting_opens_no_display_and_leaves_the_callers_backend_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    tracker = LocalTracker(tmp_path)
    tracker.log({"train/loss": 1.0}, 1)
    tracker.plot()
    assert dict(matplotlib.rcParams) == before


def test_a_step_logged_again_counts_as_it_was_last():
    records = [{"step": 2, "train/loss": 9.0}, {"step": 1, "train/loss": 3.0}]
    records += [{"step": 2, "train/loss": 2.0}, {"step": 3, "train/loss": "+Inf"}]
    assert curves_of(records, "loss") == {"train/loss": [(1, 3.0), (2, 2.0), (3, math.inf)]}


def test_every_tracker_hears_each_report_and_the_first_failure_is_raised():
    first, second, third = Failing(), Failing("log", "close"), Failing("log")
    trackers = Trackers(first, second, third)
    with pytest.raises(RuntimeError, match="log failed in") as caught:
        trackers.log({"a": 1.0}, 1)
    assert "'close'" in str(caught.value)
    assert any("failed too" in note for note in caught.value.__notes__)
    trackers.artifact(None, 1)
    with pytest.raises(RuntimeError, match="close failed"):
        trackers.close()
    assert all(tracker.seen == ["log", "artifact", "close"] for tracker in (first, second, third))
    assert isinstance(trackers, Tracker)


def test_closing_never_hides_the_error_of_the_block():
    with pytest.raises(KeyError) as caught, Trackers(Failing("close")):
        raise KeyError("the first")
    assert any("close failed" in note for note in caught.value.__notes__)
    with pytest.raises(RuntimeError, match="close failed"), Trackers(Failing("close")):
        pass


def test_a_fit_logs_to_its_tracker_and_leaves_it_open(tmp_path):
    import jax
    import optax
    from regression import Line, LinearRegression

    from dew.training import Trainer
    from dew.training.progress import Silent

    class Telling(LinearRegression):
        def preview(self, variables, batch, step, *, scored=None):
            return TextSamples(np.array([[1, 2]]))

    with LocalTracker(tmp_path) as tracker:
        trainer = Trainer(Telling(), optax.sgd(0.1), key=jax.random.key(0), tracker=tracker)
        trainer.fit(
            Line().dataset(),
            steps=4,
            log_every=2,
            eval_every=4,
            preview=True,
            progress=Silent(),
        )
        tracker.log({"after": 1.0}, 5)
    steps = [record["step"] for record in tracker.scalars()]
    assert steps == [2, 4, 4, 5]
    assert tracker.scalars()[2]["evaluation/records"] == 8
    assert (tmp_path / "previews" / "text-4.txt").exists()

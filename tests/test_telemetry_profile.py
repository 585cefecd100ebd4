"""`dew.profile` and a trainer's window: real traces of jax's profiler."""

from __future__ import annotations

import gzip

import jax
import jax.numpy as jnp
import optax
import pytest
from regression import Line, LinearRegression

import dew
from dew import ProfileWindow, Trainer
from dew.errors import InputRefused
from dew.tracking import LocalTracker
from dew.training.progress import Silent

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def traces(folder):
    return sorted(folder.rglob("*.xplane.pb"))


def test_a_capture_starts_on_enter_or_start_only(tmp_path):
    captured = dew.profile(tmp_path / "trace")
    assert not (tmp_path / "trace").exists()
    with captured as same:
        assert same is captured
        jnp.ones((64, 64)).sum().block_until_ready()
    (trace,) = traces(tmp_path / "trace")
    assert trace.stat().st_size > 100
    captured = dew.profile(tmp_path / "again")
    captured.start()
    with pytest.raises(RuntimeError, match="under way; stop it first"):
        captured.start()
    captured.stop()
    assert len(traces(tmp_path / "again")) == 1
    with pytest.raises(RuntimeError, match="start it first"):
        captured.stop()


def test_an_error_in_the_block_comes_out_and_ends_the_trace(tmp_path):
    with pytest.raises(KeyError), dew.profile(tmp_path):
        raise KeyError("mine")
    with dew.profile(tmp_path / "next"):
        pass
    assert traces(tmp_path / "next")


def fit(tmp_path, steps, window):
    with LocalTracker(tmp_path / "tracking") as tracker:
        trainer = Trainer(
            LinearRegression(),
            optax.sgd(0.1),
            key=jax.random.key(0),
            tracker=tracker,
            profile=window,
        )
        trainer.fit(Line().dataset(), steps=steps, progress=Silent())
    return [r for r in tracker.records() if r["type"] == "ProfileWindow"]


def test_a_window_traces_its_steps_after_the_warmup_and_is_reported_once_written(tmp_path):
    window = ProfileWindow(str(tmp_path / "trace"), warmup=2, steps=3)
    records = fit(tmp_path, 9, window)
    expected = {"type": "ProfileWindow", "step": 5, "steps": 3}
    assert records == [{**expected, "directory": str(tmp_path / "trace")}]
    assert len(traces(tmp_path / "trace")) == 1


@pytest.mark.parametrize(("steps", "traced"), [(4, 2), (2, None), (1, None)])
def test_a_window_that_the_fit_does_not_fill_tells_what_it_holds(tmp_path, steps, traced):
    records = fit(tmp_path, steps, ProfileWindow(str(tmp_path / "trace"), warmup=2, steps=3))
    assert [record["steps"] for record in records] == ([] if traced is None else [traced])
    with dew.profile(tmp_path / "free"):
        pass  # no trace was left under way


def test_a_window_counts_from_one():
    with pytest.raises(InputRefused, match="warmup=0"):
        ProfileWindow("x", warmup=0, steps=1)


def test_perfetto_is_written_on_request(tmp_path):
    with dew.profile(tmp_path, perfetto=True):
        jnp.ones(3).sum().block_until_ready()
    (file,) = tmp_path.rglob("perfetto_trace.json.gz")
    assert gzip.decompress(file.read_bytes()).startswith(b"{")

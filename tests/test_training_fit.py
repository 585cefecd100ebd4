"""A whole fit: it resumes, reports, cleans up, and refuses what does not fit."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import math
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from regression import Line, LinearRegression, LineStream, NoisyRegression

from dew.checkpoints import Checkpoints
from dew.data import Dataset
from dew.errors import InputRefused
from dew.evaluation import Perplexity
from dew.inputs import Field, InputSpec
from dew.objectives.base import EMASpec, Ratio
from dew.placement import Layout, MeshSpec, Placement
from dew.training import NonFinite, Trainer
from dew.training.prefetch import Prefetch
from dew.training.progress import Lines, Live, Silent, default_progress

KEY = jax.random.key(3)
QUIET = Silent()
place = Placement(MeshSpec(), Layout()).batch
NOISY = NoisyRegression(ema=EMASpec(lambda n: 0.9))


def trainer_of(directory=None, *, objective=None, accumulation=1) -> Trainer:
    """A trainer; those of one kind share what they compiled."""
    trainer = copy.copy(_trainer_of(objective or NOISY, accumulation))
    trainer.checkpoints = None if directory is None else Checkpoints(str(directory))
    return trainer


@functools.cache
def _trainer_of(objective, accumulation) -> Trainer:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05))
    trainer = Trainer(objective, optimizer, key=KEY, accumulation=accumulation)
    trainer.beginning()
    trainer.compiled_step()
    return trainer


def assert_equal_bits(one, other) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stop", [3, 7])
def test_a_run_that_was_cut_ends_bit_for_bit_as_one_that_was_not(tmp_path, accumulation, stop):
    """An error at step `stop`, in the middle of a window or not; oracle: the run left alone."""

    def fit(directory, on_report=None):
        trainer = trainer_of(directory, accumulation=accumulation)
        return trainer.fit(
            Line().dataset(),
            steps=10,
            log_every=1,
            checkpoint_every=2,
            on_report=on_report,
            progress=QUIET,
        )

    def cut(scalars, step):
        if step == stop:
            raise RuntimeError("cut")

    with pytest.raises(RuntimeError, match="cut"):
        fit(tmp_path / "cut", cut)
    assert Checkpoints(str(tmp_path / "cut")).latest == stop - 1
    losses = {}
    resumed = fit(tmp_path / "cut", lambda scalars, step: losses.update({step: scalars}))
    assert sorted(losses) == list(range(stop, 11))
    whole_losses = {}
    whole = fit(tmp_path / "whole", lambda scalars, step: whole_losses.update({step: scalars}))
    assert_equal_bits(resumed, whole)
    for step, scalars in losses.items():
        assert scalars["train/loss"] == whole_losses[step]["train/loss"]


def test_checkpoints_and_evaluation_change_nothing_in_the_training(tmp_path):
    plain = trainer_of().fit(Line().dataset(), steps=6, progress=QUIET)
    busy = trainer_of(tmp_path).fit(
        Line().dataset(),
        steps=6,
        log_every=1,
        eval_every=2,
        checkpoint_every=1,
        metrics=(Perplexity(),),
        progress=QUIET,
    )
    assert_equal_bits(plain, busy)


def test_a_finished_run_does_nothing_more(tmp_path):
    first = trainer_of(tmp_path).fit(Line().dataset(), steps=4, progress=QUIET)
    reports = []
    again = trainer_of(tmp_path).fit(
        Line().dataset(), steps=4, progress=QUIET, on_report=lambda *_: reports.append(_)
    )
    assert_equal_bits(first, again)
    assert reports == []


def test_a_file_asks_for_a_save_without_stopping(tmp_path):
    def ask(scalars, step):
        if step == 3:
            (tmp_path / "save-now").touch()

    trainer = trainer_of(tmp_path)
    trainer.checkpoints = Checkpoints(str(tmp_path), keep=9)
    trainer.fit(Line().dataset(), steps=6, log_every=1, progress=QUIET, on_report=ask)
    assert not (tmp_path / "save-now").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-6"]


def test_steps_is_a_total(tmp_path):
    trainer_of(tmp_path).fit(Line().dataset(), steps=4, progress=QUIET)
    longer = trainer_of(tmp_path).fit(Line().dataset(), steps=9, progress=QUIET)
    assert_equal_bits(longer, trainer_of().fit(Line().dataset(), steps=9, progress=QUIET))


@pytest.mark.parametrize("kind", ["numpy", "jax"])
def test_given_variables_are_not_written_to(kind):
    """The step is donated; numpy arrays may share their memory with jax."""
    start = {"params": {"w": np.arange(3, dtype=np.float32), "b": np.zeros((), np.float32)}}
    given = start if kind == "numpy" else jax.tree.map(jnp.array, start)
    before = jax.tree.map(np.array, given)
    state = trainer_of(objective=LinearRegression()).fit(
        Line().dataset(), steps=3, variables=given, progress=QUIET
    )
    assert not np.array_equal(state.params["params"]["w"], before["params"]["w"])
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(given), strict=True):
        np.testing.assert_array_equal(old, np.asarray(new))


class Offset(LinearRegression):
    """Learns `b` only; `w` lies in a frozen collection."""

    frozen = ("base",)

    def init(self, key, variables=None):
        if variables is not None:
            return variables
        return {"params": {"b": jnp.zeros(())}, "base": {"w": jnp.ones(3)}}

    def errors(self, variables, batch):
        w = jax.lax.stop_gradient(variables["base"]["w"])
        return batch["x"] @ w + variables["params"]["b"] - batch["y"]


def test_frozen_collections_stay_out_of_checkpoints_and_come_back_from_the_variables(tmp_path):
    variables = {
        "params": {"b": np.zeros((), np.float32)},
        "base": {"w": np.array([1, -2, 0.5], np.float32)},
    }

    def fit(steps):
        return trainer_of(tmp_path, objective=Offset()).fit(
            Line().dataset(), steps=steps, variables=variables, progress=QUIET
        )

    fit(2)
    assert set(Checkpoints(str(tmp_path)).stored()["params"]) == {"params"}
    resumed = fit(4)
    np.testing.assert_array_equal(resumed.params["base"]["w"], variables["base"]["w"])
    whole = trainer_of(objective=Offset()).fit(
        Line().dataset(), steps=4, variables=variables, progress=QUIET
    )
    assert_equal_bits(resumed, whole)


@pytest.mark.parametrize("log_every", [1, 4])
def test_a_bad_batch_stops_the_run_naming_step_and_leaf(tmp_path, log_every):
    """Fault 18: batch 4, counted from 0, is step 5; the checkpoint before it is the latest."""
    with pytest.raises(NonFinite, match=r"step 5: .*batch/x holds 1 of 12 values"):
        trainer_of(tmp_path).fit(
            Line().dataset(bad_at=4),
            steps=20,
            log_every=log_every,
            checkpoint_every=2,
            progress=QUIET,
        )
    checkpoints = Checkpoints(str(tmp_path))
    assert checkpoints.latest == 4
    state, _ = checkpoints.restore()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state["params"]))


class Cliff(LinearRegression):
    """A loss of 0 whose gradient in `w` is NaN: the square root of |w - w|."""

    def loss(self, variables, batch, step):
        w = variables["params"]["w"]
        return Ratio(jnp.sum(jnp.sqrt(jnp.abs(w - jax.lax.stop_gradient(w)))), jnp.float32(1))


def test_a_bad_gradient_is_named():
    with pytest.raises(NonFinite, match=r"step 1: .*gradient of params/w"):
        trainer_of(objective=Cliff()).fit(Line().dataset(), steps=3, progress=QUIET)


def test_an_error_of_the_data_comes_out_as_it_is_and_the_checkpoint_stays(tmp_path):
    """Faults 21 and 22: the iterator's own error, its iterator closed, the last save whole."""
    streams = []

    def train(partition):
        streams.append(LineStream(Line(), fail_at=5))
        return streams[-1]

    data = Dataset(train=train, val=None, records=64, batch=4)
    with pytest.raises(OSError, match="no batch 5"):
        trainer_of(tmp_path).fit(data, steps=9, checkpoint_every=2, progress=QUIET)
    assert streams[0].closed
    assert Checkpoints(str(tmp_path)).latest == 4


def test_the_iterator_is_closed_after_success_too():
    streams = []

    def train(partition):
        streams.append(LineStream(Line()))
        return streams[-1]

    trainer_of().fit(Dataset(train, None, 64, 4), steps=2, progress=QUIET)
    assert streams[0].closed


def test_a_failure_while_cleaning_up_is_a_note_on_the_first_error():
    class Stubborn(LineStream):
        def close(self):
            raise RuntimeError("will not close")

    data = Dataset(lambda partition: Stubborn(Line(), fail_at=1), None, 64, 4)
    with pytest.raises(OSError, match="no batch 1") as caught:
        trainer_of().fit(data, steps=3, progress=QUIET)
    assert any("will not close" in note for note in caught.value.__notes__)
    with pytest.raises(RuntimeError, match="will not close"):
        trainer_of().fit(
            Dataset(lambda partition: Stubborn(Line()), None, 64, 4), steps=1, progress=QUIET
        )


def test_data_that_ends_early_is_named():
    data = Dataset(lambda p: iter([Line().take(np.arange(4))] * 3), None, 64, 4)
    with pytest.raises(InputRefused, match="ended before step 4 of 5"):
        trainer_of().fit(data, steps=5, progress=QUIET)


def test_an_iterator_without_a_position_is_refused_where_checkpoints_are_asked_for(tmp_path):
    data = Dataset(lambda p: itertools.repeat(Line().take(np.arange(4))), None, 64, 4)
    with pytest.raises(InputRefused, match=r"checkpoint_every.*get_state"):
        trainer_of(tmp_path).fit(data, steps=2, checkpoint_every=1, progress=QUIET)
    trainer_of(tmp_path).fit(data, steps=2, progress=QUIET)
    with pytest.warns(UserWarning, match="no data position"):
        trainer_of(tmp_path).fit(data, steps=3, progress=QUIET)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval_every": 1}, "has no val"),
        ({"checkpoint_every": 1}, "has no checkpoints"),
        ({"log_every": 0}, "log_every=0"),
        ({"steps": -1, "log_every": -2}, "steps=-1, log_every=-2"),
        ({"metrics": (Perplexity(), Perplexity())}, "perplexity"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, words):
    data = Dataset(lambda p: LineStream(Line()), None, 64, 4)
    with pytest.raises(InputRefused, match=words):
        trainer_of().fit(data, **{"steps": 1, "progress": QUIET, **options})


def test_the_first_batch_is_held_to_the_inputs():
    objective = LinearRegression()
    objective.inputs = InputSpec(Field("x", (5,)))
    with pytest.raises(InputRefused, match="'x'"):
        trainer_of(objective=objective).fit(Line().dataset(), steps=1, progress=QUIET)


def test_another_seed_in_the_same_directory_is_refused(tmp_path):
    trainer_of(tmp_path).fit(Line().dataset(), steps=1, progress=QUIET)
    other = Trainer(
        NOISY,
        trainer_of().optimizer,
        key=jax.random.key(99),
        checkpoints=Checkpoints(str(tmp_path)),
    )
    with pytest.raises(InputRefused, match="another key"):
        other.fit(Line().dataset(), steps=2, progress=QUIET)


def test_the_reported_loss_is_the_ratio_of_the_interval():
    """Weights 1 to 3 cycle: the mean of the batches' means would be another number."""
    data, reports = Line().dataset(), {}
    variables = {"params": {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}}
    Trainer(LinearRegression(), optax.sgd(0.0), key=KEY).fit(
        data,
        steps=6,
        log_every=3,
        variables=variables,
        progress=QUIET,
        on_report=lambda scalars, step: reports.update({step: scalars}),
    )
    for step in (3, 6):
        rows = Line().take(np.arange(4 * (step - 3), 4 * step))
        expected = (rows["weight"] * rows["y"] ** 2).sum() / rows["weight"].sum()
        assert reports[step]["train/loss"] == pytest.approx(expected, rel=1e-6)
    names = {"train/loss", "train/grad_norm", "train/step_seconds", "train/epoch"}
    assert names <= set(reports[3])
    assert 0 <= reports[6]["train/data_wait_share"] < 1
    assert reports[3]["train/compile_seconds"] > 0
    assert "train/compile_seconds" not in reports[6]
    assert reports[6]["train/epoch"] == pytest.approx(24 / 64)


def test_best_is_the_lowest_validation_loss_where_one_is_measured(tmp_path):
    """Only evaluated steps can be best; their loss is the log of the perplexity."""
    scores = {}
    trainer_of(tmp_path, objective=LinearRegression()).fit(
        Line().dataset(),
        steps=6,
        eval_every=2,
        checkpoint_every=1,
        metrics=(Perplexity(),),
        progress=QUIET,
        on_report=lambda scalars, step: scores.update({step: scalars.get("val/perplexity")}),
    )
    best = min((s for s in scores if scores[s]), key=lambda s: scores[s])
    assert Checkpoints(str(tmp_path)).best == best


def test_evaluation_runs_at_the_end_too():
    seen = []
    trainer_of().fit(
        Line().dataset(),
        steps=5,
        eval_every=3,
        metrics=(Perplexity(),),
        progress=QUIET,
        on_report=lambda scalars, step: seen.append((step, "val/perplexity" in scalars)),
    )
    assert [step for step, scored in seen if scored] == [3, 5]


def test_a_plan_says_what_the_step_holds_without_any_values():
    trainer = trainer_of(objective=LinearRegression())
    batch = {
        name: jax.ShapeDtypeStruct(field.shape, field.dtype)
        for name, field in Line().take(np.arange(4)).items()
    }
    plan = trainer.plan(batch)
    assert plan.state.params["params"]["w"].shape == (3,)
    memory = plan.memory
    assert memory.total == memory.argument + memory.output + memory.temporary - memory.aliased
    assert memory.argument >= 4 * (4 * 3 + 3 * 3)
    compiled = trainer.compiled_step().seconds
    trainer.fit(Line().dataset(), steps=1, progress=QUIET)
    assert trainer.compiled_step().seconds == compiled, "the plan's executable serves the fit"


def test_a_new_batch_shape_is_compiled_again_and_named():
    def train(partition):
        return iter([Line().take(np.arange(n)) for n in (4, 4, 2)])

    with pytest.warns(UserWarning, match=r"compiled again.*weight \(2,\)"):
        trainer_of().fit(Dataset(train, None, 64, 4), steps=3, progress=QUIET)


def test_building_a_trainer_touches_nothing(tmp_path):
    class Untouched(LinearRegression):
        def init(self, key, variables=None):
            raise AssertionError("not to be called")

    Trainer(Untouched(), optax.sgd(0.1), key=KEY, checkpoints=Checkpoints(str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_prefetch_gives_the_position_of_the_batch_that_was_taken():
    """The thread has read ahead; a resume from its own position would skip batches."""
    stream = LineStream(Line())
    feed = Prefetch(stream, limit=10, place=place)
    deadline = time.monotonic() + 10
    while stream.next_batch < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stream.next_batch >= 3
    assert [feed.next().position for _ in range(2)] == [b"1", b"2"]
    feed.close()
    assert stream.closed


def test_prefetch_copies_what_the_iterator_may_write_over():
    def reusing():
        buffer = np.zeros(64, np.float32)
        for n in range(4):
            buffer[:] = n
            yield {"x": buffer}

    feed = Prefetch(reusing(), limit=4, place=place)
    taken = [feed.next() for _ in range(4)]
    feed.close()
    assert [float(fed.batch["x"][0]) for fed in taken] == [0, 1, 2, 3]


def test_closing_prefetch_does_not_wait_for_a_full_queue():
    feed = Prefetch(iter(itertools.repeat({"x": np.zeros(1)})), limit=10**9, place=place)
    time.sleep(0.05)
    started = time.monotonic()
    feed.close()
    assert time.monotonic() - started < 2
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())


def test_lines_are_plain_and_live_is_for_terminals():
    out = io.StringIO()
    lines = default_progress(out)
    assert isinstance(lines, Lines)
    lines.start(0, 10)
    lines.advance(1, 2.0, 3.0)
    lines.report({"train/loss": 2.5, "train/step_seconds": 60.0}, 5)
    assert out.getvalue() == "step 5/10  loss 2.5  step_seconds 60  left 0:05:00\n"

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    live = default_progress(Terminal())
    assert isinstance(live, Live)
    live.start(0, 10)
    live.phase("compiling (first time)")
    live.advance(1, 2.0, 3.0)
    live.report({"train/loss": math.nan}, 1)
    live.close()

"""The step: what one update is, whatever the microbatches it is cut into."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from regression import Line, LinearRegression, NoisyRegression

from dew.objectives.base import Aux, EMASpec, Objective, Ratio
from dew.placement import Layout, MeshSpec, Placement
from dew.training.adam import adamw
from dew.training.start import Beginning
from dew.training.state import TrainState
from dew.training.step import flush, microstep

KEY = jax.random.key(5)


def begin(objective, optimizer, *, accumulation=1, variables=None) -> TrainState:
    beginning = Beginning(
        objective,
        optimizer,
        key=KEY,
        accumulation=accumulation,
        placement=Placement(MeshSpec(), Layout()),
    )
    return beginning.fresh(variables)[0]


def run(objective, optimizer, batches, *, accumulation=1, variables=None):
    state = begin(objective, optimizer, accumulation=accumulation, variables=variables)
    step = jax.jit(microstep(objective, optimizer, accumulation=accumulation))
    reports = []
    for batch in batches:
        state, report = step(state, {}, batch)
        reports.append(jax.device_get(report))
    return state, reports


def eight_rows() -> dict[str, np.ndarray]:
    """Eight rows whose weights (the masses) are 1 to 8."""
    batch = Line().take(np.arange(8))
    return {**batch, "weight": np.arange(1, 9, dtype=np.float32)}


def rows_of(batch, size):
    count = len(batch["x"]) // size
    return [
        {name: field[n * size : (n + 1) * size] for name, field in batch.items()}
        for n in range(count)
    ]


def test_one_update_is_the_weighted_mean_gradient():
    """Closed form: d/dw sum(c e^2) / sum(c) = 2 sum(c e x) / sum(c), in float64 by hand."""
    batch = eight_rows()
    variables = {"params": {"w": np.array([0.5, -1, 2], np.float32), "b": np.float32(0.25)}}
    state, (report,) = run(LinearRegression(), optax.sgd(0.1), [batch], variables=variables)
    x, y, c = (batch[name].astype(np.float64) for name in ("x", "y", "weight"))
    error = x @ [0.5, -1, 2] + 0.25 - y
    slope = 2 * (c * error) @ x / c.sum()
    offset = 2 * (c * error).sum() / c.sum()
    np.testing.assert_allclose(state.params["params"]["w"], [0.5, -1, 2] - 0.1 * slope, rtol=1e-5)
    np.testing.assert_allclose(state.params["params"]["b"], 0.25 - 0.1 * offset, rtol=1e-5)
    np.testing.assert_allclose(
        report["total"] / report["mass"], (c * error**2).sum() / c.sum(), rtol=1e-5
    )
    np.testing.assert_allclose(
        report["grad_norm"], np.hypot(np.linalg.norm(slope), offset), rtol=1e-5
    )


@pytest.mark.parametrize(("size", "accumulation"), [(1, 8), (2, 4), (4, 2)])
def test_accumulated_microbatches_of_unequal_mass_equal_one_batch(size, accumulation):
    """P052, P053: loss, gradient norm and updated params, for weights 1 to 8."""
    batch, optimizer = eight_rows(), optax.adamw(0.1, weight_decay=0.01)
    whole, (one,) = run(LinearRegression(), optimizer, [batch])
    parts, many = run(
        LinearRegression(), optimizer, rows_of(batch, size), accumulation=accumulation
    )
    assert (int(parts.updates), int(parts.step)) == (1, accumulation)
    for name in ("w", "b"):
        np.testing.assert_allclose(
            parts.params["params"][name], whole.params["params"][name], rtol=1e-6
        )
    loss = sum(r["total"] for r in many) / sum(r["mass"] for r in many)
    np.testing.assert_allclose(loss, one["total"] / one["mass"], rtol=1e-6)
    np.testing.assert_allclose(many[-1]["grad_norm"], one["grad_norm"], rtol=1e-6)
    assert [bool(r["updated"]) for r in many] == [False] * (accumulation - 1) + [True]


def test_a_window_that_is_not_full_is_flushed_as_the_batch_of_its_rows():
    """The last partial window: three microbatches of a window of four are one batch of three."""
    batch, optimizer = eight_rows(), optax.sgd(0.1)
    three = {name: field[:3] for name, field in batch.items()}
    whole, _ = run(LinearRegression(), optimizer, [three])
    parts, _ = run(LinearRegression(), optimizer, rows_of(three, 1), accumulation=4)
    assert int(parts.updates) == 0
    flushed = jax.jit(flush(LinearRegression(), optimizer))(parts)
    assert (int(flushed.updates), int(flushed.step), int(flushed.microstep)) == (1, 3, 3)
    assert int(flushed.accumulation.count) == 0
    np.testing.assert_allclose(
        flushed.params["params"]["w"], whole.params["params"]["w"], rtol=1e-6
    )


@pytest.mark.parametrize("accumulation", [1, 2])
def test_mass_zero_is_no_update(accumulation):
    """Params, moments and the schedule's count stay; the microbatches count as accepted."""
    batch = {**eight_rows(), "weight": np.zeros(8, np.float32)}
    optimizer = optax.adam(optax.linear_schedule(0.0, 1.0, 10))
    before = begin(LinearRegression(), optimizer, accumulation=accumulation)
    after, reports = run(LinearRegression(), optimizer, [batch] * 2, accumulation=accumulation)
    assert (int(after.step), int(after.updates)) == (2, 0)
    for name in ("params", "opt_state"):
        for old, new in zip(
            jax.tree.leaves(getattr(before, name)),
            jax.tree.leaves(getattr(after, name)),
            strict=True,
        ):
            np.testing.assert_array_equal(old, new)
    assert all(report["finite"] for report in reports)


def test_a_schedule_counts_updates():
    """P054: linear 0 to 1 over 10, windows of 4, 40 microbatches: the last rate used is 0.9."""
    optimizer = optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(0.0, 1.0, 10))
    still = {**eight_rows(), "x": np.zeros((8, 3), np.float32), "y": np.zeros(8, np.float32)}
    _, reports = run(LinearRegression(), optimizer, [still] * 40, accumulation=4)
    assert reports[-1]["learning_rate"] == pytest.approx(0.9)
    assert reports[3]["learning_rate"] == pytest.approx(0.0)


def test_a_bad_microbatch_leaves_the_state_before_it():
    """Nothing after the fault is applied either, since the host hears of it some steps later."""
    good, bad = eight_rows(), eight_rows()
    bad["y"] = np.full(8, 1e38, np.float32)
    before, _ = run(LinearRegression(), optax.adam(0.1), [good])
    after, reports = run(LinearRegression(), optax.adam(0.1), [good, bad, good])
    assert [bool(r["finite"]) for r in reports] == [True, False, True]
    assert (int(after.step), int(after.microstep), int(after.updates)) == (1, 3, 1)
    for old, new in zip(
        jax.tree.leaves((before.params, before.opt_state)),
        jax.tree.leaves((after.params, after.opt_state)),
        strict=True,
    ):
        np.testing.assert_array_equal(old, new)


def test_each_attempt_draws_anew_and_a_rerun_draws_the_same():
    """The key of a step is the run's folded with the attempt: losses differ, reruns agree."""
    batch = eight_rows()
    _, first = run(NoisyRegression(), optax.sgd(0.0), [batch] * 3)
    _, again = run(NoisyRegression(), optax.sgd(0.0), [batch] * 3)
    totals = [float(r["total"]) for r in first]
    assert len(set(totals)) == 3
    assert totals == [float(r["total"]) for r in again]


def test_the_average_follows_by_the_decay_of_the_updates_made():
    """Closed form: e1 = d(1) p0 + (1 - d(1)) p1, and so on, in float64 by hand."""
    spec = EMASpec(lambda updates: updates / (updates + 1.0), select=lambda path: path == "w")
    objective, optimizer, batch = LinearRegression(ema=spec), optax.sgd(0.05), eight_rows()
    states = [begin(objective, optimizer)]
    states += [run(objective, optimizer, [batch] * n)[0] for n in (1, 2, 3)]
    expected = np.asarray(states[0].params["params"]["w"], np.float64)
    for n in (1, 2, 3):
        decay = n / (n + 1)
        expected = decay * expected + (1 - decay) * np.asarray(states[n].params["params"]["w"])
        np.testing.assert_allclose(states[n].ema["params"]["w"], expected, rtol=1e-6)
    assert states[3].ema["params"]["b"] is None
    averaged = states[3].averaged["params"]
    np.testing.assert_array_equal(averaged["w"], states[3].ema["params"]["w"])
    np.testing.assert_array_equal(averaged["b"], states[3].params["params"]["b"])


def test_decay_one_keeps_an_exact_copy_in_the_leafs_dtype():
    variables = {"params": {"w": jnp.array([0.1, -0.0, 3], jnp.bfloat16), "b": jnp.float32(0)}}
    objective = LinearRegression(ema=EMASpec(lambda updates: 1.0))
    state, _ = run(objective, optax.sgd(0.1), [eight_rows()] * 3, variables=variables)
    kept = state.ema["params"]["w"]
    assert kept.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        np.asarray(kept).view(np.uint16), np.asarray(variables["params"]["w"]).view(np.uint16)
    )


def test_averaged_without_an_average_says_so():
    with pytest.raises(ValueError, match="EMASpec"):
        _ = begin(LinearRegression(), optax.sgd(0.1)).averaged


def test_moments_of_bfloat16_params_are_float32():
    """P057: what learns is float32, whatever the weights are stored in."""
    variables = {"params": {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.zeros((), jnp.bfloat16)}}
    state, _ = run(LinearRegression(), optax.adam(0.1), [eight_rows()] * 2, variables=variables)
    assert state.params["params"]["w"].dtype == jnp.bfloat16
    moments = jax.tree.leaves(state.opt_state)
    assert {leaf.dtype.name for leaf in moments if leaf.ndim} == {"float32"}


class Counting(Objective):
    """Keeps a count of the batches it saw in a collection of its own."""

    replaces = "seen"

    def init(self, key, variables=None):
        return {"params": {"w": jnp.ones(())}, "seen": {"count": jnp.zeros(())}}

    def loss(self, variables, batch, step):
        seen = {"count": variables["seen"]["count"] + 1}
        loss = variables["params"]["w"] ** 2
        error = Ratio(loss, jnp.float32(2))
        return error, Aux(metrics={"half": error}, variables={self.replaces: seen})


def test_aux_replaces_a_whole_collection():
    state, reports = run(Counting(), optax.sgd(0.1), [{"x": np.zeros(1)}] * 3)
    assert float(state.params["seen"]["count"]) == 3
    assert reports[0]["aux"]["half"].mass == 2


def test_aux_may_not_replace_params_or_bring_a_new_collection():
    for name in ("params", "other"):
        objective = Counting()
        objective.replaces = name
        with pytest.raises(ValueError, match=name):
            run(objective, optax.sgd(0.1), [{"x": np.zeros(1)}])


def test_ten_steps_equal_a_loop_of_plain_optax():
    """Oracle: jax.grad of the mean loss and optax, written out here, in the same order."""
    objective = LinearRegression()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05))
    batches = [Line().take(n * 4 + np.arange(4)) for n in range(10)]
    state, _ = run(objective, optimizer, batches)

    params = objective.init(KEY)["params"]
    moments = optimizer.init(params)

    def mean_loss(params, batch):
        error = batch["x"] @ params["w"] + params["b"] - batch["y"]
        return jnp.sum(batch["weight"] * error**2) / jnp.sum(batch["weight"])

    @jax.jit
    def update(params, moments, batch):
        changes, moments = optimizer.update(jax.grad(mean_loss)(params, batch), moments, params)
        return optax.apply_updates(params, changes), moments

    for batch in batches:
        params, moments = update(params, moments, batch)
    for name in ("w", "b"):
        np.testing.assert_allclose(state.params["params"][name], params[name], rtol=2e-6)


@pytest.mark.torch
def test_ten_adamw_steps_equal_torch():
    """Oracle: torch.optim.AdamW in float64; our float32 error is at most twice torch's own."""
    torch = pytest.importorskip("torch")
    batches = [Line().take(n * 4 + np.arange(4)) for n in range(10)]
    start = {"w": np.array([0.5, -1, 2], np.float32), "b": np.float32(0.25)}

    def by_torch(dtype):
        w, b = (torch.tensor(start[n], dtype=dtype, requires_grad=True) for n in ("w", "b"))
        optimizer = torch.optim.AdamW([w, b], lr=0.05, weight_decay=0.01)
        for batch in batches:
            x, y, c = (torch.tensor(batch[n]).to(dtype) for n in ("x", "y", "weight"))
            optimizer.zero_grad()
            ((c * (x @ w + b - y) ** 2).sum() / c.sum()).backward()
            optimizer.step()
        return np.append(w.detach().numpy(), b.detach().numpy())

    truth, torchs = by_torch(torch.float64), by_torch(torch.float32)
    optimizer = adamw(0.05, weight_decay=0.01)
    state, _ = run(LinearRegression(), optimizer, batches, variables={"params": start})
    ours = np.append(state.params["params"]["w"], state.params["params"]["b"])
    allowed = 2 * np.abs(torchs - truth).max() + np.spacing(np.float32(np.abs(truth).max()))
    assert np.abs(ours - truth).max() <= allowed


def test_a_state_has_the_fields_of_the_documents():
    names = [field.name for field in dataclasses.fields(TrainState)]
    assert names == list(
        itertools.chain(
            ["step", "microstep", "updates", "params", "opt_state"],
            ["ema", "key", "scale", "accumulation"],
        )
    )

"""DPO: its loss against trl's formula, its frozen reference, and that it learns preferences."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew import Trainer, metrics
from dew.artifacts import TextSamples
from dew.data import Dataset
from dew.errors import InputRefused
from dew.evaluation import evaluate
from dew.evaluation.mean_loss import MeanLoss
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.base import Step
from dew.objectives.log_probs import prompts_alone
from dew.objectives.preference import DPOObjective, preference_losses
from dew.training.progress import Silent

KEY = jax.random.key(2)
MODEL = CausalTransformer(
    vocab_size=23,
    emb_features=16,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    mlp_features=32,
    max_seq_len=16,
)
OBJECTIVE = DPOObjective(MODEL, 8, beta=0.3)
FORWARD = jax.jit(MODEL.apply)
LOSS = jax.jit(OBJECTIVE.loss)


def pairs(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Prompts of one to three tokens; a chosen completion is all 3 and a rejected one all 7."""
    generator = np.random.default_rng(seed)
    batch = {}
    starts = generator.integers(1, 4, count)[:, None]
    prompt = generator.integers(8, 23, (count, 8))
    index = np.arange(8)[None]
    for side, token in (("chosen", 3), ("rejected", 7)):
        ends = starts + generator.integers(1, 5, count)[:, None]
        completion = (index >= starts) & (index < ends)
        tokens = np.where(index < starts, prompt, np.where(completion, token, 0))
        batch |= {side: tokens.astype(np.int32), f"{side}_completion": completion}
    return batch


@pytest.fixture(scope="module")
def variables():
    fresh = jax.jit(OBJECTIVE.init)(jax.random.key(1))
    return jax.tree.map(lambda leaf: 3 * leaf, fresh)


def moved(variables, amount=0.2):
    """Variables a little off, as after some steps."""
    leaves, tree = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(5), len(leaves))
    return jax.tree.unflatten(
        tree,
        [
            leaf + amount * jax.random.normal(key, leaf.shape)
            for leaf, key in zip(leaves, keys, strict=True)
        ],
    )


def step_of(reference) -> Step:
    return Step(jnp.zeros((), jnp.int32), jax.random.key(0), reference)


def by_hand(variables, batch, side):
    """Oracle: each completion token's log-softmax over all logits, row by row, in float64."""
    logits = np.asarray(FORWARD(variables, batch[side]), np.float64)
    total = []
    for row, tokens, kept in zip(logits, batch[side], batch[f"{side}_completion"], strict=True):
        at = [i for i in range(1, 8) if kept[i]]
        scores = [row[i - 1][tokens[i]] - np.log(np.exp(row[i - 1]).sum()) for i in at]
        total.append(sum(scores))
    return np.array(total)


@pytest.mark.torch
def test_loss_and_gradient_are_the_papers_in_float64(variables):
    """Oracle: equation 7 of Rafailov et al. written in torch, on the same log-probabilities."""
    import torch

    objective = DPOObjective(MODEL, 8, beta=0.3, label_smoothing=0.1)
    smoothing = 0.1
    batch = pairs(6) | {"weights": np.array([1, 2, 0, 1, 1, 0.5], np.float32)}
    live = moved(variables)
    sums = {
        (who, side): torch.tensor(by_hand(values, batch, side), requires_grad=who == "policy")
        for who, values in (("policy", live), ("reference", variables))
        for side in ("chosen", "rejected")
    }
    ratio = (sums["policy", "chosen"] - sums["reference", "chosen"]) - (
        sums["policy", "rejected"] - sums["reference", "rejected"]
    )
    sigmoid = torch.nn.functional.logsigmoid
    losses = -(1 - smoothing) * sigmoid(0.3 * ratio) - smoothing * sigmoid(-0.3 * ratio)
    weights = torch.tensor(batch["weights"].astype(np.float64))
    wanted = (losses * weights).sum() / weights.sum()
    loss, aux = jax.jit(objective.loss)(live, batch, step_of(variables))
    assert float(loss.value) == pytest.approx(wanted.item(), rel=2e-6)
    reward = 0.3 * (sums["policy", "chosen"] - sums["reference", "chosen"])
    mean = (reward * weights).sum() / weights.sum()
    assert float(aux.metrics["rewards/chosen"].value) == pytest.approx(mean.item(), rel=1e-5)
    right = ((ratio > 0) * weights).sum() / weights.sum()
    assert float(aux.metrics["rewards/accuracies"].value) == pytest.approx(right.item())
    wanted.backward()
    margins = jnp.asarray(0.3 * ratio.detach().numpy(), jnp.float32)
    slope = jax.grad(lambda m: jnp.sum(preference_losses(m, smoothing) * batch["weights"]))(margins)
    ours = 0.3 * slope / batch["weights"].sum()
    np.testing.assert_allclose(ours, sums["policy", "chosen"].grad.numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_the_gradient_agrees_with_finite_differences(variables):
    """Oracle: central differences along a random direction."""
    batch, live = pairs(6), moved(variables)

    def loss(values):
        return LOSS(values, batch, step_of(variables))[0].value

    way = moved(jax.tree.map(jnp.zeros_like, live), 1.0)

    def at(amount):
        return float(loss(jax.tree.map(lambda a, b: a + amount * b, live, way)))

    gradient = jax.grad(loss)(live)
    along = sum(
        float(jnp.vdot(a, b)) for a, b in zip(*map(jax.tree.leaves, (gradient, way)), strict=True)
    )
    assert along == pytest.approx((at(1e-3) - at(-1e-3)) / 2e-3, rel=2e-2)


def test_a_model_at_its_reference_has_no_margin(variables):
    """Closed form: log 2 for every pair, and no pair told right."""
    loss, aux = LOSS(variables, pairs(6), step_of(variables))
    assert float(loss.value) == pytest.approx(np.log(2), rel=1e-6)
    assert float(aux.metrics["rewards/margins"].value) == 0
    assert float(aux.metrics["rewards/accuracies"].value) == 0


def test_left_padding_changes_nothing_where_the_mask_names_it(variables):
    batch = pairs(4)
    objective = DPOObjective(MODEL, 10, beta=0.3)
    wide = {}
    for side in ("chosen", "rejected"):
        ends = np.pad(np.ones((4, 8), np.int32), ((0, 0), (2, 0)))
        wide |= {
            side: np.pad(batch[side], ((0, 0), (2, 0)), constant_values=9),
            f"{side}_completion": np.pad(batch[f"{side}_completion"], ((0, 0), (2, 0))),
            f"{side}_mask": ends,
        }
    plain = jax.jit(OBJECTIVE.pair_log_probs)(variables, batch)
    padded = jax.jit(objective.pair_log_probs)(variables, wide)
    np.testing.assert_allclose(plain.chosen, padded.chosen, atol=1e-5)
    np.testing.assert_allclose(plain.rejected, padded.rejected, atol=1e-5)


@pytest.mark.parametrize("chunk", [5, 1000])
def test_log_probabilities_do_not_depend_on_the_chunk(variables, chunk):
    batch = pairs(3)
    scores = jax.jit(DPOObjective(MODEL, 8, chunk=chunk).pair_log_probs)(variables, batch)
    np.testing.assert_allclose(scores.chosen, by_hand(variables, batch, "chosen"), rtol=1e-5)
    np.testing.assert_allclose(scores.rejected, by_hand(variables, batch, "rejected"), rtol=1e-5)


@pytest.fixture(scope="module")
def run():
    """A run of 30 steps: its trainer's state, the variables it started from, and its log."""
    data = Dataset(
        train=lambda partition: map(lambda n: pairs(16, n), itertools.count()),
        val=lambda partition: iter([pairs(16, 900), pairs(8, 901)]),
        records=16,
        batch=16,
    )
    seen = {}
    trainer = Trainer(OBJECTIVE, optax.adam(0.01), key=KEY)
    started = jax.jit(OBJECTIVE.init)(KEY)
    state = trainer.fit(
        data,
        steps=30,
        log_every=10,
        eval_every=30,
        metrics=(metrics.accuracy(), MeanLoss()),
        variables=started,
        on_report=lambda scalars, step: seen.update({step: seen.get(step, {}) | dict(scalars)}),
        progress=Silent(),
    )
    return started, state, seen, data


def test_training_raises_the_chosen_reward_over_the_rejected_one(run):
    _, _, seen, _ = run
    assert seen[30]["train/loss"] < 0.6 * seen[10]["train/loss"] < np.log(2)
    assert seen[30]["train/rewards/accuracies"] == 1.0
    assert seen[30]["train/rewards/margins"] > seen[10]["train/rewards/margins"] > 0
    assert seen[30]["val/accuracy"] == 1.0
    assert seen[30]["val/loss"] < np.log(2)


def test_the_reference_stays_exactly_what_the_run_started_from(run):
    started, state, _, _ = run
    jax.tree.map(np.testing.assert_array_equal, dict(state.averaged), dict(started))
    assert not np.array_equal(
        state.params["params"]["embed"]["table"], started["params"]["embed"]["table"]
    )


def test_a_preview_is_written_by_the_live_policy_and_scores_need_the_reference(run):
    _, state, _, data = run
    event = evaluate(
        OBJECTIVE, state.params, data.val, key=KEY, averaged=state.averaged, preview=True
    )
    (samples,) = event.previews
    assert isinstance(samples, TextSamples)
    assert samples.tokens.shape == (4, 8)
    # The live policy has learned to write 3; the reference writes each of 23 tokens alike.
    assert (samples.tokens == 3).mean() > 0.5
    with pytest.raises(InputRefused, match=r"averaged=state\.averaged"):
        evaluate(OBJECTIVE, state.params, data.val, key=KEY, metrics=(MeanLoss(),))


def test_prompts_alone_stand_at_the_right_end():
    tokens = jnp.asarray([[5, 6, 7, 8], [9, 1, 2, 3]])
    mask = jnp.asarray([[0, 1, 1, 1], [1, 1, 1, 0]])
    completion = jnp.asarray([[0, 0, 0, 1], [0, 1, 1, 0]])
    moved_tokens, real = prompts_alone(tokens, mask, completion)
    assert moved_tokens.tolist() == [[0, 0, 6, 7], [0, 0, 0, 9]]
    assert real.tolist() == [[0, 0, 1, 1], [0, 0, 0, 1]]


def test_settings_that_cannot_work_are_refused_together():
    with pytest.raises(InputRefused, match="length 17 for 16 positions, beta 0, label_smoothing 1"):
        DPOObjective(MODEL, 17, beta=0, label_smoothing=1)
    batch = pairs(2)
    del batch["rejected_completion"]
    with pytest.raises(InputRefused, match="no field 'rejected_completion'"):
        OBJECTIVE.inputs.check(batch)

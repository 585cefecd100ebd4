"""GRPO: losses and advantages against trl's formulas, ratios of 1, rollouts, and learning."""

from __future__ import annotations

import copy
import functools
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew import Checkpoints, Trainer
from dew.artifacts import TextSamples
from dew.data import Dataset
from dew.errors import InputRefused
from dew.evaluation import evaluate
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.base import Step
from dew.objectives.grpo import (
    GRPOObjective,
    aggregated,
    clipped_losses,
    divergence_estimate,
    group_advantages,
    probability_ratio,
)
from dew.objectives.rollouts import GRPORollouts
from dew.training.progress import Silent

KEY = jax.random.key(2)
MODEL = CausalTransformer(
    vocab_size=11,
    emb_features=16,
    num_layers=1,
    num_heads=2,
    mlp_features=32,
    max_seq_len=16,
)
FILTERED = {"temperature": 0.7, "top_k": 6, "top_p": 0.9}


def objective_of(**options) -> GRPOObjective:
    return GRPOObjective(MODEL, 3, 5, **{"group": 4, "ends": (10,), "pad": 0, **options})


class Prompts:
    """An endless stream of two random prompts a batch whose position is a number."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        return self

    def __next__(self):
        generator = np.random.default_rng(self.next)
        self.next += 1
        mask = np.array([[1, 1, 1], [0, 1, 1]])
        return {
            "prompt": generator.integers(1, 10, (2, 3)).astype(np.int32) * mask,
            "prompt_mask": mask,
            "place": np.array([self.next, -self.next]),
        }

    def get_state(self) -> bytes:
        return json.dumps(self.next).encode()

    def set_state(self, state: bytes) -> None:
        self.next = json.loads(state)


def threes(*, completion_ids, **others):
    """The share of token 3 in a completion."""
    return [ids.count(3) / len(ids) for ids in completion_ids]


def rollouts_of(objective, reward=threes) -> GRPORollouts:
    prompts = Dataset(
        train=lambda partition: Prompts(),
        val=lambda partition: iter([next(Prompts())]),
        records=64,
        batch=2,
    )
    return GRPORollouts(objective, prompts, reward, key=jax.random.key(7))


@pytest.fixture(scope="module")
def variables():
    fresh = jax.jit(objective_of().init)(jax.random.key(1))
    return jax.tree.map(lambda leaf: 5 * leaf, fresh)


@pytest.fixture(scope="module")
def drawn(variables):
    """An objective with every sampling rule, and a batch that it drew."""
    objective = objective_of(iterations=2, beta=0.1, **FILTERED)
    return objective, rollouts_of(objective).drawn(variables, next(Prompts()), 0)


def tokens_of(seed: int, shape=(4, 6)):
    """Seeded log-probabilities of three policies, advantages and a ragged mask, in float64."""
    generator = np.random.default_rng(seed)
    policy, old, reference = -generator.exponential(1.0, (3, *shape))
    old = policy + 0.4 * generator.normal(size=shape)
    kept = (
        np.arange(shape[1])[None] < generator.integers(1, shape[1] + 1, shape[0])[:, None]
    ) * 1.0
    return policy, old, reference, generator.normal(size=(shape[0], 1)), kept


@pytest.mark.torch
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("high", [0.2, 0.28])
def test_losses_and_gradients_are_the_papers_in_float64(loss_type, high):
    """Oracle: equations of the three papers written in torch, as trl 1.16 adds them up."""
    import torch

    policy, old, reference, advantages, kept = tokens_of(3)
    p, o, q, a, m = (torch.tensor(x) for x in (policy, old, reference, advantages, kept))
    p.requires_grad_(True)
    ratio = torch.exp(p - o)
    surrogate = -torch.min(ratio * a, torch.clamp(ratio, 1 - 0.2, 1 + high) * a)
    losses = surrogate + 0.04 * (torch.exp(q - p) - (q - p) - 1)
    wanted = {
        "dapo": (losses * m).sum() / m.sum(),
        "grpo": ((losses * m).sum(1) / m.sum(1)).mean(),
        "dr_grpo": (losses * m).sum() / (4 * 6),
    }[loss_type]
    wanted.backward()

    def ours(values):
        losses = clipped_losses(probability_ratio(values, old), advantages, 0.2, high)
        losses = losses + 0.04 * divergence_estimate(values, reference)
        return aggregated(losses, jnp.asarray(kept, jnp.float32), loss_type).value

    value, gradient = jax.value_and_grad(ours)(jnp.asarray(policy, jnp.float32))
    assert float(value) == pytest.approx(wanted.item(), rel=2e-6)
    np.testing.assert_allclose(gradient, p.grad.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.torch
def test_advantages_are_the_rewards_standardised_in_their_group():
    """Oracle: torch's unbiased deviation plus 1e-4, as trl."""
    import torch

    rewards = np.random.default_rng(0).normal(size=12)
    table = torch.tensor(rewards).view(3, 4)
    centred = table - table.mean(1, keepdim=True)
    for scale, spread in (
        ("group", table.std(1, keepdim=True) + 1e-4),
        ("batch", table.std() + 1e-4),
        ("none", torch.ones(())),
    ):
        ours = group_advantages(rewards, 4, scale)
        np.testing.assert_allclose(ours, (centred / spread).numpy().reshape(-1), rtol=1e-12)


def test_a_completion_that_could_not_be_scored_moves_nothing():
    rewards = np.array([1.0, np.nan, 3.0, 2.0, np.nan, np.nan, np.nan, np.nan, 5, 5, 5, 5])
    advantages = group_advantages(rewards, 4)
    np.testing.assert_allclose(advantages[:4], np.array([-1, 0, 1, 0]) / (1 + 1e-4), rtol=1e-12)
    np.testing.assert_array_equal(advantages[4:], np.zeros(8))


def test_the_sampler_and_the_trainer_give_one_log_probability(drawn, variables):
    """Temperature, top-k and top-p included, the ratio of the first step is 1."""
    objective, batch = drawn
    scores = jax.jit(objective.log_probs)(variables, batch)
    kept = batch["mask"][:, 3:] == 1
    np.testing.assert_allclose(
        np.asarray(scores.drawn)[kept], batch["old_log_probs"][kept], atol=5e-6
    )
    ratio = np.asarray(probability_ratio(scores.drawn, batch["old_log_probs"]))[kept]
    np.testing.assert_allclose(ratio, 1.0, atol=5e-6)
    assert (np.asarray(scores.plain)[kept] < np.asarray(scores.drawn)[kept]).any()


def test_the_first_step_has_a_ratio_of_one_no_clipping_and_no_divergence(drawn, variables):
    """Closed form: the loss is minus the mean advantage of the tokens; KL to itself is 0."""
    objective, batch = drawn
    step = Step(jnp.zeros((), jnp.int32), KEY, variables)
    loss, aux = jax.jit(objective.loss)(variables, batch, step)
    kept = batch["mask"][:, 3:] == 1
    wanted = -(batch["advantages"][:, None] * kept).sum() / kept.sum()
    assert float(loss.value) == pytest.approx(wanted, abs=1e-5)
    assert float(aux.metrics["kl"].value) == pytest.approx(0, abs=1e-6)
    assert float(aux.metrics["clip_ratio/region_mean"].value) == 0
    assert float(aux.metrics["reward"].value) == pytest.approx(batch["rewards"].mean(), rel=1e-6)
    assert float(aux.metrics["completions/mean_length"].value) == kept.sum() / 8


def test_a_token_that_the_policy_now_rules_out_gives_no_gradient():
    gradient = jax.grad(
        lambda x: clipped_losses(probability_ratio(x, jnp.zeros(2)), jnp.ones(2), 0.2, 0.2).sum()
    )(jnp.asarray([-jnp.inf, 0.0]))
    assert gradient.tolist() == [0.0, -1.0]


def test_the_reward_sees_ids_or_text_and_the_columns_of_its_prompt(variables):
    seen = {}

    def reward(**given):
        seen.update(given)
        return [None, *([0.5] * 7)]

    class Letters:
        def decode(self, ids):
            return "".join(chr(97 + i) for i in ids)

    plain = rollouts_of(objective_of(), reward)
    batch = plain.drawn(variables, next(Prompts()), 0)
    assert set(seen) == {"prompts", "completions", "completion_ids", "place"}
    assert seen["place"] == [1] * 4 + [-1] * 4
    assert [len(ids) for ids in seen["prompts"]] == [3] * 4 + [2] * 4
    assert seen["completions"] == seen["completion_ids"]
    assert all(ids.count(10) <= 1 and 10 not in ids[:-1] for ids in seen["completions"])
    assert np.isnan(batch["rewards"][0])
    assert batch["advantages"][0] == 0
    assert "old_log_probs" not in batch
    ids = seen["completion_ids"]
    GRPORollouts(plain.objective, plain.prompts, reward, key=plain.key, processor=Letters()).drawn(
        variables, next(Prompts()), 0
    )
    assert seen["completions"] == [Letters().decode(row) for row in ids]


@functools.cache
def trainer_of(iterations: int) -> Trainer:
    """A trainer; the runs of one kind share what they compiled."""
    objective = objective_of(iterations=iterations, beta=0.01)
    trainer = Trainer(objective, optax.adam(0.02), key=KEY)
    trainer.beginning()
    trainer.compiled_step()
    return trainer


def fit(directory=None, *, steps, iterations=1, reward=threes, **options):
    trainer = copy.copy(trainer_of(iterations))
    trainer.checkpoints = None if directory is None else Checkpoints(str(directory))
    data = rollouts_of(trainer.objective, reward).dataset()
    return trainer.fit(data, steps=steps, progress=Silent(), **options)


@pytest.mark.slow
def test_the_reward_rises_and_the_policy_that_draws_is_the_one_just_trained():
    log = []
    state = fit(steps=40, log_every=10, on_report=lambda scalars, step: log.append(dict(scalars)))
    rewards = [scalars["train/reward"] for scalars in log if "train/reward" in scalars]
    assert rewards[0] < 0.35
    assert rewards[-1] > 0.8
    objective = trainer_of(1).objective
    val = rollouts_of(objective).prompts.val
    event = evaluate(objective, state.params, val, key=KEY, preview=True)
    assert isinstance(event.previews[0], TextSamples)
    assert (event.previews[0].tokens == 3).mean() > 0.6


def test_every_batch_is_drawn_after_the_step_before_it():
    """Oracle: the same rounds by hand, each drawn from the state of a run that ended there."""
    batches = []

    def spied(**given):
        batches.append(given["completion_ids"])
        return threes(**given)

    fit(steps=2, reward=spied)
    assert len(batches) == 2
    prompts, again, rollouts = Prompts(), [], rollouts_of(trainer_of(1).objective)
    for number in range(2):
        out = rollouts.drawn(fit(steps=number).params, next(prompts), number)
        rows = zip(out["text"][:, 3:], out["mask"][:, 3:], strict=True)
        again.append([tokens[real == 1].tolist() for tokens, real in rows])
    assert batches == again


@pytest.mark.parametrize("stop", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_run_that_was_cut_goes_on_with_the_same_draws(tmp_path, stop):
    """Cut at a batch's end and in the middle of its uses; oracle: the run left alone."""
    whole = fit(tmp_path / "whole", steps=5, iterations=2, checkpoint_every=1)
    fit(tmp_path / "cut", steps=stop, iterations=2, checkpoint_every=1)
    resumed = fit(tmp_path / "cut", steps=5, iterations=2, checkpoint_every=1)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)


def test_a_reward_that_fails_ends_the_run_at_once():
    def failing(**given):
        raise OSError("the judge is out")

    with pytest.raises(OSError, match="the judge is out"):
        fit(steps=2, reward=failing)
    with pytest.raises(InputRefused, match="gave 1 rewards for 8 completions"):
        fit(steps=2, reward=lambda **given: [1.0])


@pytest.mark.slow
def test_a_step_that_fails_leaves_no_thread_waiting():
    """The stream waits for a step that never comes; closing must not take its ten seconds."""

    def broken(scalars, step):
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        fit(steps=4, log_every=1, on_report=broken)
    assert not [t for t in threading.enumerate() if t.name == "prefetch" and t.is_alive()]


def test_settings_that_cannot_work_are_refused_together():
    with pytest.raises(InputRefused, match=r"12 prompt tokens and 5 new ones.*group 1.*'ppo'"):
        GRPOObjective(MODEL, 12, 5, group=1, loss_type="ppo")

"""Language modelling losses against the loss written out over all logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.errors import InputRefused
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.lora import ADAPTED, LoRA, merged
from dew.objectives.base import Ratio, Step
from dew.objectives.lm import LMObjective, LoRAObjective, target_weights
from dew.objectives.vocabulary_loss import token_losses, total_loss

STEP = Step(jnp.zeros((), jnp.int32), jax.random.key(0))
MODEL = CausalTransformer(
    vocab_size=37,
    emb_features=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    mlp_features=32,
    max_seq_len=16,
)


@pytest.fixture(scope="module")
def variables():
    return MODEL.init(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))


@pytest.fixture(scope="module")
def batch():
    generator = np.random.default_rng(0)
    return {
        "text": jnp.asarray(generator.integers(0, 37, (3, 9)), jnp.int32),
        "segments": jnp.asarray(
            [[1, 1, 1, 2, 2, 2, 3, 3, 0], [1] * 9, [1, 1, 0, 0, 0, 0, 0, 0, 0]], jnp.int32
        ),
    }


def _written_out(variables, batch):
    targets, weights = target_weights(batch)
    logits = MODEL.apply(variables, batch["text"][:, :-1], segments=batch["segments"][:, :-1])
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]
    return jnp.sum(losses * weights) / jnp.sum(weights)


@pytest.mark.parametrize(
    "chunk", [5, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 24, 1000))]
)
def test_loss_and_gradient_do_not_depend_on_the_chunk(variables, batch, chunk):
    objective = LMObjective(MODEL, seq_len=8, chunk=chunk)
    loss, gradient = jax.value_and_grad(lambda v: objective.loss(v, batch, STEP).value)(variables)
    wanted, wanted_gradient = jax.value_and_grad(_written_out)(variables, batch)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient, wanted_gradient
    )


def test_no_array_of_all_logits_is_ever_built(batch):
    objective = LMObjective(MODEL.clone(vocab_size=5000), seq_len=8, chunk=4)
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    step = jax.jit(jax.value_and_grad(lambda v, b: objective.loss(v, b, STEP).value))
    text = step.lower(shapes, batch).compile().as_text()
    assert "f32[4,5000]" in text
    assert "f32[24,5000]" not in text
    assert "f32[3,8,5000]" not in text


def test_targets_are_real_tokens_that_follow_one_of_their_own_document(batch):
    _, weights = target_weights(batch)
    assert weights.tolist() == [
        [1, 1, 0, 1, 1, 0, 1, 0],
        [1, 1, 1, 1, 1, 1, 1, 1],
        [1, 0, 0, 0, 0, 0, 0, 0],
    ]


def test_a_target_without_weight_gives_nothing_whatever_its_logits():
    hidden = jnp.asarray([[1.0, 0.0], [jnp.inf, 0.0]])
    table = jnp.asarray([[1.0, 0.0], [0.0, 1.0]])
    targets, weights = jnp.asarray([0, 1]), jnp.asarray([1.0, 0.0])
    # Closed form: log(1 + e^-1) for logits (1, 0) and target 0.
    assert float(total_loss(hidden, table, targets, weights, 1)) == pytest.approx(
        np.log1p(np.exp(-1.0)), rel=1e-6
    )


def test_token_losses_match_a_uniform_model_in_closed_form():
    losses = token_losses(jnp.zeros((5, 3)), jnp.ones((8, 3)), jnp.arange(5), chunk=2)
    np.testing.assert_allclose(losses, np.full(5, np.log(8)), rtol=1e-6)


def test_evaluation_scores_are_the_losses_of_the_loss(variables, batch):
    objective = LMObjective(MODEL, seq_len=8, chunk=7)
    scores = objective.evaluate(variables, batch, STEP)
    ratio = objective.loss(variables, batch, STEP)
    assert float(jnp.sum(scores.losses * scores.weights)) == pytest.approx(
        float(ratio.total), rel=1e-6
    )
    assert float(jnp.sum(scores.weights)) == float(ratio.mass)


def test_ratios_add_and_nothing_counted_is_zero():
    together = Ratio(jnp.float32(6), jnp.float32(2)) + Ratio(jnp.float32(1), jnp.float32(3))
    assert float(together.value) == pytest.approx(7 / 5)
    assert float(Ratio(jnp.float32(0), jnp.float32(0)).value) == 0
    assert float(jax.grad(lambda m: Ratio.of(Ratio(jnp.float32(2), m)).value)(jnp.float32(4))) == 0


@pytest.mark.slow
def test_fresh_adapters_change_nothing_and_merged_ones_equal_the_low_rank_path(variables, batch):
    lora = LoRA(rank=2, alpha=6, targets=tuple(ADAPTED))
    objective = LoRAObjective(MODEL, 8, lora)
    started = objective.init(jax.random.key(2), variables)
    plain = LMObjective(MODEL, 8)
    assert float(objective.loss(started, batch, STEP).value) == pytest.approx(
        float(plain.loss(variables, batch, STEP).value), rel=1e-6
    )
    adapters = jax.tree.map(
        lambda x: 0.1 * jax.random.normal(jax.random.key(3), x.shape), started["params"]
    )
    trained = {"params": adapters, "frozen": started["frozen"]}
    whole = {"params": merged(variables["params"], adapters, lora.scale)}
    assert float(objective.loss(trained, batch, STEP).value) == pytest.approx(
        float(plain.loss(whole, batch, STEP).value), rel=1e-5
    )


def test_the_adapter_scale_is_alpha_over_rank():
    # By hand: ones of shape 4x8 times 8x4 is 8 everywhere, times 16 / 8 is 16; over 4 rows of a
    # 4x4 kernel the sum of one row is 64.
    params = {"layers": {"mlp": {"up": {"kernel": jnp.zeros((1, 4, 4))}}}}
    adapters = {"layers": {"mlp": {"up": {"a": jnp.ones((1, 4, 8)), "b": jnp.ones((1, 8, 4))}}}}
    kernel = merged(params, adapters, LoRA(rank=8, alpha=16).scale)["layers"]["mlp"]["up"]["kernel"]
    assert float(jnp.ones(4) @ kernel[0] @ jnp.ones(4)) == 4 * 64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LoRA(rank=0), "rank is 0; it must be at least 1"),
        (lambda: LoRA(targets=("attention/quary",)), "did you mean 'attention/query'"),
        (lambda: LMObjective(MODEL, seq_len=17), "seq_len 17 does not fit a model of 16 positions"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, message):
    with pytest.raises(InputRefused, match=message):
        make()


def test_a_batch_of_another_shape_is_refused_with_both_shapes(batch):
    with pytest.raises(InputRefused, match=r"'text' is \(3, 9\); expected \(batch, 5\)"):
        LMObjective(MODEL, seq_len=4).inputs.check(batch)
    with pytest.raises(InputRefused, match=r"no field 'text'.*holds tokens"):
        LMObjective(MODEL, seq_len=8).inputs.check({"tokens": batch["text"]})

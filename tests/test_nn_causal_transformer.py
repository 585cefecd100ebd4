"""The decoder: padding, documents, grouped heads, masked rows, dtypes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.errors import InputRefused
from dew.nn.attention import attend
from dew.nn.backbones.causal_transformer import CausalTransformer, token_positions

SIZES = {
    "vocab_size": 31,
    "emb_features": 16,
    "num_layers": 2,
    "num_heads": 4,
    "mlp_features": 24,
    "max_seq_len": 16,
}
KINDS = {
    "llama": {"num_kv_heads": 2},
    "gpt2": {
        "norm": "layer",
        "mlp": "plain",
        "positions": "learned",
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
    },
}


def _shifted(leaf: jax.Array) -> jax.Array:
    """Move a leaf off its initial value, so that no scale is 1 and no bias 0."""
    return leaf + 0.05 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)


@pytest.fixture(scope="module", params=sorted(KINDS))
def model_and_variables(request):
    model = CausalTransformer(**SIZES, **KINDS[request.param])
    variables = model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return model, jax.tree.map(_shifted, variables)


def test_padding_on_either_side_changes_no_real_logit(model_and_variables):
    # The right value is the unpadded run's.
    model, variables = model_and_variables
    prompt = jnp.asarray([[5, 6, 7]], jnp.int32)
    alone = model.apply(variables, prompt)
    left = model.apply(
        variables, jnp.asarray([[0, 0, 5, 6, 7]], jnp.int32), mask=jnp.asarray([[0, 0, 1, 1, 1]])
    )
    right = model.apply(
        variables, jnp.asarray([[5, 6, 7, 9, 9]], jnp.int32), mask=jnp.asarray([[1, 1, 1, 0, 0]])
    )
    np.testing.assert_allclose(left[:, 2:], alone, atol=2e-6)
    np.testing.assert_allclose(right[:, :3], alone, atol=2e-6)


def test_documents_in_one_row_do_not_see_each_other(model_and_variables):
    model, variables = model_and_variables
    row = jnp.asarray([[5, 6, 7, 8, 9, 3, 0]], jnp.int32)
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2, 0]], jnp.int32)
    packed = model.apply(variables, row, segments=segments)
    np.testing.assert_allclose(packed[:, :3], model.apply(variables, row[:, :3]), atol=2e-6)
    np.testing.assert_allclose(packed[:, 3:6], model.apply(variables, row[:, 3:6]), atol=2e-6)
    changed = model.apply(variables, row.at[0, 1].set(20), segments=segments)
    assert np.array_equal(changed[:, 3:6], packed[:, 3:6])


def test_a_later_token_changes_no_earlier_logit(model_and_variables):
    model, variables = model_and_variables
    row = jnp.asarray([[1, 2, 3, 4]], jnp.int32)
    before, after = model.apply(variables, row), model.apply(variables, row.at[0, 3].set(9))
    assert np.array_equal(before[:, :3], after[:, :3])
    assert not np.allclose(before[:, 3], after[:, 3])


@pytest.mark.slow
def test_remat_changes_memory_and_no_gradient(model_and_variables):
    model, variables = model_and_variables
    row = jnp.asarray([[1, 2, 3, 4]], jnp.int32)

    def gradient(of: CausalTransformer):
        return jax.grad(lambda v: jnp.sum(jnp.square(of.apply(v, row))))(variables)

    plain, again = gradient(model), gradient(model.clone(remat=True))
    assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, atol=1e-4), plain, again))


def test_query_head_i_reads_key_head_i_over_group():
    # CASES P026, written out head by head in float64.
    generator = np.random.default_rng(1)
    query = generator.normal(size=(1, 3, 4, 8))
    key, value = generator.normal(size=(2, 1, 3, 2, 8))
    wanted = np.zeros_like(query)
    for head in range(4):
        scores = query[0, :, head] @ key[0, :, head // 2].T / np.sqrt(8)
        scores[np.triu_indices(3, 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted[0, :, head] = weights / weights.sum(-1, keepdims=True) @ value[0, :, head // 2]
    ours = attend(*(jnp.asarray(x, jnp.float32) for x in (query, key, value)), None)
    np.testing.assert_allclose(ours, wanted, atol=1e-6)


def test_a_row_that_sees_nothing_is_finite_with_finite_gradients():
    # CASES P042.
    query = jnp.ones((1, 2, 1, 4))
    mask = jnp.asarray([[[[True, False], [False, False]]]])

    def total(x):
        return jnp.sum(attend(x, x, x, mask)[:, 0])

    value, gradient = jax.value_and_grad(total)(query)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_positions_count_real_tokens_and_start_anew_in_each_document():
    mask = jnp.asarray([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert token_positions((2, 4), mask, None).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]
    segments = jnp.asarray([[1, 1, 2, 2, 2, 0]])
    assert token_positions((1, 6), None, segments).tolist() == [[0, 1, 0, 1, 2, 0]]


@pytest.mark.parametrize("changes", [{}, {"tied_head": False, "param_dtype": "bfloat16"}])
def test_the_declared_shapes_are_those_that_init_makes(model_and_variables, changes):
    model = model_and_variables[0].clone(**changes)
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    traced = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    assert model.parameter_shapes() == traced


def test_compute_dtype_and_storage_dtype_are_two_things():
    model = CausalTransformer(**SIZES, dtype="bfloat16", param_dtype="bfloat16")
    variables = model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(variables)} == {"bfloat16"}
    assert model.apply(variables, jnp.zeros((1, 2), jnp.int32)).dtype == jnp.float32
    mixed = CausalTransformer(**SIZES, dtype="bfloat16")
    kept = mixed.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(kept)} == {"float32"}
    hidden = mixed.apply(kept, jnp.zeros((1, 2), jnp.int32), method="hidden")
    assert hidden.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "16 is not divisible by num_heads 3"),
        ({"num_kv_heads": 3}, "num_heads 4 is not divisible by num_kv_heads 3"),
        ({"norm": "batch"}, "norm is 'batch'; expected one of rms, rms_offset, layer"),
        ({"attention_impl": "flash"}, "attention_impl 'flash' is not known"),
    ],
)
def test_choices_that_do_not_exist_are_refused(changes, message):
    with pytest.raises(InputRefused, match=message):
        CausalTransformer(**(SIZES | changes)).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))

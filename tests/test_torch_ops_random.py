"""Operators that draw: shapes and dtypes as torch's, and the distributions that torch documents."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridges.torch.ops import operators

KEY = jax.random.key(3)
# A mean of n draws strays more than 5 standard errors in one of two million tries.
COUNT = 20_000


def _op(name: str):
    return operators()[f"aten.{name}"].function


def _errors(x: jax.Array, mean: float, deviation: float) -> float:
    """How many standard errors the mean of the draws is away from its expectation."""
    values = np.asarray(x, np.float64)
    return abs(values.mean() - mean) / (deviation / np.sqrt(values.size))


DRAWS = {
    "rand.default": ([COUNT], {"dtype": "float32"}, 0.5, 12**-0.5),
    "rand.generator": ([COUNT], {"dtype": "float32"}, 0.5, 12**-0.5),
    "randn.default": ([COUNT], {"dtype": "float32"}, 0.0, 1.0),
    "randn.generator": ([COUNT], {"dtype": "float32"}, 0.0, 1.0),
    "rand_like.default": (jnp.zeros(COUNT), {"dtype": "float32"}, 0.5, 12**-0.5),
    "randn_like.default": (jnp.zeros(COUNT), {"dtype": "float32"}, 0.0, 1.0),
    "bernoulli.default": (jnp.full(COUNT, 0.3), {}, 0.3, 0.21**0.5),
    "normal_functional.default": (jnp.zeros(COUNT), {"mean": 2.0, "std": 3.0}, 2.0, 3.0),
    "exponential.default": (jnp.zeros(COUNT), {"lambd": 2.0}, 0.5, 0.5),
    "bernoulli.p": (jnp.zeros(COUNT), {"p": 0.8}, 0.8, 0.4),
}


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_draws_have_the_mean_and_deviation_that_torch_documents(name):
    first, options, mean, deviation = DRAWS[name]
    drawn = _op(name)(first, **options, key=KEY)
    assert drawn.shape == (COUNT,)
    assert drawn.dtype == jnp.float32
    assert _errors(drawn, mean, deviation) < 5
    # The variance of a squared deviation is at most 8 sigma^4 for these distributions.
    spread = np.square(np.asarray(drawn, np.float64) - mean)
    assert abs(spread.mean() - deviation**2) < 5 * np.sqrt(8 / COUNT) * deviation**2


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_the_same_key_draws_the_same_and_another_key_does_not(name):
    first, options, *_ = DRAWS[name]
    one, again, other = (
        np.asarray(_op(name)(first, **options, key=key)) for key in (KEY, KEY, jax.random.key(4))
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


@pytest.mark.parametrize("name", ["rand.default", "uniform.default"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_uniform_draws_stay_below_their_upper_end(name, dtype):
    if name == "rand.default":
        drawn = _op(name)([COUNT], dtype=dtype, key=KEY)
        low, high = 0.0, 1.0
    else:
        low, high = -2.0, 3.0
        drawn = _op(name)(jnp.zeros(COUNT, dtype), low, high, key=KEY)
    assert drawn.dtype == jnp.dtype(dtype)
    values = np.asarray(drawn, np.float64)
    assert values.min() >= low
    assert values.max() < high
    assert values.max() - values.min() > 0.98 * (high - low)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_keeps_the_mean_and_scales_what_it_keeps(dtype):
    x = jnp.full((COUNT,), 2.0, dtype)
    y, kept = _op("native_dropout.default")(x, 0.25, True, key=KEY)
    assert y.dtype == jnp.dtype(dtype)
    assert kept.dtype == jnp.bool_
    assert _errors(kept, 0.75, 0.1875**0.5) < 5
    scaled = np.asarray(jnp.asarray(2 / 0.75, dtype))
    np.testing.assert_array_equal(np.asarray(y), np.where(np.asarray(kept), scaled, 0))


def test_dropout_passes_the_gradient_of_what_it_keeps():
    x = jnp.ones(100)
    (y, kept), pull = jax.vjp(lambda x: _op("native_dropout.default")(x, 0.5, True, key=KEY), x)
    (grad,) = pull((jnp.ones(100), np.zeros(100, jax.dtypes.float0)))
    np.testing.assert_array_equal(np.asarray(grad), np.where(np.asarray(kept), 2.0, 0.0))
    assert y.sum() == grad.sum()


@pytest.mark.parametrize("name", ["native_dropout.default", "dropout.default"])
@pytest.mark.parametrize(
    ("p", "train", "factor"), [(0.0, True, 1), (0.5, False, 1), (1.0, False, 1), (1.0, True, 0)]
)
def test_dropout_at_its_ends_draws_nothing(name, p, train, factor):
    x = jnp.asarray([1.0, -2.0, jnp.inf])
    result = _op(name)(x, p, train, key=KEY)
    y = result[0] if isinstance(result, tuple) else result
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x if factor else jnp.zeros(3)))
    if isinstance(result, tuple):
        assert result[1].shape == (3,)
        assert bool((result[1] == bool(factor)).all())


@pytest.mark.parametrize(("name", "args", "low"), [
    ("randint.default", (4, [COUNT]), 0), ("randint.low", (-2, 4, [COUNT]), -2),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "uint8", "bfloat16"])
def test_randint_draws_each_integer_alike_and_none_outside(name, args, low, dtype):
    if dtype == "uint8" and low < 0:
        args, low = (1, 4, [COUNT]), 1
    drawn = np.asarray(_op(name)(*args, dtype=dtype, key=KEY), np.float64)
    values, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(low, 4))
    share = 1 / len(values)
    assert np.abs(counts / COUNT - share).max() < 5 * np.sqrt(share * (1 - share) / COUNT)


@pytest.mark.parametrize("count", [0, 1, 7, 50])
def test_randperm_is_a_permutation(count):
    drawn = _op("randperm.default")(count, dtype="int64", key=KEY)
    assert drawn.dtype == jnp.int32
    np.testing.assert_array_equal(np.sort(np.asarray(drawn)), np.arange(count))


@pytest.mark.parametrize("lead", [(), (2,)])
def test_multinomial_with_replacement_follows_the_weights(lead):
    weights = jnp.broadcast_to(jnp.asarray([1.0, 0.0, 3.0]), (*lead, 3))
    drawn = _op("multinomial.default")(weights, COUNT, True, key=KEY)
    assert drawn.shape == (*lead, COUNT)
    assert drawn.dtype == jnp.int32
    assert not (drawn == 1).any()
    assert _errors(drawn == 2, 0.75, 0.1875**0.5) < 5


def test_multinomial_without_replacement_repeats_nothing_and_takes_no_zero():
    weights = jnp.broadcast_to(jnp.asarray([1.0, 0.0, 3.0, 2.0]), (500, 4))
    drawn = np.asarray(_op("multinomial.default")(weights, 3, key=KEY))
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.tile([0, 2, 3], (500, 1)))
    # The first of a draw without replacement follows the weights, too.
    assert _errors(drawn[:, 0] == 2, 0.5, 0.5) < 5


def test_a_complex_normal_draw_has_unit_variance():
    drawn = np.asarray(_op("randn.default")([COUNT], dtype="complex64", key=KEY))
    assert abs(np.mean(np.abs(drawn) ** 2) - 1) < 5 * np.sqrt(2 / COUNT)

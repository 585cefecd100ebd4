"""Convolutions along time: the gradient that is written out, against the one that JAX derives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.errors import InputRefused
from dew.nn.time_convolution import LAYOUT, PlaceConvolution, grouped, scaled


@pytest.mark.parametrize("size", [3, 13])
def test_the_gradient_in_groups_is_the_one_that_jax_derives(size: int) -> None:
    generator = np.random.default_rng(size)
    groups, length, features = 4, 11, 12
    x = jnp.asarray(generator.standard_normal((2, length + size - 1, features)), jnp.float32)
    kernel = jnp.asarray(generator.standard_normal((size, 3, features)), jnp.float32)
    ways = jnp.asarray(generator.standard_normal((2, length, features)), jnp.float32)

    def derived(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, kernel, (1,), [(0, 0)], dimension_numbers=LAYOUT, feature_group_count=groups
        )

    def slopes(function) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda x, kernel: jnp.sum(ways * function(x, kernel)), (0, 1))(x, kernel)

    ours = slopes(lambda x, kernel: grouped(x, kernel, groups))
    for found, wanted in zip(ours, slopes(derived), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_each_place_of_a_kernel_is_given_its_length() -> None:
    kernel = np.random.default_rng(0).standard_normal((5, 2, 6)).astype(np.float32)
    scale = np.array([1.0, 2.0, 0.5, -3.0, 4.0], np.float32)
    lengths = np.sqrt(np.square(np.asarray(scaled(kernel, scale))).sum(axis=(1, 2)))
    np.testing.assert_allclose(lengths, np.abs(scale), rtol=1e-6)


def test_channels_that_do_not_part_into_groups_are_refused() -> None:
    with pytest.raises(InputRefused, match="10 features cannot be convolved in 4 equal groups"):
        PlaceConvolution(10, 3, 4).init(jax.random.key(0), jnp.zeros((1, 5, 10)))

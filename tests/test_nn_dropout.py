"""Dropout of dew's layers and objectives: shares, means, gradients, and nothing where it is off."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.dropout import Dropout, Kept, dropped
from dew.nn.softmax_attention import softmax_attention
from dew.objectives.base import Step
from dew.objectives.lm import LMObjective

RATE = 0.25
SIZES = {
    "vocab_size": 16,
    "emb_features": 16,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_features": 24,
    "max_seq_len": 8,
}


class Dropping(nn.Module):
    rate: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return dropped(self, x, self.rate)


@pytest.mark.parametrize("width", [64, 65])
def test_the_share_and_the_mean_are_those_of_a_coin(width):
    """Right values: a binomial's, five standard deviations to each side."""
    x = jnp.ones((400, width))
    keys = jax.random.split(jax.random.key(0), 20)
    drawn = jax.vmap(lambda key: Dropping(RATE).apply({}, x, rngs={"dropout": key}))(keys)
    found = np.asarray(drawn)
    share, spread = (found == 0).mean(), np.sqrt(RATE * (1 - RATE) / found.size)
    assert abs(share - RATE) < 5 * spread
    assert set(np.unique(found)) == {0.0, np.float32(1 / (1 - RATE))}
    assert abs(found.mean() - 1) < 5 * spread / (1 - RATE)
    # Neighbours share a word of random bits: they are as independent as any two.
    both = ((found[..., :-1:2] == 0) & (found[..., 1::2] == 0)).mean()
    assert abs(both - RATE**2) < 5 * np.sqrt(RATE**2 / (found.size / 2))


def test_without_a_key_or_a_rate_nothing_is_changed():
    x = jnp.ones((3, 4))
    assert Dropping(RATE).apply({}, x) is x
    assert Dropping(0.0).apply({}, x, rngs={"dropout": jax.random.key(0)}) is x


def test_dropped_attention_has_the_gradients_of_its_definition():
    """Right values: softmax, mask and product written out, differentiated by jax."""
    draw = np.random.default_rng(0)
    shapes = ((2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8))
    query, key, value = (jnp.asarray(draw.normal(size=shape)) for shape in shapes)
    stays = jnp.asarray(draw.random((2, 4, 5, 5)) > RATE)
    mask = jnp.tril(jnp.ones((5, 5), bool))[None, None]
    way = jnp.asarray(draw.normal(size=(2, 5, 4, 8)))

    def ours(query, key, value):
        kept = Kept(stays, 1 / (1 - RATE))
        return jnp.sum(way * softmax_attention(query, key, value, mask, kept=kept))

    def plain(query, key, value):
        key, value = (jnp.repeat(part, 2, axis=2) for part in (key, value))
        scores = jnp.einsum("blhk,bshk->bhls", query, key) / np.sqrt(8)
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
        return jnp.sum(way * jnp.einsum("bhls,bshk->blhk", weights * stays / (1 - RATE), value))

    arguments = (query, key, value)
    np.testing.assert_allclose(ours(*arguments), plain(*arguments), rtol=1e-5)
    for one, other in zip(
        jax.grad(ours, argnums=(0, 1, 2))(*arguments),
        jax.grad(plain, argnums=(0, 1, 2))(*arguments),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_loss_draws_by_the_step_and_an_evaluation_never():
    """Expected: other keys, other losses; the mean near the loss without; rate 0 to the bit."""
    model = CausalTransformer(**SIZES)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    batch = {"text": jnp.asarray(np.random.default_rng(0).integers(0, 16, (4, 9)), jnp.int32)}
    everywhere = Dropout(*(0.1,) * 8)

    def losses(rates: Dropout, count: int) -> np.ndarray:
        objective: Any = LMObjective(model.clone(dropout=rates), 8)

        def one(key: jax.Array) -> jax.Array:
            return objective.loss(params, batch, Step(jnp.int32(0), key)).value

        return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), count)))

    off, on = losses(Dropout(), 2), losses(everywhere, 200)
    assert off[0] == off[1]
    assert len(set(on)) == 200
    assert abs(on.mean() - off[0]) < 5 * on.std() / np.sqrt(200) + 0.01
    step = Step(jnp.int32(0), jax.random.key(2))
    scored = [
        LMObjective(model.clone(dropout=rates), 8).evaluate(params, batch, step).losses
        for rates in (Dropout(), everywhere)
    ]
    np.testing.assert_array_equal(*scored)

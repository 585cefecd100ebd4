"""Attention and its own backward pass against the plain formula in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.softmax_attention import softmax_attention


def plain(query, key, value, mask, bias, scale):
    """The formula, by XLA's own differentiation."""
    repeat = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, repeat, axis=2) for x in (key, value))
    scores = jnp.einsum("blhk,bshk->bhls", query, key) * scale
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else jnp.where(mask, scores, -1e30)
    return jnp.einsum("bhls,bshk->blhk", jax.nn.softmax(scores, axis=-1), value)


def drawn(kind, heads=6, groups=6, length=7, slots=7):
    rng = np.random.default_rng(3)
    query = rng.normal(size=(2, length, heads, 4))
    key, value = rng.normal(size=(2, 2, slots, groups, 4))
    mask = np.tril(np.ones((length, slots), bool))[None, None] if "causal" in kind else None
    if "mask" in kind:
        mask = np.broadcast_to(rng.random((2, 1, 1, slots)) < 0.6, (2, 1, length, slots)).copy()
        mask[:, :, 1] = False  # a row that sees nothing
    bias = None
    if "bias" in kind:
        bias = rng.normal(size=(1 if "shared" in kind else 2, heads, length, slots))
    return [query, key, value, mask, bias], rng.normal(size=query.shape)


KINDS = {
    "open": {},
    "causal grouped": {"groups": 2},
    "mask": {},
    "mask shared bias": {},
    "bias grouped": {"groups": 3, "slots": 9},
}


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_the_formulas(kind):
    """In float64 to rounding; in float32 within twice the plain formula's own error."""
    arrays, direction = drawn(kind, **KINDS[kind])
    query, key, value, mask, bias = arrays
    if mask is not None and "mask" in kind:
        direction[:, 1] = 0  # what sees nothing must not count

    def run(function, dtype):
        given = [jnp.asarray(a, dtype) for a in (query, key, value)]
        more = () if bias is None else (jnp.asarray(bias, dtype),)

        def outputs(*parts):
            return function(*parts[:3], mask, parts[3] if more else None, 0.37)

        out, pull = jax.vjp(outputs, *given, *more)
        return [np.asarray(x, np.float64) for x in (out, *pull(jnp.asarray(direction, dtype)))]

    def ours(query, key, value, mask, bias, scale):
        return softmax_attention(query, key, value, mask, bias, scale=scale)

    with jax.enable_x64(True):
        truth, exact = run(plain, jnp.float64), run(ours, jnp.float64)
    single, other = run(ours, jnp.float32), run(plain, jnp.float32)
    for right, wide, found, theirs in zip(truth, exact, single, other, strict=True):
        scale = np.abs(right).max()
        np.testing.assert_allclose(wide, right, rtol=0, atol=1e-13 * scale)
        allowed = 2 * np.abs(theirs - right).max() + scale * np.finfo(np.float32).eps
        assert np.abs(found - right).max() <= allowed


def test_half_precision_keeps_its_dtype_and_sums_wide():
    arrays, direction = drawn("causal grouped", groups=2)
    query, key, value = (jnp.asarray(a, jnp.bfloat16) for a in arrays[:3])
    out, pull = jax.vjp(lambda *x: softmax_attention(*x, arrays[3]), query, key, value)
    parts = [out, *pull(jnp.asarray(direction, jnp.bfloat16))]
    assert {part.dtype.name for part in parts} == {"bfloat16"}
    wide = plain(*(x.astype(jnp.float32) for x in (query, key, value)), arrays[3], None, 0.5)
    np.testing.assert_allclose(np.asarray(out, np.float32), wide, rtol=0, atol=2e-2)

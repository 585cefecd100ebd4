"""Cross entropy over a large vocabulary, a chunk of tokens at a time."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from dew.nn.attention import capped


def token_losses(
    hidden: jax.Array,
    table: jax.Array,
    targets: jax.Array,
    *,
    chunk: int,
    cap: float | None = None,
) -> jax.Array:
    """Return -log softmax(hidden tableᵀ) at each target.

    Args:
        hidden: [N, D].
        table: [V, D].
        targets: int32 [N], in [0, V).
        chunk: tokens whose logits exist at one time, so that memory is chunk * V floats.
        cap: c of c tanh(logit / c), or None.

    Returns:
        float32 [N], in nats.
    """
    (hidden, targets), count = _padded((hidden, targets), chunk)

    def one(_: None, part: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        return None, _losses(_logits(part[0], table, cap), part[1])

    _, losses = jax.lax.scan(one, None, (hidden, targets))
    return losses.reshape(-1)[:count]


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def total_loss(
    hidden: jax.Array,
    table: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    chunk: int,
    cap: float | None = None,
) -> jax.Array:
    """Return sum(weights * token_losses), a float32 scalar, differentiable in hidden and table.

    The gradients are formed chunk by chunk beside the loss, while a chunk's logits exist, so
    nothing is computed twice and no [N, V] array is kept. A target of weight 0 gives nothing,
    whatever its logits. Arguments are those of `token_losses`, and `weights` is float32 [N].
    """
    (hidden, targets, weights), _ = _padded((hidden, targets, weights), chunk)

    def one(total: jax.Array, part: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        losses = _losses(_logits(part[0], table, cap), part[1])
        return total + _counted(losses, part[2]), None

    return jax.lax.scan(one, jnp.zeros((), jnp.float32), (hidden, targets, weights))[0]


def _forward(hidden, table, targets, weights, chunk, cap):
    (parts, parts_targets, parts_weights), count = _padded((hidden, targets, weights), chunk)

    def one(carry, part):
        total, table_gradient = carry
        rows, wanted, weight = part
        logits = _logits(rows, table, cap)
        peak = jnp.max(logits, axis=-1, keepdims=True)
        exponents = jnp.exp(logits - peak)
        mass = jnp.sum(exponents, axis=-1, keepdims=True)
        at_target = jnp.take_along_axis(logits, wanted[:, None], axis=-1)
        losses = (jnp.log(mass) + peak - at_target)[:, 0]
        hit = wanted[:, None] == jnp.arange(table.shape[0], dtype=wanted.dtype)
        slope = exponents * jnp.where(weight > 0, weight / mass[:, 0], 0.0)[:, None]
        slope = slope - jnp.where(hit, weight[:, None], 0.0)
        if cap is not None:
            slope = slope * (1.0 - jnp.square(logits / cap))
        slope = slope.astype(table.dtype)
        rows_gradient = slope @ table
        part_gradient = jnp.einsum("nv,nd->vd", slope, rows, preferred_element_type=jnp.float32)
        return (total + _counted(losses, weight), table_gradient + part_gradient), rows_gradient

    start = (jnp.zeros((), jnp.float32), jnp.zeros(table.shape, jnp.float32))
    scanned = (parts, parts_targets, parts_weights)
    (total, table_gradient), rows_gradients = jax.lax.scan(one, start, scanned)
    rows_gradients = rows_gradients.reshape(-1, hidden.shape[-1])[:count].astype(hidden.dtype)
    return total, (rows_gradients, table_gradient.astype(table.dtype))


def _backward(chunk, cap, gradients, cotangent):
    rows, table = gradients
    return (
        (rows * cotangent).astype(rows.dtype),
        (table * cotangent).astype(table.dtype),
        None,
        None,
    )


total_loss.defvjp(_forward, _backward)


def _logits(rows: jax.Array, table: jax.Array, cap: float | None) -> jax.Array:
    logits = jnp.einsum("nd,vd->nv", rows, table, preferred_element_type=jnp.float32)
    return logits if cap is None else capped(logits, cap)


def _losses(logits: jax.Array, targets: jax.Array) -> jax.Array:
    at_target = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - at_target


def _counted(losses: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(weights > 0, losses * weights, 0.0))


def _padded(arrays: tuple[jax.Array, ...], chunk: int) -> tuple[tuple[jax.Array, ...], int]:
    """Return each array as [chunks, chunk, ...], zeros added at the end, and the true length."""
    count = arrays[0].shape[0]
    extra = -count % chunk
    padded = (jnp.pad(a, ((0, extra), *((0, 0),) * (a.ndim - 1))) for a in arrays)
    return tuple(a.reshape(-1, chunk, *a.shape[1:]) for a in padded), count

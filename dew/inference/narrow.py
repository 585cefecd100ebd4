"""Products of few rows with weights stored narrow, which cost the time that their bytes take."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dew.nn.quantized import LARGEST, Quantized

STORED = {"int8": "int8", "bfloat16": "bfloat16", "bf16": "bfloat16"}
"""The ways to store the weights of decoding beside the model's own, by the names they go by."""
FEW_ROWS = 32
"""Above so many rows a matrix is widened once for all."""
PIECES = 2
PIECE_STEPS = 2 * LARGEST
"""One step of a piece is this many of the next: what rounding leaves is half a step at most."""


def narrow(matrix: jax.Array, stored: str | None, dtype: jnp.dtype) -> jax.Array | Quantized:
    """Return a matrix [inputs, outputs] as decoding is to read it.

    Args:
        matrix: any floating dtype.
        stored: "int8", with one scale an output; "bfloat16"; None for `dtype`.
        dtype: that of the model's computations.
    """
    if stored != "int8":
        return matrix.astype(dtype if stored is None else stored)
    columns = matrix.astype(jnp.float32).T
    largest = jnp.max(jnp.abs(columns), axis=1)
    scale = jnp.where(largest > 0, LARGEST / jnp.where(largest > 0, largest, 1.0), 0.0)
    codes = jnp.rint(columns * scale[:, None]).astype(jnp.int8)
    return Quantized(codes, largest, (matrix.shape[0], matrix.shape[1]), 1)


def product(x: jax.Array, matrix: jax.Array | Quantized) -> jax.Array:
    """Return `x` [N, D] times a matrix [D, F] of `narrow`, in the dtype of `x`.

    Weights in eight bits are summed up exactly on CPU, times `x` in steps of its row's largest
    value over 64,516; weights in bfloat16 in float32, times `x` in sixteen bits.
    """
    if isinstance(matrix, Quantized):
        return _quantized_product(x, matrix).astype(x.dtype)
    if matrix.dtype != x.dtype:
        return _product_of_halves(x, matrix).astype(x.dtype)
    return _two_rows(x, matrix, 0)


def row_products(x: jax.Array, table: jax.Array | Quantized) -> jax.Array:
    """Return float32 `x` [N, D] times each row of a table [V, D]."""
    if isinstance(table, Quantized):
        return _quantized_product(x, table)
    if table.dtype != x.dtype:
        return _product_of_halves(x, table, axis=1)
    return _two_rows(x, table, 1, jnp.float32)


def table_rows(table: jax.Array | Quantized, index: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Return rows [N, D] of a table [V, D]."""
    if isinstance(table, Quantized):
        rows = table.codes[index].astype(jnp.float32)
        return (rows * (table.absmax[index] / LARGEST)[:, None]).astype(dtype)
    return table[index].astype(dtype)


def _quantized_product(x: jax.Array, matrix: Quantized) -> jax.Array:
    scale = (matrix.absmax / LARGEST).astype(jnp.float32)
    few = _product_in_pieces if len(x) <= FEW_ROWS else _product_widened
    return jax.lax.platform_dependent(x, matrix.codes, scale, cpu=few, default=_product_widened)


def _product_in_pieces(x: jax.Array, codes: jax.Array, scale: jax.Array) -> jax.Array:
    """Return float32 [N, F], by products of eight bits with eight bits.

    XLA's CPU library has those, and streams weights that stand on the left, [outputs, inputs];
    weights that are widened first it writes out in float32.
    """
    rows = len(x)
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=1, keepdims=True)
    unit = jnp.where(largest > 0, largest / LARGEST, 1.0)
    rest, pieces = x / unit, []
    for _ in range(PIECES):
        piece = jnp.rint(rest)
        pieces.append(piece.astype(jnp.int8))
        rest = (rest - piece) * PIECE_STEPS
    sums = jax.lax.dot_general(
        codes,
        jnp.concatenate(pieces),
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.int32,
    ).astype(jnp.float32)
    whole, rest = sums[:, :rows], sums[:, rows:]
    return (whole + rest / PIECE_STEPS).T * unit * scale


def _product_widened(x: jax.Array, codes: jax.Array, scale: jax.Array) -> jax.Array:
    dimensions = (((1,), (1,)), ((), ()))
    wide = jax.lax.dot_general(
        x, codes.astype(x.dtype), dimensions, preferred_element_type=jnp.float32
    )
    return wide * scale


def _product_of_halves(x: jax.Array, matrix: jax.Array, axis: int = 0) -> jax.Array:
    """Return float32 [N, F] with a bfloat16 matrix, contracted along its `axis`.

    Two rows stand for each of `x`: its leading bits, and what they leave.
    """
    high = x.astype(matrix.dtype)
    low = (x - high.astype(x.dtype)).astype(matrix.dtype)
    sums = _contracted(jnp.concatenate([high, low]), matrix, axis, jnp.float32)
    return sums[: len(x)] + sums[len(x) :]


def _two_rows(x: jax.Array, matrix: jax.Array, axis: int, wanted: Any = None) -> jax.Array:
    """Return `x` times a matrix of its own dtype.

    One row of a narrow dtype would have XLA's CPU compiler widen the whole matrix first.
    """
    if len(x) > 1 or x.dtype == jnp.float32:
        return _contracted(x, matrix, axis, wanted)
    return _contracted(jnp.concatenate([x, jnp.zeros_like(x)]), matrix, axis, wanted)[:1]


def _contracted(x: jax.Array, matrix: jax.Array, axis: int, wanted: Any) -> jax.Array:
    return jax.lax.dot_general(
        x, matrix, (((1,), (axis,)), ((), ())), preferred_element_type=wanted
    )

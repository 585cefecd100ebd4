"""Kernels of linear maps stored in eight or four bits, and widened inside the product.

They are for a frozen base with adapters beside it: no gradient reaches them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from dew.errors import InputRefused, nearest

BLOCK, NIBBLE, LARGEST = 64, 4, 127
# The values of table E in the source, float32: quantiles of the normal distribution, 0 among them.
NORMAL_FLOAT = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
        *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ],
    np.float32,
)
BITS = {"int8": 8, "nf4": 4}
"""How kernels can be stored, and in how many bits a value."""


@partial(register_dataclass, data_fields=["codes", "absmax"], meta_fields=["shape_", "inputs"])
class Quantized:
    """A kernel [*in, *out], or one a layer along a first axis, stored narrow.

    It lies as torch's, [outputs, inputs]. Where an array is wanted it gives the wide one.

    Attributes:
        codes: int8 [..., outputs, inputs], or uint8 [..., bytes] of two codes each, the first in
            the high bits.
        absmax: float32, the largest size [..., outputs] of each row, or [..., blocks] of each 64
            values in a row-major matrix.
        shape_: of one kernel, [*in, *out].
        inputs: how many axes *in has.

    Source: Dettmers et al. 2022, arXiv:2208.07339 (int8, without its outliers); Dettmers et al.
    2023, arXiv:2305.14314 (nf4, without double quantisation). The codes and values are those of
    bitsandbytes 0.50.
    """

    def __init__(self, codes: Any, absmax: Any, shape_: tuple[int, ...], inputs: int) -> None:
        self.codes, self.absmax, self.shape_, self.inputs = codes, absmax, shape_, inputs

    @property
    def shape(self) -> tuple[int, ...]:
        """The kernel's shape, the layers' axis first where there is one."""
        return (*self.codes.shape[: self.absmax.ndim - 1], *self.shape_)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """What the kernel is widened to."""
        return jnp.dtype(jnp.float32)

    @property
    def nbytes(self) -> int:
        """How many bytes it is stored in."""
        return self.codes.nbytes + self.absmax.nbytes

    def wide(self) -> jax.Array:
        """Return the kernel as float32."""
        outputs = math.prod(self.shape_[self.inputs :])
        lead = self.shape[: -len(self.shape_)]
        if self.codes.dtype == jnp.int8:
            matrix = self.codes.astype(jnp.float32) * (self.absmax / LARGEST)[..., None]
        else:
            matrix = _from_blocks(self.codes, self.absmax, lead, outputs, math.prod(self.shape_))
        return jnp.swapaxes(matrix, -1, -2).reshape(self.shape)

    def __getitem__(self, layer: Any) -> Quantized:
        """Return one layer's kernel."""
        if layer is ...:
            return self
        return Quantized(self.codes[layer], self.absmax[layer], self.shape_, self.inputs)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the wide kernel on the host."""
        del copy
        return np.asarray(self.wide()).astype(dtype or np.float32)

    def __jax_array__(self) -> jax.Array:
        """Return the wide kernel."""
        return self.wide()

    def __add__(self, other: Any) -> jax.Array:
        """Return the wide kernel and another array added."""
        return self.wide() + other

    def reshape(self, *shape: Any) -> jax.Array:
        """Return the wide kernel in another shape."""
        return self.wide().reshape(*shape)

    def astype(self, dtype: Any) -> jax.Array:
        """Return the wide kernel in another dtype."""
        return self.wide().astype(dtype)


def quantized(kernel: Any, kind: str, *, inputs: int, stacked: bool) -> Quantized:
    """Return a kernel stored narrow.

    Args:
        kernel: [*in, *out], or with `stacked` [layers, *in, *out].
        kind: a name of `BITS`.
        inputs: how many axes *in has.
        stacked: whether the first axis counts layers.

    Raises:
        InputRefused: an unknown kind.
    """
    check_kind(kind)
    shape = tuple(kernel.shape[stacked:])
    lead = tuple(kernel.shape[:1]) if stacked else ()
    matrix = jnp.asarray(kernel, jnp.float32).reshape(*lead, math.prod(shape[:inputs]), -1)
    encode = _rows if kind == "int8" else _blocks
    codes, absmax = encode(jnp.swapaxes(matrix, -1, -2), lead)
    return Quantized(codes, absmax, shape, inputs)


def check_kind(kind: str) -> None:
    """Refuse an unknown way to store weights.

    Raises:
        InputRefused: no name of `BITS`.
    """
    if kind not in BITS:
        raise InputRefused(f"no way {kind!a:.100} to store weights{nearest(kind, BITS)}; int8, nf4")


def _rows(matrix: jax.Array, lead: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    del lead
    absmax = jnp.max(jnp.abs(matrix), axis=-1)
    scale = jnp.where(absmax > 0, LARGEST / jnp.where(absmax > 0, absmax, 1.0), 0.0)
    return jnp.rint(matrix * scale[..., None]).astype(jnp.int8), absmax


def _blocks(matrix: jax.Array, lead: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    values = matrix.reshape(*lead, -1)
    missing = -values.shape[-1] % BLOCK
    padded = jnp.pad(values, (*((0, 0) for _ in lead), (0, missing)))
    blocks = padded.reshape(*lead, -1, BLOCK)
    absmax = jnp.max(jnp.abs(blocks), axis=-1)
    shares = blocks / jnp.where(absmax > 0, absmax, 1.0)[..., None]
    # A share belongs to the nearest value: the bounds are halfway between two.
    bounds = jnp.asarray((NORMAL_FLOAT[1:] + NORMAL_FLOAT[:-1]) / np.float32(2))
    codes = jnp.searchsorted(bounds, shares.reshape(*lead, -1), side="left").astype(jnp.uint8)
    return (codes[..., ::2] << NIBBLE) | codes[..., 1::2], absmax


def _from_blocks(
    codes: jax.Array, absmax: jax.Array, lead: tuple[int, ...], outputs: int, size: int
) -> jax.Array:
    """Return the matrices [..., outputs, inputs] that `_blocks` packed, `size` values each."""
    nibbles = jnp.stack([codes >> NIBBLE, codes & 15], axis=-1)
    shares = jnp.asarray(NORMAL_FLOAT)[nibbles.reshape(*lead, -1, BLOCK).astype(jnp.int32)]
    values = (shares * absmax[..., None]).reshape(*lead, -1)
    return values[..., :size].reshape(*lead, outputs, -1)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def narrow_linear(x: jax.Array, kernel: Quantized, product: Any) -> jax.Array:
    """Return `product(x, wide kernel)`; its backward pass widens the kernel once more.

    So the wide kernel of one layer at a time is all there is beside the stored ones.
    """
    return product(x, kernel.wide().astype(x.dtype))


def _narrow_forward(x: jax.Array, kernel: Quantized, product: Any) -> Any:
    return narrow_linear(x, kernel, product), (kernel, jnp.zeros((0,), x.dtype))


def _narrow_backward(product: Any, kept: Any, gradient: jax.Array) -> Any:
    kernel, like = kept
    wide = kernel.wide().astype(like.dtype)
    inputs = kernel.inputs
    matrix = wide.reshape(math.prod(kernel.shape_[:inputs]), -1)
    lead = gradient.shape[: gradient.ndim - (len(kernel.shape_) - inputs)]
    to_x = gradient.reshape(-1, matrix.shape[1]) @ matrix.T
    nothing = jax.tree.map(
        lambda leaf: (
            jnp.zeros_like(leaf)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else np.zeros(leaf.shape, jax.dtypes.float0)
        ),
        kernel,
    )
    return to_x.reshape(*lead, *kernel.shape_[:inputs]), nothing


narrow_linear.defvjp(_narrow_forward, _narrow_backward)


def widened(params: Any) -> Any:
    """Return a tree of params whose kernels are all arrays."""
    return jax.tree.map(
        lambda leaf: leaf.wide() if isinstance(leaf, Quantized) else leaf,
        params,
        is_leaf=lambda leaf: isinstance(leaf, Quantized),
    )

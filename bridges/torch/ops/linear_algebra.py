"""Matrix products and the small matrices' decompositions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.ops.operator import array, operator


@operator("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y)


@operator("linear.default")
def _linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    # One row axis: over several, XLA's CPU backend transposes both sides of the weights' gradient.
    rows = x.reshape(-1, x.shape[-1]) @ weight.T
    y = rows.reshape(*x.shape[:-1], weight.shape[0]) if weight.ndim == 2 else x @ weight
    return y if bias is None else y + bias


def _mixed(x: jax.Array, product: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    """Return beta x + alpha product; torch does not read x where beta is 0."""
    product = product if alpha == 1 else product * array(alpha, product.dtype)
    if beta == 0:
        return product
    return (x if beta == 1 else x * array(beta, x.dtype)) + product


@operator("addmm.default", "addmv.default")
def _addmm(x: jax.Array, y: jax.Array, z: jax.Array, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    return _mixed(x, y @ z, beta, alpha)


@operator("baddbmm.default")
def _baddbmm(x: jax.Array, y: jax.Array, z: jax.Array, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    return _mixed(x, y @ z, beta, alpha)


@operator("addbmm.default")
def _addbmm(x: jax.Array, y: jax.Array, z: jax.Array, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    return _mixed(x, jnp.einsum("bij,bjk->ik", y, z), beta, alpha)


@operator("addr.default")
def _addr(x: jax.Array, y: jax.Array, z: jax.Array, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    return _mixed(x, jnp.outer(y, z), beta, alpha)


@operator("einsum.default")
def _einsum(equation: str, tensors: Any, path: Any = None) -> jax.Array:
    return jnp.einsum(equation, *tensors)


@operator("transformers.grouped_mm_fallback.default", "_grouped_mm.default")
def _grouped_mm(x: jax.Array, weight: jax.Array, offs: jax.Array, *_: Any, **__: Any) -> jax.Array:
    """Multiply each group of rows by its own matrix; group g ends before row `offs[g]`."""
    sizes = jnp.diff(offs, prepend=jnp.zeros(1, offs.dtype))
    return jax.lax.ragged_dot(x, weight, sizes.astype(jnp.int32))


operator("linalg_inv_ex.default")(
    lambda x, check_errors=False: (jnp.linalg.inv(x), jnp.zeros(x.shape[:-2], jnp.int32))
)
operator("inverse.default", "linalg_inv.default")(jnp.linalg.inv)
operator("linalg_det.default", "det.default")(jnp.linalg.det)
operator("linalg_cross.default")(lambda x, y, dim=-1: jnp.cross(x, y, axis=dim))
operator("kron.default")(jnp.kron)
operator("trace.default")(jnp.trace)


@operator("linalg_cholesky_ex.default")
def _cholesky_ex(x: jax.Array, upper: bool = False, check_errors: bool = False) -> tuple:
    lower = jnp.linalg.cholesky(x)
    return jnp.swapaxes(lower, -1, -2) if upper else lower, jnp.zeros(x.shape[:-2], jnp.int32)


@operator("_linalg_eigh.default")
def _eigh(x: jax.Array, UPLO: str = "L", compute_v: bool = True) -> tuple:
    values, vectors = jnp.linalg.eigh(x, UPLO)
    return values, vectors


@operator("linalg_solve_triangular.default")
def _solve_triangular(
    x: jax.Array, y: jax.Array, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    return jax.lax.linalg.triangular_solve(
        x, y, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )


@operator("linalg_solve.default")
def _solve(x: jax.Array, y: jax.Array, left: bool = True) -> jax.Array:
    """Return z of x z = y, or of z x = y; y is a vector, a matrix or a stack of either."""
    if y.ndim == 1 or y.shape == x.shape[:-1]:
        return jnp.linalg.solve(x, y[..., None])[..., 0]
    if left:
        return jnp.linalg.solve(x, y)
    return jnp.swapaxes(jnp.linalg.solve(jnp.swapaxes(x, -1, -2), jnp.swapaxes(y, -1, -2)), -1, -2)


@operator("_linalg_solve_ex.default")
def _solve_ex(x: jax.Array, y: jax.Array, left: bool = True, check_errors: bool = False) -> tuple:
    """Return the solution and nothing else: the factors serve torch's own derivative."""
    return (_solve(x, y, left),)

"""What an operator is: one function under its ATen names, and torch's rules for dtypes."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

TABLE: dict[str, Operator] = {}
"""Operators by torch's name, such as `aten.add.Tensor`; filled when a file of them is imported."""

_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


@dataclass(frozen=True)
class Operator:
    """One operator of torch, on JAX arrays.

    Attributes:
        function: takes the operator's arguments in torch's order and by torch's names; devices,
            layouts and memory formats never reach it.
        needs: what else it takes by keyword: "dtype" (of torch's result) or "key" (for draws).
        concrete: whether its arguments' values must be known when the graph is traced.
    """

    function: Callable[..., Any]
    needs: frozenset[str]
    concrete: bool


def operator(*names: str, needs: tuple[str, ...] = (), concrete: bool = False) -> Callable:
    """Return a decorator that puts a function into the table.

    Args:
        *names: such as "add.Tensor"; without a namespace it is `aten`'s.
        needs: see `Operator`.
        concrete: see `Operator`.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        entry = Operator(function, frozenset(needs), concrete)
        for name in names:
            full = (
                name if name.startswith(("python.", "bridge.", "transformers.")) else f"aten.{name}"
            )
            if full in TABLE:
                raise ValueError(f"operator {full} is defined twice")
            TABLE[full] = entry
        return function

    return enter


def dtype_of(name: str | None) -> Any:
    """Return JAX's dtype for torch's name: int64 and float64 are 32 bits wide unless x64 is on."""
    return None if name is None else jax.dtypes.canonicalize_dtype(jnp.dtype(name))


def promoted(*values: Any) -> Any:
    """Return the dtype that torch computes a mix of arrays and numbers in.

    Arrays of one axis or more decide, among those of the highest kind (bool, integer, float,
    complex). One without axes, or a Python number, counts only where its kind is higher.

    Source: torch's documentation of type promotion (`torch.result_type`).
    """
    ranks: list[list[Any]] = [[], [], []]
    for value in values:
        if isinstance(value, bool | numbers.Number) and not isinstance(value, np.generic):
            ranks[2].append(jnp.dtype(_number_dtype(value)))
        elif np.ndim(value):
            ranks[0].append(jnp.dtype(value.dtype))
        else:
            ranks[1].append(jnp.dtype(value.dtype))
    chosen: Any = None
    for rank in ranks:
        for dtype in rank:
            if chosen is None:
                chosen = dtype
            elif rank is ranks[0] or _kind(dtype) > _kind(chosen):
                chosen = _joined(chosen, dtype)
            elif _kind(dtype) == _kind(chosen) and not ranks[0] and rank is ranks[1]:
                chosen = jnp.promote_types(chosen, dtype)
    return jax.dtypes.canonicalize_dtype(chosen)


def _joined(low: Any, high: Any) -> Any:
    if _kind(low) == _kind(high):
        return jnp.promote_types(low, high)
    if _kind(high) < _kind(low):
        return low
    # A complex scalar makes a double of a double, and a single of anything less.
    if _kind(high) == 3 and low == jnp.float64:
        return jnp.dtype("complex128")
    return high


def floating(value: Any) -> jax.Array:
    """Return an array of a float or complex dtype: float32 where it holds integers or booleans."""
    value = jnp.asarray(value)
    return value if _kind(value.dtype) >= 2 else value.astype(jnp.float32)


def is_float(value: Any) -> bool:
    """Tell whether an array holds real floating-point numbers."""
    return _kind(value.dtype) == 2


def absolute(x: jax.Array) -> jax.Array:
    """Return the absolute value; at 0 its derivative is 0, as in torch, where JAX has 1."""
    size = jnp.abs(x)
    return jnp.where(x == 0, jax.lax.stop_gradient(size), size)


def array(value: Any, dtype: Any) -> jax.Array:
    """Return a number or an array in `dtype`; a number beyond 32 bits is their extreme.

    torch writes its 64-bit extremes where it means "no limit"; here integers have 32 bits. What
    only passes a smaller integer goes round, as in torch.
    """
    if isinstance(value, int | float | np.number) and _kind(jnp.dtype(dtype)) == 1:
        limits = jnp.iinfo(jnp.int32)
        value = np.asarray(min(max(int(value), int(limits.min)), int(limits.max)))
        return jnp.asarray(value.astype(dtype))
    return jnp.asarray(value, dtype)


def cast(x: jax.Array, dtype: Any) -> jax.Array:
    """Return an array in another dtype: integers are cut towards 0, complex loses its imaginary.

    torch reads 64-bit integers from a float; what passes 32 bits ends at the limit here, and what
    passes 8 bits goes round.
    """
    if _kind(x.dtype) == 3 and _kind(dtype) in (1, 2):
        x = x.real
    if is_float(x) and _kind(dtype) == 1:
        x = jnp.trunc(x).astype(jnp.int32)
    return x.astype(dtype)


def axis_of(dim: int, axes: int) -> int:
    """Return a dimension counted from the front; torch lets an array without axes have one."""
    size = max(axes, 1)
    if not -size <= dim < size:
        raise IndexError(f"dimension {dim} of an array of {axes} axes")
    return dim % size


def axes_of(dims: Any, axes: int) -> tuple[int, ...]:
    """Return dimensions counted from the front; None and an empty list mean all."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(axes))
    if not isinstance(dims, list | tuple):
        dims = [dims]
    found = tuple(axis_of(int(dim), axes) for dim in dims)
    return () if axes == 0 else found


def spread(value: Any, count: int) -> tuple[int, ...]:
    """Return `count` integers of one integer or a list of one or `count`."""
    if isinstance(value, numbers.Integral):
        return (int(value),) * count
    values = tuple(int(part) for part in value)
    return values * count if len(values) == 1 else values


def _kind(dtype: Any) -> int:
    for number, kind in enumerate(_KINDS):
        if jnp.issubdtype(dtype, kind):
            return number
    raise TypeError(f"dtype {dtype} has no kind in torch")


def _number_dtype(value: Any) -> Any:
    if isinstance(value, bool):
        return jnp.bool_
    if isinstance(value, numbers.Integral):
        return jnp.int32
    return jnp.float32 if isinstance(value, numbers.Real) else jnp.complex64

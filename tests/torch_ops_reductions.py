"""Calls of the operators that fold axes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch_ops import COMPLEX, FLOATS, NUMBERS, REAL, Call, Draw, case

_DTYPES = (None, None, torch.float32, torch.float64, torch.int64, torch.bfloat16)


def _finite(x: torch.Tensor) -> bool:
    return not x.is_floating_point() or bool((x.abs() < 1e5).all())


def _input(d: Draw, dtypes: tuple, **options: Any) -> torch.Tensor:
    return d.tensor(d.shape(), d.of(*dtypes), special=d.integer(0, 3) == 3, **options)


def _exact(dtype: torch.dtype | None) -> bool:
    """Tell whether a product's derivative is not made of factors in half precision."""
    return dtype not in (torch.float16, torch.bfloat16)


@case("sum.default", "mean.default", "prod.default")
def _whole(d: Draw, name: str) -> Call:
    x = _input(d, (*NUMBERS, *COMPLEX))
    dtype = d.of(*_DTYPES)
    gradient = _finite(x) and (name != "prod.default" or _exact(dtype))
    return Call((x,), {"dtype": dtype}, gradient=gradient, ulps=64)


@case("sum.dim_IntList", "mean.dim", "nansum.default")
def _by_axes(d: Draw, name: str) -> Call:
    x = _input(d, NUMBERS if name == "nansum.default" else (*NUMBERS, *COMPLEX))
    dims = d.of(d.some_axes(x.shape), None)
    return Call((x, dims, d.flag()), {"dtype": d.of(*_DTYPES)}, gradient=_finite(x), ulps=64)


@case("prod.dim_int")
def _prod_dim(d: Draw, name: str) -> Call:
    x = _input(d, (*NUMBERS, *COMPLEX))
    args, dtype = (x, d.axis(x.shape), d.flag()), d.of(*_DTYPES)
    return Call(args, {"dtype": dtype}, gradient=_finite(x) and _exact(dtype))


@case("amax.default", "amin.default")
def _extreme(d: Draw, name: str) -> Call:
    x = _input(d, NUMBERS)
    return Call((x, d.some_axes(x.shape), d.flag()), gradient=_finite(x))


@case("max.default", "min.default")
def _extreme_of_all(d: Draw, name: str) -> Call:
    x = _input(d, NUMBERS)
    return Call((x,), gradient=_finite(x))


@case("max.dim", "min.dim")
def _extreme_along(d: Draw, name: str) -> Call:
    x = _input(d, NUMBERS)
    return Call((x, d.axis(x.shape), d.flag()))


@case("argmax.default", "argmin.default")
def _place_of_extreme(d: Draw, name: str) -> Call:
    x = _input(d, REAL)
    return Call((x, d.of(d.axis(x.shape), None), d.flag()), gradient=False)


@case("any.default", "all.default")
def _any(d: Draw, name: str) -> Call:
    return Call((_input(d, NUMBERS),), gradient=False)


@case("any.dim", "all.dim")
def _any_dim(d: Draw, name: str) -> Call:
    x = _input(d, NUMBERS)
    return Call((x, d.axis(x.shape), d.flag()), gradient=False)


@case("any.dims", "all.dims")
def _any_dims(d: Draw, name: str) -> Call:
    x = _input(d, NUMBERS)
    return Call((x, d.of(d.some_axes(x.shape, 1), None), d.flag()), gradient=False)


@case("_is_all_true.default", "_is_any_true.default")
def _is_true(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape(), torch.bool),))


@case("count_nonzero.default")
def _count_nonzero(d: Draw, name: str) -> Call:
    x = _input(d, NUMBERS)
    return Call((x, d.of(None, d.axis(x.shape) if x.ndim else None)), gradient=False)


@case("count_nonzero.dim_IntList")
def _count_nonzero_dims(d: Draw, name: str) -> Call:
    x = _input(d, NUMBERS)
    return Call((x, d.some_axes(x.shape)), gradient=False)


@case("var.correction", "std.correction", "var_mean.correction")
def _variance(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*FLOATS, *COMPLEX))
    correction, axes = d.of(1, 0, None, 2, 0.5), _named_axes(d, x)
    count = x.numel() if axes is None else math.prod(x.shape[axis] for axis in axes)
    # torch's value divides by nothing where no count is left, and its derivative by a negative one.
    left = count > (1 if correction is None else correction)
    options = {"correction": correction, "keepdim": d.flag()}
    return Call((x, axes), options, gradient=left, ulps=64)


def _named_axes(d: Draw, x: torch.Tensor) -> list[int] | None:
    """Return axes or None: of an empty list torch's derivative is not that of its value."""
    return d.of(d.some_axes(x.shape, 1) or None, None)


@case("var.dim")
def _variance_dim(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*FLOATS))
    return Call((x, _named_axes(d, x), d.flag(), d.flag()), ulps=64)


@case("cumsum.default", "cumprod.default")
def _running(d: Draw, name: str) -> Call:
    x = _input(d, (*NUMBERS, *COMPLEX))
    args, dtype = (x, d.axis(x.shape)), d.of(*_DTYPES)
    gradient = _finite(x)
    if name == "cumprod.default":
        # Where complex numbers are read as real ones torch's derivative still multiplies them.
        gradient = gradient and _exact(dtype) and (dtype is None or not x.is_complex())
    return Call(args, {"dtype": dtype}, gradient=gradient)


@case("cummax.default", "cummin.default")
def _running_extreme(d: Draw, name: str) -> Call:
    x = _input(d, NUMBERS)
    return Call((x, d.axis(x.shape)))


@case("logcumsumexp.default")
def _logcumsumexp(d: Draw, name: str) -> Call:
    x = _input(d, FLOATS)
    return Call((x, d.axis(x.shape)), gradient=_finite(x))


@case("logsumexp.default")
def _logsumexp(d: Draw, name: str) -> Call:
    x = _input(d, REAL)
    return Call((x, d.some_axes(x.shape), d.flag()), gradient=_finite(x))


@case("linalg_vector_norm.default")
def _vector_norm(d: Draw, name: str) -> Call:
    # Half the time rows of zeros, where torch's derivative is 0.
    x = d.tensor(d.shape(), d.of(*FLOATS, *COMPLEX), special=d.integer(0, 5) == 5)
    x = x * 0 if d.integer(0, 2) == 2 else x
    order = d.of(2, 1, 0, 3, float("inf"), -float("inf"), 0.5, -1)
    dims = d.of(d.some_axes(x.shape), None)
    dtype = {"dtype": None if x.is_complex() else d.of(None, torch.float32)}
    return Call((x, order, dims, d.flag()), dtype, gradient=_finite(x))


@case("histc.default")
def _histc(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(torch.float32, torch.bfloat16, torch.int64))
    low, high = d.of((0, 0), (-2, 2), (0, 3), (-10, 10), (1, 1))
    return Call((x, d.of(4, 1, 7), low, high), gradient=False, wide=False)

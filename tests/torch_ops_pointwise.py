"""Calls of the operators that work element by element."""

from __future__ import annotations

from typing import Any

import torch
from torch_ops import COMPLEX, FLOATS, INTEGERS, NUMBERS, REAL, Call, Draw, case

_SCALARS = (2, -3, 0, True, 1.5, -0.5, 2.0)


def _pair(d: Draw, dtypes: tuple, special: bool | None = None) -> tuple:
    """Return two tensors that broadcast, of the same dtype or of two."""
    shape = d.shape()
    first = d.of(*dtypes)
    second = d.of(first, *dtypes)
    special = d.flag() if special is None else special
    x = d.tensor(shape, first, special=special)
    y = d.tensor(d.partner(shape), second, special=special)
    return (x, y) if d.flag() else (y, x)


def _plain(call: tuple) -> bool:
    """Tell whether a call holds only finite numbers: elsewhere derivatives are a convention."""
    tensors = [x for x in call if isinstance(x, torch.Tensor)]
    floats = [x for x in tensors if x.is_floating_point() or x.is_complex()]
    return all(bool(torch.isfinite(x).all()) and bool((x.abs() < 1e5).all()) for x in floats)


@case("add.Tensor", "sub.Tensor", "rsub.Tensor")
def _with_alpha(d: Draw, name: str) -> Call:
    dtypes = (*NUMBERS, *COMPLEX) if name == "add.Tensor" else (*REAL, *COMPLEX)
    pair = _pair(d, dtypes)
    whole = not any(x.is_floating_point() or x.is_complex() for x in pair)
    boolean = all(x.dtype == torch.bool for x in pair)
    alpha = d.of(1, True) if boolean else d.of(1, 2, -1) if whole else d.of(1, 2, -0.5)
    return Call(pair, {"alpha": alpha}, gradient=_plain(pair))


@case("add.Scalar", "sub.Scalar", "rsub.Scalar")
def _with_alpha_scalar(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*REAL), special=d.flag())
    return Call((x, d.of(*_SCALARS), d.of(1, 2)), gradient=_plain((x,)))


@case("mul.Tensor", "div.Tensor", "true_divide.Tensor")
def _product(d: Draw, name: str) -> Call:
    pair = _pair(d, (*NUMBERS, *COMPLEX))
    # torch makes complex32 of float16 and a complex number, a dtype that JAX has not.
    if {torch.float16, torch.complex64} <= {x.dtype for x in pair}:
        pair = tuple(x.float() if x.dtype == torch.float16 else x for x in pair)
    return Call(pair, gradient=_plain(pair) and bool((pair[1] != 0).all()))


@case("mul.Scalar", "div.Scalar", "floor_divide.Scalar", "remainder.Scalar", "fmod.Scalar")
def _product_scalar(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*REAL), special=d.flag())
    whole = not x.is_floating_point()
    divisors = (2, 3, 1) if x.dtype == torch.uint8 else (2, -3, 1)
    options = _SCALARS if name == "mul.Scalar" else (*divisors, 1.5, -2.5)
    options = (*options, -3) if name == "div.Scalar" else options
    if whole and d.flag():
        options = divisors
    return Call((x, d.of(*options)), gradient=_plain((x,)))


@case("div.Tensor_mode", "floor_divide.default", "remainder.Tensor", "fmod.Tensor")
def _quotient(d: Draw, name: str) -> Call:
    x, y = _pair(d, REAL)
    if not y.is_floating_point():
        y = torch.where(y == 0, 3, y).to(y.dtype)
        if x.dtype == torch.uint8:
            y = y.abs() if y.dtype != torch.uint8 else y
    plain = _plain((x, y)) and bool((y != 0).all())
    mode = {"rounding_mode": d.of("floor", "trunc", None)} if name == "div.Tensor_mode" else {}
    # In float64 a quotient can fall on the other side of a whole number.
    return Call((x, y), mode, gradient=plain, wide=False)


@case("div.Scalar_mode")
def _quotient_scalar(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*REAL), special=d.flag())
    mode = {"rounding_mode": d.of("floor", "trunc", None)}
    options = (2, 3, 1.5) if x.dtype == torch.uint8 else (2, -3, 1.5, -0.5)
    return Call((x, d.of(*options)), mode, gradient=_plain((x,)), wide=False)


@case("remainder.Scalar_Tensor")
def _remainder_of_number(d: Draw, name: str) -> Call:
    y = d.tensor(d.shape(), d.of(*REAL))
    y = torch.where(y == 0, 3, y).to(y.dtype)
    return Call((d.of(7, 5.5, 2), y), wide=False)


@case("pow.Tensor_Tensor")
def _power(d: Draw, name: str) -> Call:
    shape = d.shape()
    first, second = d.of(*REAL), d.of(*REAL)
    special = d.flag()
    x = d.tensor(shape, first, special=special)
    y = d.tensor(d.partner(shape), second, special=special)
    if not second.is_floating_point:
        y = y.abs()
    return Call((x, y), gradient=_plain((x, y)))


@case("pow.Tensor_Scalar")
def _power_scalar(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*REAL, *COMPLEX), special=d.flag())
    options = (2, 3, 0, 1, 2.0, 0.5, -1, -0.5, 1.5, 0.0, -2, 17, True)
    return Call((x, d.of(*options)), gradient=_plain((x,)))


@case("pow.Scalar")
def _number_to_power(d: Draw, name: str) -> Call:
    dtype = d.of(*REAL)
    x = d.tensor(d.shape(), dtype, low=None if dtype.is_floating_point else 0, special=d.flag())
    return Call((d.of(2, 0.5, 10000.0, 0, 1, -2.0), x), gradient=_plain((x,)))


@case("atan2.default", "xlogy.Tensor")
def _float_pair(d: Draw, name: str) -> Call:
    pair = _pair(d, NUMBERS)
    return Call(pair, gradient=_plain(pair) and all(bool((x != 0).all()) for x in pair))


@case("hypot.default", "logaddexp.default", "logaddexp2.default", "copysign.Tensor")
def _hypot(d: Draw, name: str) -> Call:
    pair = _pair(d, NUMBERS if name == "copysign.Tensor" else FLOATS)
    return Call(pair, gradient=_plain(pair) and all(bool((x != 0).all()) for x in pair))


@case("copysign.Scalar")
def _copysign(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*NUMBERS), special=d.flag())
    return Call((x, d.of(1, -1, 0.0, -0.0)), gradient=_plain((x,)))


@case("nextafter.default")
def _nextafter(d: Draw, name: str) -> Call:
    x, y = (d.tensor((2, 3), d.of(torch.float32, torch.bfloat16), 1.0, 3.0) for _ in range(2))
    return Call((x, y), gradient=False, ulps=0, wide=False)


@case(
    "maximum.default", "max.other", "minimum.default", "min.other", "fmax.default", "fmin.default"
)
def _larger(d: Draw, name: str) -> Call:
    pair = _pair(d, NUMBERS)
    return Call(pair, gradient=_plain(pair))


@case("eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor")
def _compared(d: Draw, name: str) -> Call:
    return Call(_pair(d, NUMBERS), gradient=False)


@case("eq.Scalar", "ne.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar")
def _compared_scalar(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*NUMBERS), special=d.flag())
    return Call((x, d.of(*_SCALARS, float("inf"), float("nan"))), gradient=False)


@case("gcd.default")
def _gcd(d: Draw, name: str) -> Call:
    return Call(_pair(d, INTEGERS))


@case("bitwise_and.Tensor", "__and__.Tensor", "bitwise_or.Tensor", "__or__.Tensor",
      "bitwise_xor.Tensor", "__xor__.Tensor")  # fmt: skip
def _bitwise(d: Draw, name: str) -> Call:
    return Call(_pair(d, (*INTEGERS, torch.bool)))


@case("bitwise_and.Scalar", "__and__.Scalar", "bitwise_or.Scalar", "__or__.Scalar",
      "bitwise_xor.Scalar", "__xor__.Scalar")  # fmt: skip
def _bitwise_scalar(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape(), d.of(*INTEGERS, torch.bool)), d.of(1, 5, True, 0)))


@case("bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor")
def _shift(d: Draw, name: str) -> Call:
    shape = d.shape()
    x = d.tensor(shape, d.of(*INTEGERS), high=100)
    return Call((x, d.tensor(d.partner(shape), d.of(*INTEGERS), 0, 12)))


@case("bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor_Scalar",
      "__lshift__.Scalar", "__rshift__.Scalar")  # fmt: skip
def _shift_scalar(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape(), d.of(*INTEGERS), high=100), d.of(1, 0, 3, 9)))


@case("logical_and.default", "logical_or.default", "logical_xor.default")
def _logical(d: Draw, name: str) -> Call:
    return Call(_pair(d, NUMBERS), gradient=False)


@case("xlogy.Scalar_Other", "xlogy.Scalar_Self")
def _xlogy_scalar(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*REAL), special=d.flag())
    number = d.of(2, 0.5, 0)
    pair = (x, number) if name == "xlogy.Scalar_Other" else (number, x)
    return Call(pair, gradient=_plain((x,)) and bool((x != 0).all()))


@case("logical_not.default", "isnan.default", "isinf.default", "isfinite.default",
      "signbit.default", "bitwise_not.default")  # fmt: skip
def _asked(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape(), d.of(*NUMBERS), special=d.flag()),), gradient=False)


@case("neg.default", "positive.default", "abs.default", "square.default", "sign.default",
      "sgn.default", "floor.default", "ceil.default", "trunc.default", "fix.default",
      "round.default", "frac.default", "angle.default", "real.default", "conj.default",
      "conj_physical.default", "resolve_conj.default", "resolve_neg.default", "clone.default",
      "alias.default", "alias_copy.default", "contiguous.default", "lift_fresh.default",
      "lift_fresh_copy.default", "detach.default", "detach_copy.default")  # fmt: skip
def _any_unary(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*NUMBERS, *COMPLEX), special=d.flag())
    return Call((x,), gradient=_plain((x,)))


@case("imag.default", "_conj.default")
def _complex_unary(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape(), *COMPLEX),))


@case("round.decimals")
def _round_decimals(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*REAL), -30.0, 30.0)
    x = x if x.is_floating_point() else x.clamp(0)
    return Call((x,), {"decimals": d.of(0, 1, 2, -1)}, wide=False)


_DOMAINS: dict[str, tuple[float | None, float | None]] = {
    "log": (0.0, None), "log2": (0.0, None), "log10": (0.0, None), "log1p": (-1.0, None),
    "sqrt": (0.0, None), "rsqrt": (0.0, None), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0),
    "acosh": (1.0, None), "atanh": (-1.0, 1.0), "erfinv": (-1.0, 1.0),
    "special_erfinv": (-1.0, 1.0),
}  # fmt: skip


@case("exp.default", "exp2.default", "expm1.default", "log.default", "log2.default",
      "log10.default", "log1p.default", "sqrt.default", "rsqrt.default", "reciprocal.default",
      "sin.default", "cos.default", "tan.default", "asin.default", "acos.default", "atan.default",
      "sinh.default", "cosh.default", "tanh.default", "asinh.default", "acosh.default",
      "atanh.default", "erf.default", "special_erf.default", "erfc.default",
      "special_erfc.default", "erfinv.default", "special_erfinv.default", "lgamma.default",
      "digamma.default", "i0.default", "special_i0.default", "sinc.default",
      "special_sinc.default", "sigmoid.default", "special_expit.default", "log_sigmoid.default",
      "deg2rad.default")  # fmt: skip
def _elementary(d: Draw, name: str) -> Call:
    special = d.flag()
    low, high = _DOMAINS.get(name.split(".")[0], (None, None))
    low, high = (None, None) if d.integer(0, 3) == 3 else (low, high)
    dtype = d.of(*NUMBERS)
    if not dtype.is_floating_point:
        low, high = (None if low is None else int(low)), None
    x = d.tensor(d.shape(), dtype, low, high, special=special)
    gradient = _plain((x,))
    if name == "digamma.default" and dtype.is_floating_point:
        # At a pole torch's derivative is what the rounding of pi makes it, some 1e15 in float32.
        gradient = gradient and not bool(((x <= 0) & (x == x.trunc())).any())
    return Call((x,), gradient=gradient, scale=1.0 if name == "lgamma.default" else 0.0)


@case("where.self")
def _where(d: Draw, name: str) -> Call:
    shape = d.shape()
    dtype = d.of(torch.bool, torch.uint8)
    condition = d.tensor(d.partner(shape), dtype, 0, 2)
    x, y = (d.tensor(d.of(shape, ()), d.of(*NUMBERS), special=d.flag()) for _ in range(2))
    return Call((condition, x, y))


@case("where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where_scalar(d: Draw, name: str) -> Call:
    shape = d.shape()
    condition = d.tensor(shape, torch.bool)
    x: Any = d.tensor(d.partner(shape), d.of(*NUMBERS), special=d.flag())
    number = d.of(*_SCALARS, float("-inf"))
    pairs = {
        "ScalarOther": (x, number),
        "ScalarSelf": (number, x),
        "Scalar": (number, d.of(3, 2.5)),
    }
    return Call((condition, *pairs[name.split(".")[1]]))


@case("clamp.default", "clip.default", "clamp_min.default", "clamp_max.default")
def _clamp(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*REAL), special=d.flag())
    low, high = d.of((-1, 1), (-1.0, 1.5), (0, None), (None, 0.5), (1, -1), (-(2**63), 2**63 - 1))
    if name.startswith("clamp_m"):
        return Call((x, d.of(0, 0.5, -1, 1)), gradient=_plain((x,)))
    return Call((x, low, high), gradient=_plain((x,)))


@case("clamp.Tensor", "clip.Tensor", "clamp_min.Tensor", "clamp_max.Tensor")
def _clamp_tensor(d: Draw, name: str) -> Call:
    shape = d.shape()
    special = d.flag()
    x = d.tensor(shape, d.of(*REAL), special=special)
    low, high = (d.tensor(d.of(shape, ()), d.of(*REAL), special=special) for _ in range(2))
    if name.startswith("clamp_m"):
        return Call((x, low), gradient=_plain((x, low)))
    limits = d.of((low, high), (low, None), (None, high))
    return Call((x, *limits), gradient=_plain((x, low, high)))


@case("lerp.Scalar", "lerp.Tensor")
def _lerp(d: Draw, name: str) -> Call:
    shape, dtype = d.shape(), d.of(*FLOATS)
    start, end = d.tensor(shape, dtype), d.tensor(d.partner(shape), dtype)
    weight: Any = d.of(0.3, 0, 1, 2.5)
    return Call((start, end, d.tensor(shape, dtype) if name == "lerp.Tensor" else weight))


@case("addcmul.default", "addcdiv.default")
def _addc(d: Draw, name: str) -> Call:
    shape, dtype = d.shape(), d.of(*FLOATS, torch.int64)
    low, high = (1, 5) if dtype == torch.int64 else (0.5, 3.0)
    if name == "addcdiv.default" and dtype == torch.int64:
        dtype, low, high = torch.float32, 0.5, 3.0
    x, y = d.tensor(shape, dtype), d.tensor(d.partner(shape), dtype)
    z = d.tensor(shape, dtype, low, high)
    return Call((x, y, z), {"value": d.of(1, 2) if dtype == torch.int64 else d.of(1, -0.5)})


@case("nan_to_num.default")
def _nan_to_num(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*NUMBERS), special=True)
    return Call((x, d.of(None, 2.5), d.of(None, 9.0), d.of(None, -9.0)))


@case("relu.default", "relu6.default", "silu.default", "mish.default", "selu.default",
      "hardsigmoid.default", "hardswish.default")  # fmt: skip
def _activation(d: Draw, name: str) -> Call:
    dtypes = REAL if name == "relu.default" else FLOATS
    x = d.tensor(d.shape(), d.of(*dtypes), -7.0, 9.0, special=d.flag()) if d.flag() else None
    x = d.tensor(d.shape(), d.of(*dtypes), special=d.flag()) if x is None else x
    return Call((x,), gradient=_plain((x,)))


@case("gelu.default")
def _gelu(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*FLOATS), special=d.flag())
    kind = d.of("none", "tanh")
    if kind == "none":
        # Of infinity torch makes infinity in one element and NaN in many at once.
        x = torch.where(x == float("inf"), torch.ones_like(x), x)
    return Call((x,), {"approximate": kind}, gradient=_plain((x,)))


_OPTIONS: dict[str, tuple[tuple, ...]] = {
    "elu": ((), (1.5,), (0.5, 2.0), (1.5, 1.2, 0.7), (1,)),
    "celu": ((), (0.5,), (2,)),
    "leaky_relu": ((), (0.3,), (0,), (1.5,)),
    "hardtanh": ((), (-2.0, 0.5), (0, 6)),
    "softplus": ((), (2.0,), (0.5, 1.0), (1, 2)),
    "threshold": ((0.5, 9.0), (0, 0), (-1.5, 2)),
    "softshrink": ((), (1.0,), (0,)),
    "hardshrink": ((), (1.0,), (0,)),
}


@case(*(f"{name}.default" for name in _OPTIONS))
def _activation_with_options(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*FLOATS), special=d.flag())
    return Call((x, *d.of(*_OPTIONS[name.split(".")[0]])), gradient=_plain((x,)))


@case("prelu.default", "_prelu_kernel.default")
def _prelu(d: Draw, name: str) -> Call:
    shape, dtype = d.shape(0 if name == "prelu.default" else 2), d.of(*FLOATS)
    channels = shape[1] if len(shape) > 1 else 1
    weights = (
        d.of((), (channels,)) if name == "prelu.default" else (channels, *[1] * (len(shape) - 2))
    )
    return Call((d.tensor(shape, dtype), d.tensor(weights, dtype, layout="rows")))


@case("logit.default", "special_logit.default")
def _logit(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*FLOATS), 0.0, 1.0)
    return Call((x, d.of(None, 1e-3, 0.1)))


@case("polar.default", "complex.default")
def _polar(d: Draw, name: str) -> Call:
    shape = d.shape()
    # torch's derivative of `polar` takes the absolute value to be positive.
    return Call((d.tensor(shape, low=0.25), d.tensor(d.partner(shape))))


@case("view_as_real.default", "view_as_real_copy.default")
def _view_as_real(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape(), *COMPLEX),))


@case("view_as_complex.default", "view_as_complex_copy.default")
def _view_as_complex(d: Draw, name: str) -> Call:
    return Call((d.tensor((*d.shape(0, 3), 2), layout="rows"),))


@case("_to_copy.default", "to.dtype_layout")
def _to_copy(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*NUMBERS, *COMPLEX))
    return Call((x,), {"dtype": d.of(*NUMBERS, torch.float64, None)})


@case("to.dtype")
def _to_dtype(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape(), d.of(*NUMBERS)), d.of(*NUMBERS, torch.float64)))


@case("type_as.default")
def _type_as(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape(), d.of(*NUMBERS)), d.tensor((2,), d.of(*NUMBERS))))


@case("fill.Scalar", "fill.Tensor")
def _fill(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*NUMBERS))
    value = d.of(3, 1.5, True) if name == "fill.Scalar" else d.tensor((), d.of(*NUMBERS))
    return Call((x, value))


@case("copy.default")
def _copy(d: Draw, name: str) -> Call:
    shape = d.shape()
    return Call((d.tensor(shape, d.of(*NUMBERS)), d.tensor(d.partner(shape), d.of(*NUMBERS))))


@case("view_as.default")
def _view_as(d: Draw, name: str) -> Call:
    return Call((d.tensor((2, 3), layout="rows"), d.tensor(d.of((2, 3), (3, 2), (6,)))))

"""Operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.torch.ops.operator import (
    absolute,
    array,
    cast,
    dtype_of,
    floating,
    is_float,
    operator,
    promoted,
)


def _pair(x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    dtype = promoted(x, y)
    return array(x, dtype), array(y, dtype)


def _float_pair(x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    """Return both as floats: whole numbers become them before they could go round in 8 bits."""
    dtype = promoted(x, y, 1.0)
    return array(x, dtype), array(y, dtype)


def _binary(*names: str) -> Callable:
    """Enter a function of two arrays that are first brought to torch's common dtype."""

    def enter(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable:
        @operator(*names)
        def run(x: Any, y: Any) -> jax.Array:
            return function(*_pair(x, y))

        return run

    return enter


def _float_unary(names: tuple[str, ...], function: Callable[[jax.Array], jax.Array]) -> None:
    operator(*(f"{name}.default" for name in names))(lambda x: function(floating(x)))


@operator("add.Tensor", "add.Scalar")
def _add(x: Any, y: Any, alpha: Any = 1) -> jax.Array:
    x, y = _pair(x, y)
    if x.dtype == jnp.bool_:
        return x | (y & bool(alpha))
    return x + (y if _is_one(alpha) else y * array(alpha, y.dtype))


@operator("sub.Tensor", "sub.Scalar")
def _sub(x: Any, y: Any, alpha: Any = 1) -> jax.Array:
    x, y = _pair(x, y)
    return x - (y if _is_one(alpha) else y * array(alpha, y.dtype))


@operator("rsub.Tensor", "rsub.Scalar")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> jax.Array:
    return _sub(y, x, alpha)


def _is_one(alpha: Any) -> bool:
    return isinstance(alpha, int | float) and alpha == 1


@_binary("mul.Tensor", "mul.Scalar")
def _mul(x, y):
    return x & y if x.dtype == jnp.bool_ else x * y


@operator("div.Tensor", "div.Scalar", "true_divide.Tensor")
def _div(x: Any, y: Any) -> jax.Array:
    x, y = _float_pair(x, y)
    return x / y


@operator("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(x: Any, y: Any, rounding_mode: str | None = None) -> jax.Array:
    if rounding_mode is None:
        return _div(x, y)
    x, y = _pair(x, y)
    if rounding_mode == "floor":
        return _floor_divide(x, y)
    return jnp.trunc(x / y) if is_float(x) else jax.lax.div(*jnp.broadcast_arrays(x, y))


@_binary("floor_divide.default", "floor_divide.Scalar")
def _floor_divide(x, y):
    if not is_float(x):
        return jnp.floor_divide(x, y)
    # By the remainder, as torch and C do: x / y may round up to the next whole number.
    remainder = jnp.fmod(x, y)
    quotient = (x - remainder) / y
    quotient = jnp.where((remainder != 0) & ((y < 0) != (remainder < 0)), quotient - 1, quotient)
    floored = jnp.floor(quotient)
    floored = jnp.where(quotient - floored > 0.5, floored + 1, floored)
    floored = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(x), x / y), floored)
    return jnp.where(y == 0, x / y, floored)


@_binary("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(x, y):
    return jnp.remainder(x, y)


@_binary("fmod.Tensor", "fmod.Scalar")
def _fmod(x, y):
    return jnp.fmod(x, y)


@operator("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(x: Any, y: Any) -> jax.Array:
    if isinstance(y, int) and not isinstance(y, bool) and 0 <= y <= 16 and np.ndim(x):
        dtype = promoted(x, y)
        return jax.lax.integer_pow(array(x, dtype), y)
    if isinstance(y, float) and y == 2.0 and is_float(jnp.asarray(x)):
        return x * x
    if isinstance(y, float) and y == 0.5 and is_float(jnp.asarray(x)):
        return jnp.sqrt(x)
    x, y = _pair(x, y)
    return jnp.power(x, y)


operator("atan2.default")(lambda x, y: jnp.arctan2(*_float_pair(x, y)))
_binary("hypot.default")(jnp.hypot)
_binary("nextafter.default")(jnp.nextafter)
_binary("logaddexp.default")(jnp.logaddexp)
_binary("logaddexp2.default")(jnp.logaddexp2)
_binary("maximum.default", "max.other")(jnp.maximum)
_binary("minimum.default", "min.other")(jnp.minimum)
_binary("fmax.default")(jnp.fmax)
_binary("fmin.default")(jnp.fmin)
_binary("gcd.default")(jnp.gcd)
_binary("eq.Tensor", "eq.Scalar")(lambda x, y: x == y)
_binary("ne.Tensor", "ne.Scalar")(lambda x, y: x != y)
_binary("lt.Tensor", "lt.Scalar")(lambda x, y: x < y)
_binary("le.Tensor", "le.Scalar")(lambda x, y: x <= y)
_binary("gt.Tensor", "gt.Scalar")(lambda x, y: x > y)
_binary("ge.Tensor", "ge.Scalar")(lambda x, y: x >= y)
_binary("bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor", "__and__.Scalar")(
    lambda x, y: x & y
)
_binary("bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor", "__or__.Scalar")(
    lambda x, y: x | y
)
_binary("bitwise_xor.Tensor", "bitwise_xor.Scalar", "__xor__.Tensor", "__xor__.Scalar")(
    lambda x, y: x ^ y
)
_binary("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar")(
    lambda x, y: x << y
)
_binary("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar")(
    lambda x, y: x >> y
)
operator("logical_and.default")(jnp.logical_and)
operator("logical_or.default")(jnp.logical_or)
operator("logical_xor.default")(jnp.logical_xor)
operator("logical_not.default")(jnp.logical_not)
operator("bitwise_not.default")(jnp.bitwise_not)


@operator("copysign.Tensor", "copysign.Scalar")
def _copysign(x: Any, y: Any) -> jax.Array:
    x, y = _float_pair(x, y)
    signed = jnp.copysign(x, y)
    # At 0 torch's derivative is 0.
    return jnp.where(x == 0, jax.lax.stop_gradient(signed), signed)


@operator("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self")
def _xlogy(x: Any, y: Any) -> jax.Array:
    return jax.scipy.special.xlogy(*_float_pair(x, y))


operator("neg.default")(jnp.negative)
operator("positive.default")(jnp.positive)
operator("abs.default")(absolute)
operator("square.default")(jnp.square)
operator("isnan.default")(jnp.isnan)
operator("isinf.default")(jnp.isinf)
operator("isfinite.default")(jnp.isfinite)
operator("signbit.default")(jnp.signbit)
operator("real.default")(jnp.real)
operator("imag.default")(jnp.imag)


@operator("angle.default")
def _angle(x: jax.Array) -> jax.Array:
    x = floating(x)
    if not is_float(x):
        return jnp.angle(x)
    turned = jnp.where(x < 0, jnp.asarray(math.pi, x.dtype), 0).astype(x.dtype)
    return jnp.where(jnp.isnan(x), jax.lax.stop_gradient(x), turned)


operator("conj.default", "_conj.default", "conj_physical.default")(jnp.conj)
operator("resolve_conj.default", "resolve_neg.default")(lambda x: x)


@operator("sign.default", "sgn.default")
def _sign(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        safe = jnp.where(x == 0, 1, x)
        return jnp.where(x == 0, 0, safe / jnp.abs(safe))
    return jnp.where(jnp.isnan(x), 0, jnp.sign(x)) if is_float(x) else jnp.sign(x)


def _whole(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return a rounding that leaves integers as they are."""
    return lambda x: function(x) if is_float(x) else x


operator("floor.default")(_whole(jnp.floor))
operator("ceil.default")(_whole(jnp.ceil))
operator("trunc.default", "fix.default")(_whole(jnp.trunc))
operator("round.default")(_whole(jnp.round))


@operator("round.decimals")
def _round_decimals(x: jax.Array, decimals: int = 0) -> jax.Array:
    if not is_float(x) or decimals == 0:
        return _whole(jnp.round)(x)
    scale = 10.0 ** abs(decimals)
    return jnp.round(x * scale) / scale if decimals > 0 else jnp.round(x / scale) * scale


@operator("frac.default")
def _frac(x: jax.Array) -> jax.Array:
    return x - jnp.trunc(x)


def _digamma(x: jax.Array) -> jax.Array:
    # At 0 the sign of the zero tells from which side the pole is met.
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), jax.lax.digamma(x)).astype(x.dtype)


@jax.custom_jvp
def _lgamma(x: jax.Array) -> jax.Array:
    return jax.lax.lgamma(x)


@_lgamma.defjvp
def _lgamma_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (tangent,) = primals, tangents
    return _lgamma(x), tangent * _digamma(x)


for _names, _function in {
    ("exp",): jnp.exp,
    ("exp2",): jnp.exp2,
    ("expm1",): jnp.expm1,
    ("log",): jnp.log,
    ("log2",): jnp.log2,
    ("log10",): jnp.log10,
    ("log1p",): jnp.log1p,
    ("sqrt",): jnp.sqrt,
    ("rsqrt",): jax.lax.rsqrt,
    ("reciprocal",): lambda x: 1 / x,
    ("sin",): jnp.sin,
    ("cos",): jnp.cos,
    ("tan",): jnp.tan,
    ("asin",): jnp.arcsin,
    ("acos",): jnp.arccos,
    ("atan",): jnp.arctan,
    ("sinh",): jnp.sinh,
    ("cosh",): jnp.cosh,
    ("tanh",): jnp.tanh,
    ("asinh",): jnp.arcsinh,
    ("acosh",): jnp.arccosh,
    ("atanh",): jnp.arctanh,
    ("erf", "special_erf"): jax.lax.erf,
    ("erfc", "special_erfc"): jax.lax.erfc,
    ("erfinv", "special_erfinv"): jax.lax.erf_inv,
    ("lgamma",): _lgamma,
    ("digamma",): _digamma,
    ("i0", "special_i0"): jnp.i0,
    ("sinc", "special_sinc"): jnp.sinc,
    ("sigmoid", "special_expit"): jax.nn.sigmoid,
    ("log_sigmoid",): jax.nn.log_sigmoid,
}.items():
    _float_unary(_names, _function)


@operator("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(condition: jax.Array, x: Any, y: Any) -> jax.Array:
    return jnp.where(condition.astype(jnp.bool_), *_pair(x, y))


@operator("clamp.default", "clip.default", "clamp.Tensor", "clip.Tensor")
def _clamp(x: jax.Array, min: Any = None, max: Any = None) -> jax.Array:
    limits = [limit for limit in (min, max) if limit is not None]
    dtype = promoted(x, *limits)
    x = array(x, dtype)
    low, high = (None if limit is None else array(limit, dtype) for limit in (min, max))
    if any(isinstance(limit, jax.Array) for limit in limits):
        y = _between_arrays(x, low, high)
    else:
        # Chosen by comparison, the derivative at a limit is 0, as torch has it, and NaN stays.
        y = x if low is None else jnp.where(x <= low, low, x)
        y = y if high is None else jnp.where(y >= high, high, y)
    for limit in (low, high):
        if limit is not None and is_float(limit):
            y = jnp.where(jnp.isnan(limit), limit, y)
    return y


def _between_arrays(x: jax.Array, low: Any, high: Any) -> jax.Array:
    """Clamp by arrays: where x meets one limit, torch's derivative goes to both in halves."""
    y = x if low is None else jnp.where(x < low, low, x)
    y = y if high is None else jnp.where(y > high, high, y)
    if not is_float(x):
        return y
    if low is not None:
        met = x == low if high is None else (x == low) & (x < high)
        y = jnp.where(met, 0.5 * x + 0.5 * low, y)
    if high is not None:
        met = x == high if low is None else (x == high) & (x > low)
        y = jnp.where(met, 0.5 * x + 0.5 * high, y)
    return y


@operator("clamp_min.default", "clamp_min.Tensor")
def _clamp_min(x: jax.Array, min: Any) -> jax.Array:
    return _clamp(x, min, None)


@operator("clamp_max.default", "clamp_max.Tensor")
def _clamp_max(x: jax.Array, max: Any) -> jax.Array:
    return _clamp(x, None, max)


@operator("lerp.Scalar", "lerp.Tensor")
def _lerp(start: jax.Array, end: jax.Array, weight: Any) -> jax.Array:
    return start + array(weight, start.dtype) * (end - start)


@operator("addcmul.default")
def _addcmul(x: jax.Array, y: jax.Array, z: jax.Array, value: Any = 1) -> jax.Array:
    return x + array(value, x.dtype) * y * z


@operator("addcdiv.default")
def _addcdiv(x: jax.Array, y: jax.Array, z: jax.Array, value: Any = 1) -> jax.Array:
    return x + array(value, x.dtype) * y / z


@operator("nan_to_num.default")
def _nan_to_num(
    x: jax.Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> jax.Array:
    return jnp.nan_to_num(x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


@operator("logit.default", "special_logit.default")
def _logit(x: jax.Array, eps: float | None = None) -> jax.Array:
    x = floating(x)
    if eps is not None:
        x = jnp.where(x < eps, eps, jnp.where(x > 1 - eps, 1 - eps, x)).astype(x.dtype)
    return jnp.log(x) - jnp.log1p(-x)


@operator("polar.default")
def _polar(absolute: jax.Array, angle: jax.Array) -> jax.Array:
    return _complex(absolute * jnp.cos(angle), absolute * jnp.sin(angle))


@operator("complex.default")
def _complex(real: jax.Array, imag: jax.Array) -> jax.Array:
    return jax.lax.complex(*jnp.broadcast_arrays(real, imag))


@operator("view_as_real.default", "view_as_real_copy.default")
def _view_as_real(x: jax.Array) -> jax.Array:
    return jnp.stack([x.real, x.imag], axis=-1)


@operator("view_as_complex.default", "view_as_complex_copy.default")
def _view_as_complex(x: jax.Array) -> jax.Array:
    return jax.lax.complex(x[..., 0], x[..., 1])


@operator("_to_copy.default", "to.dtype", "to.dtype_layout", "type_as.default", needs=("dtype",))
def _to_copy(x: Any, *_: Any, dtype: str | None = None, **__: Any) -> jax.Array:
    x = jnp.asarray(x)
    return x if dtype is None else cast(x, dtype_of(dtype))


@operator("deg2rad.default")
def _deg2rad(x: jax.Array) -> jax.Array:
    return floating(x) * (math.pi / 180)


@operator("bridge.stop_gradient.default", "detach.default", "detach_copy.default")
def _stop_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x)


@operator(
    "clone.default", "alias.default", "alias_copy.default", "contiguous.default",
    "lift_fresh_copy.default", "lift_fresh.default",
)  # fmt: skip
def _same(x: jax.Array, *_: Any, **__: Any) -> jax.Array:
    return x

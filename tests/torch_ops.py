"""Holding one operator to torch's own: what a call is, and what counts as equal.

Contents come from a NumPy generator whose seed hypothesis draws; shapes, dtypes, layouts and
options are drawn by hypothesis itself, the ordinary choice first, so that a failure shrinks to it.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch
from hypothesis import reject
from hypothesis import strategies as st

from bridges.torch.ops import operators

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
REAL = (*FLOATS, *INTEGERS)
NUMBERS = (*REAL, torch.bool)
COMPLEX = (torch.complex64,)

# A few shapes of up to four axes, so that JAX compiles each operator for few of them.
SHAPES = [(2, 3), (5,), (), (2, 1, 3), (0,), (3, 2, 2), (1,), (2, 0, 3), (2, 3, 1, 2), (4, 1)]

_SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-3, 1e4, -1e4, 1e-30, 3e30, -3e30, 0.5, 1, -1, 2.5, 6]
)
_EPSILON = {"float32": 2.0**-23, "complex64": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    Attributes:
        args: torch tensors, numbers and lists of them.
        kwargs: by torch's names.
        gradient: whether the derivative by every float32 or complex64 tensor is compared.
        ulps: how many units in the last place the two may differ by: torch's and XLA's
            elementary functions and orders of summation differ by a few.
        scale: at least this size is taken for what the units are of, up to 1: results near 0 are
            otherwise held to units of the largest of them.
        wide: whether the operator in float64 decides where the two differ more.
        constant: positions of arguments by which torch has no derivative.
        traceable: whether shapes come from shapes alone.
        keep: what of the outputs is compared; all of them where it is None.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    gradient: bool = True
    ulps: float = 32
    scale: float = 0.0
    wide: bool = True
    constant: tuple[int, ...] = ()
    traceable: bool = True
    keep: Callable[[tuple], tuple] | None = None


Case = Callable[["Draw", str], Call]
CASES: dict[str, Case] = {}


def case(*names: str) -> Callable[[Case], Case]:
    """Enter a function that draws calls of the operators of these names."""

    def enter(function: Case) -> Case:
        for name in names:
            assert name not in CASES, name
            CASES[name] = function
        return function

    return enter


class Draw:
    """Draws shapes, tensors and options."""

    def __init__(self, draw: Callable[[st.SearchStrategy], Any]):
        self._draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def of(self, *options: Any) -> Any:
        """Return one of the options."""
        return self._draw(st.sampled_from(options))

    def flag(self) -> bool:
        """Return False or True."""
        return self._draw(st.booleans())

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return self._draw(st.integers(low, high))

    def shape(self, least: int = 0, most: int = 4, empty: bool = True) -> tuple[int, ...]:
        """Return a shape of `least` to `most` axes."""
        fits = [s for s in SHAPES if least <= len(s) <= most and (empty or 0 not in s)]
        return self.of(*fits)

    def axis(self, shape: Sequence[int]) -> int:
        """Return one of a shape's axes, counted from the front or from the back."""
        count = max(len(shape), 1)
        return self.of(*range(-1, -count - 1, -1), *range(count))

    def some_axes(self, shape: Sequence[int], least: int = 0) -> list[int]:
        """Return several of a shape's axes in any order."""
        count = len(shape)
        axes = [int(axis) for axis in self.random.permutation(count)]
        kept = axes[: self.integer(min(least, count), count)]
        return [axis - count if self.random.random() < 0.5 else axis for axis in kept]

    def partner(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape that broadcasts with another."""
        start = self.of(0, *range(1, len(shape) + 1))
        return tuple(1 if self.random.random() < 0.25 else size for size in shape[start:])

    def values(self, shape: Sequence[int], dtype: torch.dtype, low: Any, high: Any, special: bool):
        """Return a NumPy array of ordinary values, ties and zeros among them, or special ones."""
        shape = tuple(shape)
        if dtype == torch.bool:
            return self.random.random(shape) < 0.5
        if not dtype.is_floating_point and not dtype.is_complex:
            low, high = (-5 if low is None else low), (7 if high is None else high)
            return self.random.integers(max(low, 0) if dtype == torch.uint8 else low, high, shape)
        low, high = (-3.0 if low is None else low), (3.0 if high is None else high)
        values = self.random.uniform(low, high, shape)
        tied = np.clip(np.round(values * 2) / 2, low, high)
        values = np.where(self.random.random(shape) < 0.3, tied, values)
        if special:
            chosen = self.random.choice(_SPECIAL, shape)
            values = np.where(self.random.random(shape) < 0.6, chosen, values)
        if dtype.is_complex:
            values = values + 1j * self.random.uniform(-3, 3, shape)
        return values

    def tensor(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        low: Any = None,
        high: Any = None,
        special: bool = False,
        layout: str | None = None,
    ) -> torch.Tensor:
        """Return a tensor of a shape in one of torch's layouts."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            values = torch.tensor(np.asarray(self.values(shape, dtype, low, high, special)))
        layout = self.of("rows", "columns", "gaps", "spread") if layout is None else layout
        return _laid_out(values.to(dtype), layout)

    def distinct(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor without equal values."""
        order = self.random.permutation(math.prod(shape)).reshape(tuple(shape))
        return torch.tensor(order if dtype == torch.uint8 else order - 3).to(dtype)

    def places(self, shape: Sequence[int], length: int, negative: bool = False) -> torch.Tensor:
        """Return int64 places in an axis of a length."""
        if length == 0 and math.prod(shape):
            reject()
        low = -length if negative else 0
        return torch.tensor(self.random.integers(low, max(length, 1), tuple(shape)))


def _laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "columns" and x.ndim > 1:
        return x.mT.contiguous().mT
    if layout == "gaps" and x.ndim:
        return torch.repeat_interleave(x, 2, dim=-1)[..., ::2]
    if layout == "spread" and x.ndim and x.shape[0]:
        return x[:1].expand(x.shape)
    return x


def to_jax(value: Any) -> Any:
    """Return an argument as a graph would hand it to an operator."""
    if isinstance(value, torch.Tensor):
        value = value.detach().resolve_conj().resolve_neg()
        if value.dtype == torch.bfloat16:
            bits = value.contiguous().view(torch.uint16).numpy()
            return jnp.asarray(bits.view(ml_dtypes.bfloat16))
        return jnp.asarray(value.numpy())
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, list | tuple):
        return [to_jax(part) for part in value]
    return value


def _mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return [_mapped(function, part) for part in value]
    return value


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _mapped(lambda x: found.append(x) or x, value)
    return found


def outputs_of(result: Any) -> tuple:
    """Return an operator's outputs in a tuple."""
    single = not hasattr(result, "__iter__") or hasattr(result, "dtype")
    return (result,) if single else tuple(result)


def _packet(name: str) -> Callable[..., Any]:
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _torch_run(name: str, call: Call, args: Any) -> tuple:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = outputs_of(_packet(name)(*args, **call.kwargs))
    return result if call.keep is None else call.keep(result)


_NARROW = (torch.float32, torch.complex64)
_WIDE = (torch.float64, torch.complex128)


def _narrow(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone()


def _wide(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    if x.is_complex():
        return x.to(torch.complex128)
    return x.to(torch.float64) if x.is_floating_point() else x


def check(name: str, call: Call) -> None:
    """Hold one call to torch: values and dtypes, then derivatives.

    Calls that torch itself refuses, such as a dtype that it has no kernel for, are drawn anew.
    """
    try:
        expected = _torch_run(name, call, _mapped(torch.clone, list(call.args)))
    except (RuntimeError, NotImplementedError, IndexError):
        reject()
    narrow = _torch_gradients(name, call, _narrow, _NARROW) if call.gradient else None
    which, cotangents, grads = narrow or ((), (), ())
    got, pulled = _jax_results(name, call, expected, which, cotangents)
    assert len(got) == len(expected), f"{len(got)} outputs, torch has {len(expected)}"

    @functools.cache
    def widest() -> tuple:
        return _wide_outputs(name, call) or (None,) * len(expected)

    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            assert mine == theirs
            continue
        _same_kind(mine, theirs)
        units = (call.ulps, call.scale)
        _close(mine, theirs, lambda k=number: widest()[k], units, f"output {number}")

    @functools.cache
    def widest_gradients() -> tuple:
        found = _torch_gradients(name, call, _wide, _WIDE) if call.wide else None
        return found[2] if found else (None,) * len(grads)

    for number, (mine, theirs) in enumerate(zip(pulled, grads, strict=True)):
        assert mine.shape == tuple(theirs.shape)
        units = (4 * call.ulps, call.scale)
        _close(mine, theirs, lambda k=number: widest_gradients()[k], units, f"gradient {number}")


def _jax_results(
    name: str, call: Call, expected: tuple, which: Sequence[int], cotangents: Sequence[Any]
) -> tuple[tuple, tuple]:
    """Return outputs and derivatives, compiled where shapes come from shapes alone."""
    function = _jax_function(name, call, expected)
    args = to_jax(list(call.args))
    leaves, tree = jax.tree.flatten(args, is_leaf=_is_none)
    fixed = [
        n in call.constant for n, arg in enumerate(args) for _ in jax.tree.leaves(arg, _is_none)
    ]
    arrays = [number for number, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    slim = (jnp.float32, jnp.complex64)
    floats = [n for n in arrays if leaves[n].dtype in slim and not fixed[n]]

    def run(values: Mapping[int, jax.Array], cotangents: list[jax.Array]) -> tuple:
        def chosen(sources: list[jax.Array]) -> tuple:
            whole = {**dict(enumerate(leaves)), **values, **dict(zip(floats, sources, strict=True))}
            outs = function(*jax.tree.unflatten(tree, [whole[n] for n in range(len(leaves))]))
            return tuple(outs[number] for number in which), outs

        sources = [values[number] for number in floats]
        if not which:
            return chosen(sources)[1], ()
        _, pull, outs = jax.vjp(chosen, sources, has_aux=True)
        # torch's derivative by a complex number is the conjugate of JAX's.
        (pulled,) = pull(tuple(jnp.conj(cotangent) for cotangent in cotangents))
        return outs, tuple(jnp.conj(part) for part in pulled)

    compiled = jax.jit(run) if call.traceable else run
    return compiled({number: leaves[number] for number in arrays}, to_jax(list(cotangents)))


def _jax_function(name: str, call: Call, expected: tuple) -> Callable[..., tuple]:
    entry = operators()[f"aten.{name}"]
    kwargs = {key: to_jax(value) for key, value in call.kwargs.items()}
    if "dtype" in entry.needs and kwargs.get("dtype") is None:
        kwargs["dtype"] = to_jax(expected[0].dtype)
    kwargs = {key: value for key, value in kwargs.items() if key != "memory_format"}

    def run(*args: Any) -> tuple:
        result = outputs_of(entry.function(*args, **kwargs))
        return result if call.keep is None else call.keep(result)

    return run


def _same_kind(mine: Any, theirs: torch.Tensor) -> None:
    wanted = jax.dtypes.canonicalize_dtype(jnp.dtype(to_jax(theirs.dtype)))
    assert mine.dtype == wanted, f"dtype {mine.dtype}, torch has {theirs.dtype}"
    assert tuple(mine.shape) == tuple(theirs.shape), f"{mine.shape}, torch has {theirs.shape}"


def _wide_outputs(name: str, call: Call) -> tuple | None:
    """Return torch's outputs in float64, None where it has none for such arguments."""
    if not call.wide:
        return None
    try:
        return _torch_run(name, call, _mapped(_wide, list(call.args)))
    except (RuntimeError, NotImplementedError):
        return None


def _numpy(x: Any) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        x = to_jax(x) if x.dtype == torch.bfloat16 else x.detach().resolve_conj().numpy(force=True)
    x = np.asarray(x)
    if x.dtype.kind in "biu":
        return x.astype(np.int64)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _close(
    mine: Any, theirs: Any, wide: Callable[[], Any], units: tuple[float, float], what: str
) -> None:
    ulps, scale = units
    kind = str(jnp.asarray(mine).dtype)
    a, b = _numpy(mine), _numpy(theirs)
    if kind not in _EPSILON:
        np.testing.assert_array_equal(a, b, what)
        return
    if not a.size:
        return
    unit = _EPSILON[kind]
    # Half-precision functions are rounded at other places inside, hence fewer, larger units.
    allowed = (ulps if unit == 2.0**-23 else max(4.0, ulps / 8)) * unit
    if _within(a, b, allowed * (max(_size(b), scale) + np.abs(b))):
        return
    exact = wide()
    if exact is not None and np.shape(exact) == b.shape:
        c = _numpy(exact)
        with np.errstate(all="ignore"):
            miss = np.abs(b - c)
        miss = np.max(miss[np.isfinite(miss)], initial=0.0)
        # Rounding decides here: no further from the truth than a few times what torch is.
        c = np.where(np.isfinite(b), c, b)
        if _within(a, c, 8 * miss + allowed * (max(_size(c), scale) + np.abs(c))):
            return
    np.testing.assert_allclose(a, b, rtol=allowed, atol=allowed, equal_nan=True, err_msg=what)
    raise AssertionError(f"{what}: {a} is not torch's {b}")


def _size(x: np.ndarray) -> float:
    """Return the size of what cancels in a small result, at most 1."""
    finite = np.abs(x[np.isfinite(x)])
    return min(float(np.max(finite, initial=0.0)), 1.0)


def _within(a: np.ndarray, b: np.ndarray, allowed: Any) -> bool:
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= allowed
        if np.iscomplexobj(a):
            same = _alike(a.real, b.real) & _alike(a.imag, b.imag)
        else:
            same = _alike(a, b)
        return bool(np.all((np.isfinite(a) & np.isfinite(b) & near) | same))


def _alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _torch_gradients(name: str, call: Call, cast: Callable, kinds: tuple) -> tuple | None:
    """Return which outputs have derivatives, cotangents for them, and the inputs' gradients.

    None where torch has no derivative, and where half precision takes part, whose rounding is
    torch's own.
    """
    found = {x.dtype for x in _tensors(list(call.args))}
    if not found & set(_NARROW) or found & {torch.float16, torch.bfloat16}:
        return None
    leaves: list[torch.Tensor] = []

    def leaf(x: torch.Tensor) -> torch.Tensor:
        made = cast(x)
        if made.dtype in kinds:
            leaves.append(made.requires_grad_())
        return made

    try:
        args = [
            _mapped(cast if number in call.constant else leaf, arg)
            for number, arg in enumerate(call.args)
        ]
        outs = _torch_run(name, call, args)
        which = [
            number
            for number, out in enumerate(outs)
            if isinstance(out, torch.Tensor) and out.requires_grad and out.numel()
        ]
        if not which:
            return None
        ends = [outs[number] for number in which]
        cotangents = _cotangents(ends)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grads = torch.autograd.grad(ends, leaves, cotangents, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        # No derivative for the operator, or for such options.
        if re.search("implemented|does not require grad|not support", str(error)):
            return None
        raise
    whole = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]
    return which, cotangents, whole


def _cotangents(ends: list[torch.Tensor]) -> list[torch.Tensor]:
    random = np.random.default_rng(7)
    found = []
    for end in ends:
        values = random.normal(size=tuple(end.shape))
        if end.is_complex():
            values = values + 1j * random.normal(size=tuple(end.shape))
        found.append(torch.tensor(values).to(end.dtype))
    return found

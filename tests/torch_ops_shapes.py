"""Calls of the operators that move elements about, and of those that make arrays from numbers."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import torch
from torch_ops import COMPLEX, FLOATS, NUMBERS, REAL, Call, Draw, case

_EVERY = (*NUMBERS, *COMPLEX)


def _any(d: Draw, shape: tuple[int, ...], **options: Any) -> torch.Tensor:
    return d.tensor(shape, d.of(*_EVERY), special=d.flag(), **options)


@case("view.default", "reshape.default", "_unsafe_view.default", "view_copy.default",
      "_reshape_copy.default")  # fmt: skip
def _view(d: Draw, name: str) -> Call:
    x = _any(d, d.of((2, 3, 2), (6,), (0, 4)), layout="rows")
    size = d.of([-1], [2, -1], [x.numel()], [1, *x.shape], [*x.shape[:-1], x.shape[-1], 1])
    return Call((x, size))


@case("_reshape_alias.default")
def _reshape_alias(d: Draw, name: str) -> Call:
    return Call((_any(d, (2, 6), layout="rows"), [3, 4], [4, 1]), gradient=False)


@case("view.dtype")
def _view_dtype(d: Draw, name: str) -> Call:
    pairs = d.of(
        (torch.float32, torch.int32), (torch.float16, torch.bfloat16), (torch.int32, torch.uint8),
        (torch.uint8, torch.float32), (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32),
    )  # fmt: skip
    x = d.tensor(d.of((2, 4), (4,), (0, 4), (1, 2, 8)), pairs[0], layout="rows")
    return Call((x, pairs[1]), gradient=False, ulps=0, wide=False)


@case("permute.default", "permute_copy.default")
def _permute(d: Draw, name: str) -> Call:
    shape = d.shape()
    return Call((_any(d, shape), _order(d, len(shape))))


def _order(d: Draw, count: int) -> list[int]:
    return [int(i) - (count if d.random.random() < 0.5 else 0) for i in d.random.permutation(count)]


@case("transpose.int", "transpose_copy.int")
def _transpose(d: Draw, name: str) -> Call:
    shape = d.shape()
    return Call((_any(d, shape), d.axis(shape), d.axis(shape)))


@case("t.default", "t_copy.default")
def _t(d: Draw, name: str) -> Call:
    return Call((_any(d, d.shape(0, 2)),))


@case("numpy_T.default")
def _numpy_t(d: Draw, name: str) -> Call:
    return Call((_any(d, d.shape(2, 2)),))


@case("movedim.intlist")
def _movedim(d: Draw, name: str) -> Call:
    shape = d.shape(1)
    count = d.integer(1, len(shape))
    return Call((_any(d, shape), _order(d, len(shape))[:count], _order(d, len(shape))[:count]))


@case("expand.default", "expand_copy.default", "broadcast_to.default")
def _expand(d: Draw, name: str) -> Call:
    shape = d.of((2, 3), (1, 3), (), (1,), (2, 1, 3), (0, 1))
    wide = [3 if size == 1 else d.of(size, -1) for size in shape]
    return Call((_any(d, shape), d.of([], [2], [1, 4]) + wide))


@case("unsqueeze.default", "unsqueeze_copy.default")
def _unsqueeze(d: Draw, name: str) -> Call:
    shape = d.shape()
    return Call((_any(d, shape), d.axis((*shape, 1))))


@case("squeeze.default")
def _squeeze(d: Draw, name: str) -> Call:
    return Call((_any(d, d.shape()),))


@case("squeeze.dim")
def _squeeze_dim(d: Draw, name: str) -> Call:
    shape = d.shape()
    return Call((_any(d, shape), d.axis(shape)))


@case("squeeze.dims", "squeeze_copy.dims")
def _squeeze_dims(d: Draw, name: str) -> Call:
    shape = d.of((2, 1, 3), (1, 1), (1,), (2, 3), ())
    return Call((_any(d, shape), d.some_axes(shape)))


@case("flatten.using_ints")
def _flatten(d: Draw, name: str) -> Call:
    shape = d.shape()
    start, end = sorted(d.integer(0, max(len(shape) - 1, 0)) for _ in range(2))
    return Call((_any(d, shape), start, end - (max(len(shape), 1) if d.flag() else 0)))


@case("cat.default", "stack.default")
def _cat(d: Draw, name: str) -> Call:
    shape = d.shape(1 if name == "cat.default" else 0)
    dim = d.axis(shape if name == "cat.default" else (*shape, 1))
    parts = []
    for _ in range(d.integer(1, 3)):
        sizes = list(shape)
        if name == "cat.default":
            sizes[dim] = d.of(sizes[dim], 1, 0, 2)
        parts.append(d.tensor(sizes, d.of(*_EVERY)))
    if name == "cat.default" and d.flag():
        parts.insert(d.integer(0, len(parts)), torch.zeros(0))
    return Call((parts, dim))


@case("split_with_sizes.default", "split_with_sizes_copy.default")
def _split_with_sizes(d: Draw, name: str) -> Call:
    shape = d.shape(1)
    dim = d.axis(shape)
    first = d.integer(0, shape[dim])
    return Call((_any(d, shape), d.of([first, shape[dim] - first], [shape[dim]]), dim))


@case("split.Tensor", "split_copy.Tensor", "chunk.default")
def _split(d: Draw, name: str) -> Call:
    shape = d.shape(1)
    return Call((_any(d, shape), d.integer(1, 4), d.axis(shape)))


@case("unbind.int", "unbind_copy.int")
def _unbind(d: Draw, name: str) -> Call:
    shape = d.shape(1)
    return Call((_any(d, shape), d.axis(shape)))


@case("slice.Tensor", "slice_copy.Tensor")
def _slice(d: Draw, name: str) -> Call:
    shape = d.shape(1)
    ends = (None, 0, 1, -1, -2, 3, 100, -100, 2**63 - 1)
    return Call((_any(d, shape), d.axis(shape), d.of(*ends), d.of(*ends), d.of(1, 2, 5)))


@case("narrow.default")
def _narrow(d: Draw, name: str) -> Call:
    shape = d.shape(1)
    dim = d.axis(shape)
    start = d.integer(0, shape[dim])
    length = d.integer(0, shape[dim] - start)
    return Call((_any(d, shape), dim, d.of(start, start - shape[dim]), length))


@case("select.int", "select_copy.int")
def _select(d: Draw, name: str) -> Call:
    shape = d.shape(1, empty=False)
    dim = d.axis(shape)
    return Call((_any(d, shape), dim, d.integer(-shape[dim], shape[dim] - 1)))


@case("slice_scatter.default")
def _slice_scatter(d: Draw, name: str) -> Call:
    shape = d.shape(1)
    dtype, dim = d.of(*_EVERY), d.axis(shape)
    start, end, step = d.of(None, 0, 1, -2), d.of(None, 2, 100, -1), d.of(1, 2)
    x = d.tensor(shape, dtype)
    part = torch.ops.aten.slice.Tensor(x, dim, start, end, step)
    return Call((x, d.tensor(part.shape, dtype), dim, start, end, step))


@case("select_scatter.default")
def _select_scatter(d: Draw, name: str) -> Call:
    shape = d.shape(1, empty=False)
    dtype, dim = d.of(*_EVERY), d.axis(shape)
    place = d.integer(-shape[dim], shape[dim] - 1)
    x = d.tensor(shape, dtype)
    return Call((x, d.tensor(x.select(dim, place).shape, dtype), dim, place))


def _two_axes(d: Draw, count: int) -> list[int]:
    return _order(d, count)[:2]


@case("diagonal.default", "diagonal_copy.default")
def _diagonal(d: Draw, name: str) -> Call:
    shape = d.shape(2)
    return Call((_any(d, shape), d.integer(-3, 3), *_two_axes(d, len(shape))))


@case("diagonal_scatter.default")
def _diagonal_scatter(d: Draw, name: str) -> Call:
    shape = d.shape(2)
    dtype = d.of(*_EVERY)
    where = (d.integer(-2, 2), *_two_axes(d, len(shape)))
    x = d.tensor(shape, dtype)
    return Call((x, d.tensor(torch.diagonal(x, *where).shape, dtype), *where))


@case("diag_embed.default")
def _diag_embed(d: Draw, name: str) -> Call:
    shape = d.shape(1, 3)
    return Call((_any(d, shape), d.integer(-2, 2), *_two_axes(d, len(shape) + 1)))


@case("tril.default", "triu.default")
def _triangle(d: Draw, name: str) -> Call:
    return Call((_any(d, d.shape(2)), d.integer(-3, 3)))


@case("repeat.default")
def _repeat(d: Draw, name: str) -> Call:
    shape = d.shape(0, 3)
    return Call((_any(d, shape), d.of([], [2]) + [d.integer(0, 2) for _ in shape]))


@case("repeat_interleave.self_int")
def _repeat_interleave(d: Draw, name: str) -> Call:
    shape = d.shape()
    return Call((_any(d, shape), d.integer(0, 3), d.of(None, d.axis(shape))))


@case("flip.default")
def _flip(d: Draw, name: str) -> Call:
    shape = d.shape()
    return Call((_any(d, shape), d.some_axes(shape)))


@case("roll.default")
def _roll(d: Draw, name: str) -> Call:
    shape = d.shape()
    dims = d.some_axes(shape)
    shifts = [d.integer(-4, 4) for _ in dims] or [d.integer(-4, 4)]
    return Call((_any(d, shape), shifts, dims))


@case("rot90.default")
def _rot90(d: Draw, name: str) -> Call:
    shape = d.shape(2)
    return Call((_any(d, shape), d.integer(-3, 5), _two_axes(d, len(shape))))


@case("unfold.default", "unfold_copy.default")
def _unfold(d: Draw, name: str) -> Call:
    shape = d.shape()
    dim = d.axis(shape)
    size = d.integer(0, shape[dim]) if shape else d.of(1, 0)
    return Call((_any(d, shape), dim, size, d.integer(1, 3)))


@case("as_strided.default", "as_strided_copy.default")
def _as_strided(d: Draw, name: str) -> Call:
    x = _any(d, d.of((3, 4), (12,), (2, 2, 3)), layout="rows")
    where = d.of(
        ([2, 3], [4, 1]), ([3, 2], [1, 2]), ([4], [2]), ([], []), ([2, 2], [0, 3]), ([0], [1])
    )
    return Call((x, *where, d.of(None, 0, 2)))


@case("constant_pad_nd.default")
def _constant_pad(d: Draw, name: str) -> Call:
    shape = d.shape(1, empty=False)
    pad = [d.of(0, 1, 2, -1) for _ in range(2 * d.integer(1, len(shape)))]
    return Call((_any(d, shape), pad, d.of(0, 2.5, 1, -1)))


@case(
    *(f"{kind}_pad{axes}d.default" for kind in ("reflection", "replication") for axes in (1, 2, 3))
)
def _pad(d: Draw, name: str) -> Call:
    axes = int(name.split("_pad")[1][0])
    shape = d.of((2,), (1, 2)) + tuple(d.of(4, 3) for _ in range(axes))
    pad = [d.of(0, 1, 2, -1) for _ in range(2 * axes)]
    return Call((d.tensor(shape, d.of(*FLOATS)), pad))


@case("pixel_shuffle.default", "pixel_unshuffle.default")
def _pixel_shuffle(d: Draw, name: str) -> Call:
    shape = d.of((8, 2, 4), (2, 4, 4, 2), (1, 2, 8, 2, 2))
    return Call((_any(d, shape), d.of(2, 1)))


@case("channel_shuffle.default")
def _channel_shuffle(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.of((2, 6, 3), (1, 6, 2, 2)), d.of(*REAL)), d.of(2, 3, 1)))


@case("sym_size.int", "sym_stride.int")
def _sym_size(d: Draw, name: str) -> Call:
    shape = d.shape(1)
    # Made by torch itself: one that it takes from NumPy has strides of 0 where it holds nothing.
    return Call((torch.zeros(shape), d.axis(shape)), gradient=False, traceable=False)


@case("sym_numel.default")
def _sym_numel(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape()),), gradient=False, traceable=False)


_OPTIONAL = (None, torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float64)


@case("full.default")
def _full(d: Draw, name: str) -> Call:
    value = d.of(3, 1.5, True, float("inf"), 0)
    return Call((list(d.shape()), value), _dtype_for(d, value))


def _dtype_for(d: Draw, value: Any) -> dict[str, Any]:
    finite = math.isfinite(value)
    return {"dtype": d.of(*(_OPTIONAL if finite else (None, torch.float16)))}


@case("full_like.default")
def _full_like(d: Draw, name: str) -> Call:
    x, value = d.tensor(d.shape(), d.of(*NUMBERS)), d.of(3, 1.5, True)
    return Call((x, value), _dtype_for(d, value), gradient=False)


@case("new_full.default")
def _new_full(d: Draw, name: str) -> Call:
    x, value = d.tensor(d.shape(), d.of(*NUMBERS)), d.of(3, 1.5, True)
    return Call((x, list(d.shape()), value), _dtype_for(d, value), gradient=False)


@case("zeros.default", "ones.default")
def _zeros(d: Draw, name: str) -> Call:
    return Call((list(d.shape()),), {"dtype": d.of(*_OPTIONAL)})


@case("zeros_like.default", "ones_like.default")
def _zeros_like(d: Draw, name: str) -> Call:
    return Call((d.tensor(d.shape(), d.of(*NUMBERS)),), {"dtype": d.of(*_OPTIONAL)}, gradient=False)


@case("new_zeros.default", "new_ones.default")
def _new_zeros(d: Draw, name: str) -> Call:
    args = (d.tensor(d.shape(), d.of(*NUMBERS)), list(d.shape()))
    return Call(args, {"dtype": d.of(*_OPTIONAL)}, gradient=False)


@case("empty.memory_format", "empty_permuted.default", "empty_strided.default",
      "empty_like.default", "new_empty.default", "new_empty_strided.default")  # fmt: skip
def _empty(d: Draw, name: str) -> Call:
    shape = list(d.shape())
    packet = name.split(".")[0]
    args: list[Any] = [] if packet.endswith("_like") else [shape]
    if packet == "empty_permuted":
        args.append([int(axis) for axis in d.random.permutation(len(shape))])
    if packet.endswith("strided"):
        args.append(list(torch.zeros(shape).stride()))
    if packet.startswith("new") or packet.endswith("_like"):
        args.insert(0, d.tensor(shape, d.of(*NUMBERS)))
    dtype = {"dtype": d.of(*_OPTIONAL)}
    return Call(tuple(args), dtype, gradient=False, keep=_unwritten)


def _unwritten(outputs: tuple) -> tuple:
    """What an empty tensor holds is nobody's promise; its shape and dtype are."""
    (x,) = outputs
    return (torch.zeros_like(x) if isinstance(x, torch.Tensor) else jnp.zeros_like(x),)


@case("scalar_tensor.default")
def _scalar_tensor(d: Draw, name: str) -> Call:
    value = d.of(3, 1.5, True, float("-inf"))
    return Call((value,), _dtype_for(d, value))


@case("arange.default", "arange.start", "arange.start_step")
def _arange(d: Draw, name: str) -> Call:
    start, end, step = d.of((0, 5, 1), (2, 9, 3), (0, 0, 1), (7, 1, -2), (0.5, 3, 0.7), (0, 1, 0.1))
    dtype = {"dtype": d.of(None, torch.float32, torch.int64, torch.float16, torch.int32)}
    if name == "arange.default":
        return Call((max(end, start),), dtype)
    if name == "arange.start":
        return Call((min(start, end), max(start, end)), dtype)
    return Call((start, end, step), dtype)


@case("linspace.default")
def _linspace(d: Draw, name: str) -> Call:
    dtype = {"dtype": d.of(None, torch.float32, torch.int64, torch.bfloat16)}
    return Call((d.of(0, -1.5, 3), d.of(1, 10.0, 3), d.integer(0, 7)), dtype)


@case("eye.default", "eye.m")
def _eye(d: Draw, name: str) -> Call:
    sizes = (d.integer(0, 4),) if name == "eye.default" else (d.integer(0, 4), d.integer(0, 4))
    return Call(sizes, {"dtype": d.of(*_OPTIONAL)})


@case("tril_indices.default", "triu_indices.default")
def _triangle_places(d: Draw, name: str) -> Call:
    return Call((d.integer(0, 4), d.integer(0, 4), d.integer(-3, 3)))

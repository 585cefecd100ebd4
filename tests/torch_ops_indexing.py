"""Calls of the operators that read or write at places, and of those that order elements."""

from __future__ import annotations

from typing import Any

import torch
from torch_ops import FLOATS, INTEGERS, NUMBERS, REAL, Call, Draw, case


@case("index.Tensor", "_unsafe_index.Tensor")
def _index(d: Draw, name: str) -> Call:
    shape = d.of((3, 4, 2), (3, 4), (5, 1, 2, 3), (4,))
    x = d.tensor(shape, d.of(*NUMBERS), special=d.flag())
    masks = name == "index.Tensor"
    indices, traceable = _indices(d, shape, masks)
    return Call((x, indices), traceable=traceable)


def _indices(d: Draw, shape: tuple[int, ...], masks: bool) -> tuple[list[Any], bool]:
    """Return a list of places, None and boolean masks, and whether it holds no mask."""
    if masks and d.integer(0, 2) == 2:
        axes = d.integer(1, len(shape))
        return [d.tensor(shape[:axes], torch.bool, layout="rows")], False
    common = d.of((2,), (), (2, 3), (0,), (2, 1))
    indices: list[Any] = []
    for size in shape[: d.integer(1, len(shape))]:
        index = d.places(d.of(common, common[-1:]), size, negative=True)
        indices.append(d.of(index, None) if indices else index)
    if len(indices) < len(shape) and d.flag():
        indices = [None, *(part for part in indices[1:])] if len(indices) > 1 else indices
    if all(index is None for index in indices):
        indices[0] = d.places(common, shape[0], negative=True)
    return indices, True


@case("index_put.default", "_unsafe_index_put.default")
def _index_put(d: Draw, name: str) -> Call:
    shape = d.of((3, 4, 2), (3, 4), (4,))
    dtype, accumulate = d.of(*NUMBERS), d.flag()
    x = d.tensor(shape, dtype, layout="rows")
    indices, traceable = _indices(d, shape, name == "index_put.default")
    if not accumulate and traceable:
        # Writes to one place have no order: each place is written once.
        indices = [torch.randperm(shape[0], generator=torch.Generator().manual_seed(1))[:2]]
    if accumulate and dtype == torch.bool:
        accumulate = False
        indices = [torch.tensor([1])]
    target = torch.ops.aten.index.Tensor(x, indices)
    sizes = d.of(target.shape, (), (1,))
    return Call((x, indices, d.tensor(sizes, dtype), accumulate), traceable=traceable)


@case("gather.default")
def _gather(d: Draw, name: str) -> Call:
    shape = d.shape(0, 4)
    dim = d.axis(shape)
    sizes = [d.integer(0, size) for size in shape]
    if shape:
        sizes[dim] = d.integer(0, 4)
    x = d.tensor(shape, d.of(*NUMBERS))
    index = d.places(sizes, shape[dim] if shape else 1)
    return Call((x, dim, index))


@case("take_along_dim.default")
def _take_along_dim(d: Draw, name: str) -> Call:
    shape = d.of((2, 3), (5,), (2, 1, 3))
    dim = d.of(d.axis(shape), None)
    sizes = list(shape) if dim is not None else [4]
    if dim is not None:
        sizes[dim] = d.integer(1, 4)
    length = shape[dim] if dim is not None else torch.zeros(shape).numel()
    return Call((d.tensor(shape, d.of(*NUMBERS)), d.places(sizes, length), dim))


@case("index_select.default")
def _index_select(d: Draw, name: str) -> Call:
    shape = d.shape(0, 3)
    dim = d.axis(shape)
    index = d.places(d.of((3,), (), (0,)) if shape else (1,), shape[dim] if shape else 1)
    return Call((d.tensor(shape, d.of(*NUMBERS)), dim, index.to(d.of(torch.int64, torch.int32))))


@case("take.default")
def _take(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(empty=False), d.of(*NUMBERS))
    return Call((x, d.places(d.of((2, 2), (), (0,)), x.numel(), negative=True)))


def _scattered(d: Draw, dtypes: tuple, unique: bool) -> tuple[Any, int, Any, Any]:
    """Return x, dim, index and source; `unique` has each place written once at most."""
    shape = d.of((3, 4), (5,), (2, 3, 2), ())
    dtype, dim = d.of(*dtypes), d.axis(shape)
    sizes = [d.integer(1, size) for size in shape]
    if shape and unique:
        sizes = [min(part, size) for part, size in zip(sizes, shape, strict=True)]
    x = d.tensor(shape, dtype, layout="rows")
    index = d.places(sizes, shape[dim] if shape else 1)
    if unique and shape:
        index = torch.argsort(torch.rand(shape, generator=torch.Generator().manual_seed(3)), dim)
        index = index[tuple(slice(0, part) for part in sizes)]
    larger = [size + d.integer(0, 1) for size in sizes]
    return x, dim, index, d.tensor(larger, dtype)


@case("scatter.src", "scatter.value")
def _scatter(d: Draw, name: str) -> Call:
    x, dim, index, source = _scattered(d, NUMBERS, True)
    return Call((x, dim, index, source if name == "scatter.src" else d.of(2, 0, 1)))


@case("scatter_add.default")
def _scatter_add(d: Draw, name: str) -> Call:
    return Call(_scattered(d, REAL, False))


@case("scatter.reduce", "scatter.value_reduce")
def _scatter_with(d: Draw, name: str) -> Call:
    x, dim, index, source = _scattered(d, REAL, False)
    value = source if name == "scatter.reduce" else 2
    return Call((x, dim, index, value), {"reduce": d.of("add", "multiply")}, gradient=False)


@case("scatter_reduce.two")
def _scatter_reduce(d: Draw, name: str) -> Call:
    x, dim, index, source = _scattered(d, REAL, False)
    reduce = d.of("sum", "prod", "mean", "amax", "amin")
    options = {"include_self": d.of(True, False)}
    # torch refuses the derivative by a source that is larger than the index.
    same = source.shape == index.shape
    return Call((x, dim, index, source, reduce), options, gradient=same)


@case("index_add.default", "index_copy.default")
def _index_add(d: Draw, name: str) -> Call:
    shape = d.of((3, 4), (5,), (2, 3, 2))
    dtype, dim = d.of(*REAL), d.axis(shape)
    count = d.integer(0, shape[dim])
    index = torch.tensor(d.random.permutation(shape[dim])[:count])
    if name == "index_add.default":
        index = d.places((count,), shape[dim])
    sizes = list(shape)
    sizes[dim] = count
    alpha = {"alpha": d.of(1, 2)} if name == "index_add.default" else {}
    return Call((d.tensor(shape, dtype), dim, index, d.tensor(sizes, dtype)), alpha)


@case("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(d: Draw, name: str) -> Call:
    shape = d.of((3, 4), (5,), (2, 3, 2), ())
    dtype, dim = d.of(*REAL), d.axis(shape)
    # torch's own derivative by a value in a tensor takes no place counted from the end.
    behind = name == "index_fill.int_Scalar"
    index = d.places((2,), shape[dim], negative=behind) if shape else torch.tensor([0])
    value = d.of(2, 1) if name == "index_fill.int_Scalar" else d.tensor((), dtype)
    return Call((d.tensor(shape, dtype), dim, index, value))


@case("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(d: Draw, name: str) -> Call:
    shape, dtype = d.shape(), d.of(*NUMBERS)
    mask = d.tensor(d.partner(shape), torch.bool)
    floating = dtype.is_floating_point
    number = d.of(2, 1.5, float("-inf")) if floating else d.of(1, 0)
    value = number if name == "masked_fill.Scalar" else d.tensor((), dtype)
    x = d.tensor(shape, dtype)
    return Call((x, mask, value) if d.flag() else (d.tensor(d.partner(shape), dtype), mask, value))


@case("masked_scatter.default")
def _masked_scatter(d: Draw, name: str) -> Call:
    shape, dtype = d.shape(), d.of(*NUMBERS)
    x, mask = d.tensor(shape, dtype), d.tensor(d.partner(shape), torch.bool)
    return Call((x, mask, d.tensor((x.numel() + d.integer(0, 2),), dtype)))


@case("masked_select.default")
def _masked_select(d: Draw, name: str) -> Call:
    shape = d.shape()
    x = d.tensor(shape, d.of(*NUMBERS), special=d.flag())
    return Call((x, d.tensor(d.partner(shape), torch.bool)), traceable=False)


@case("nonzero.default")
def _nonzero(d: Draw, name: str) -> Call:
    x = d.tensor(d.shape(), d.of(*NUMBERS), special=d.flag())
    return Call((x,), gradient=False, traceable=False)


@case("repeat_interleave.Tensor")
def _repeat_interleave(d: Draw, name: str) -> Call:
    repeats = torch.tensor(d.random.integers(0, 4, d.integer(0, 4)), dtype=torch.int64)
    return Call((repeats,), {"output_size": d.of(None, int(repeats.sum()))}, traceable=False)


@case("embedding.default")
def _embedding(d: Draw, name: str) -> Call:
    indices = d.places(d.of((2, 3), (), (4,), (0,)), 5).to(d.of(torch.int64, torch.int32))
    weight = d.tensor((5, 3), d.of(*FLOATS), layout="rows")
    return Call((weight, indices, d.of(-1, 0, 2), d.flag()))


@case("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(d: Draw, name: str) -> Call:
    indices = d.places((6,), 5)
    offsets = d.of([0, 2, 5], [0, 0, 4], [0, 6], [0])
    last = d.flag()
    offsets = torch.tensor([*offsets, 6] if last else offsets)
    mode = d.integer(0, 2)
    weights = d.tensor((6,), layout="rows") if mode == 0 and d.flag() else None
    args = (d.tensor((5, 3), layout="rows"), indices, offsets, d.flag() and mode < 2, mode, False)

    # The other outputs serve torch's own backward and are laid out as that needs them.
    return Call((*args, weights, last, d.of(-1, 2)), keep=lambda outputs: outputs[:1])


@case("one_hot.default")
def _one_hot(d: Draw, name: str) -> Call:
    indices, classes = d.places(d.of((2, 3), (), (4,)), 5), d.of(5, 7, -1)
    return Call((indices, classes), traceable=classes > 0)


@case("isin.Tensor_Tensor")
def _isin(d: Draw, name: str) -> Call:
    x, y = (d.tensor(d.shape(), d.of(*REAL), special=d.flag()) for _ in range(2))
    return Call((x, y), {"assume_unique": False, "invert": d.flag()}, gradient=False)


@case("cdist.default", "_cdist_forward.default")
def _cdist(d: Draw, name: str) -> Call:
    lead = d.of((), (2,), (0,))
    x, y = d.tensor((*lead, 3, 4), low=0.5), d.tensor((*lead, d.integer(0, 3), 4))
    power = d.of(2.0, 1.0, 0.0, float("inf"), 3.0, 1.5)
    return Call((x, y, power, d.of(None, 2)), gradient=name == "cdist.default", ulps=64)


@case("sort.default", "argsort.default", "sort.stable", "argsort.stable")
def _sort(d: Draw, name: str) -> Call:
    shape = d.shape()
    stable = name.endswith("stable")
    # Without `stable` torch promises no order among equals.
    dtype = d.of(*NUMBERS) if stable else d.of(*REAL)
    x = d.tensor(shape, dtype, special=d.flag()) if stable else d.distinct(shape, dtype)
    options: Any = {"dim": d.axis(shape), "descending": d.flag()}
    if stable:
        return Call((x,), {"stable": True, **options}, gradient=_finite(x))
    return Call((x, options["dim"], options["descending"]))


def _finite(x: torch.Tensor) -> bool:
    return bool(torch.isfinite(x).all())


@case("topk.default", "kthvalue.default")
def _topk(d: Draw, name: str) -> Call:
    shape = d.shape(empty=False)
    dim = d.axis(shape)
    x = d.distinct(shape, d.of(torch.float32, torch.bfloat16, torch.int64, torch.uint8))
    if x.is_floating_point() and shape and d.flag():
        x[(0,) * len(shape)] = float("nan")
    length = shape[dim] if shape else 1
    if name == "kthvalue.default":
        return Call((x, d.integer(1, length), dim, d.flag()))
    return Call((x, d.integer(0, length), dim, d.of(True, False), True))


@case("searchsorted.Tensor")
def _searchsorted(d: Draw, name: str) -> Call:
    dtype = d.of(*REAL)
    lead = d.of((), (2,), (2, 1))
    boundaries = torch.sort(d.tensor((*lead, d.integer(0, 5)), dtype, layout="rows"), -1).values
    x = d.tensor((*lead, 3), dtype, special=d.flag(), layout="rows")
    if not lead:
        x = d.tensor(d.shape(), dtype, special=d.flag(), layout="rows")
    kwargs: dict[str, Any] = {"out_int32": d.flag()}
    kwargs |= d.of({}, {"right": True}, {"side": "right"}, {"side": "left"})
    if boundaries.shape[-1] and d.flag():
        order = torch.tensor(d.random.permuted(torch.arange(boundaries.shape[-1]).numpy()))
        kwargs["sorter"] = torch.argsort(order).expand(boundaries.shape).contiguous()
        boundaries = boundaries[..., order].contiguous()
    return Call((boundaries, x), kwargs, gradient=False)


@case("bucketize.Tensor")
def _bucketize(d: Draw, name: str) -> Call:
    boundaries = torch.sort(d.tensor((d.integer(0, 5),), d.of(*REAL), layout="rows")).values
    x = d.tensor(d.shape(), boundaries.dtype, special=d.flag(), layout="rows")
    return Call((x, boundaries), {"out_int32": d.flag(), "right": d.flag()}, gradient=False)


@case("bincount.default")
def _bincount(d: Draw, name: str) -> Call:
    x = d.tensor((d.integer(0, 6),), d.of(*INTEGERS), 0, 5)
    weights = d.of(None, d.tensor(x.shape, d.of(torch.float32, torch.int64)))
    return Call((x, weights, d.of(0, 8)), gradient=False, traceable=False)

"""Calls of the operators that layers are made of: convolution, pooling, resizing, normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch_ops import FLOATS, Call, Draw, case

_SINGLE = (torch.float32, torch.float32, torch.bfloat16)


@case("convolution.default")
def _convolution(d: Draw, name: str) -> Call:
    axes, groups, transposed = d.of(2, 1, 3), d.of(1, 2), d.flag()
    sizes = [d.of(5, 4, 6) for _ in range(axes)]
    kernel = [d.integer(1, 3) for _ in range(axes)]
    stride, dilation = ([d.of(1, 2) for _ in range(axes)] for _ in range(2))
    padding = [d.of(0, 1, 2) for _ in range(axes)]
    extra = [0] * axes
    if transposed:
        extra = [d.integer(0, max(s, g) - 1) for s, g in zip(stride, dilation, strict=True)]
    dtype = d.of(*_SINGLE)
    channels = (2 * groups, 3 if transposed else 2)
    weight = d.tensor((*((channels) if transposed else (2 * groups, 2)), *kernel), dtype)
    x = d.tensor((*d.of((2,), (1,), (0,)), 2 * groups, *sizes), dtype)
    bias = d.of(None, d.tensor((channels[1] * groups if transposed else 2 * groups,), dtype))
    args = (x, weight, bias, stride, padding, dilation, transposed, extra, groups)
    return Call(args, ulps=64)


def _window(d: Draw) -> tuple[list[int], list[int], list[int], list[int]]:
    return tuple(
        [d.of(*options) for _ in range(2)] for options in ((2, 1, 3), (1, 2), (0, 1), (1, 2))
    )


@case("im2col.default")
def _im2col(d: Draw, name: str) -> Call:
    kernel, dilation, padding, stride = _window(d)
    return Call(
        (d.tensor((*d.of((2,), ()), 3, 5, 6), d.of(*_SINGLE)), kernel, dilation, padding, stride)
    )


@case("col2im.default")
def _col2im(d: Draw, name: str) -> Call:
    window = _window(d)
    image = torch.zeros(*d.of((2,), (1,)), 3, 5, 6)
    columns = torch.ops.aten.im2col(image, *window)
    return Call((d.tensor(columns.shape), [5, 6], *window))


def _pooled(d: Draw, axes: int, dtypes: tuple = FLOATS, special: bool = False) -> torch.Tensor:
    shape = (*d.of((2, 3), (3,), (1, 1)), *(d.of(6, 5, 7) for _ in range(axes)))
    return d.tensor(shape, d.of(*dtypes), special=special and d.integer(0, 2) == 2)


def _kernel(d: Draw, axes: int) -> tuple[list[int], list[int], list[int]]:
    kernel = [d.integer(1, 4) for _ in range(axes)]
    stride = d.of([], [d.integer(1, 3) for _ in range(axes)], [2])
    return kernel, stride, [d.integer(0, size // 2) for size in kernel]


@case("max_pool1d.default", "max_pool2d.default", "max_pool2d_with_indices.default",
      "max_pool3d_with_indices.default")  # fmt: skip
def _max_pool(d: Draw, name: str) -> Call:
    axes = int(name.split("max_pool")[1][0])
    dilation = [d.of(1, 2) for _ in range(axes)]
    x = _pooled(d, axes, special=True)
    return Call((x, *_kernel(d, axes), dilation, d.flag()))


@case("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(d: Draw, name: str) -> Call:
    axes = int(name.split("avg_pool")[1][0])
    options = (d.flag(), d.flag()) if axes == 1 else (d.flag(), d.flag(), d.of(None, 3))
    return Call((_pooled(d, axes), *_kernel(d, axes), *options))


@case("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default",
      "adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default",
      "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")  # fmt: skip
def _adaptive(d: Draw, name: str) -> Call:
    axes = int(name.split("_pool")[1][0])
    x = _pooled(d, axes, special="max" in name)
    return Call((x, [d.of(3, 1, 2, 4, 9) for _ in range(axes)]))


def _resized(d: Draw, name: str, corners: bool) -> Call:
    packet, overload = name.split(".")
    axes = int(packet.rstrip("_a").rstrip("d")[-1])
    x = d.tensor((2, 2, *(d.of(4, 5, 3, 1) for _ in range(axes))), d.of(*_SINGLE))
    sizes: Any = [d.of(8, 7, 2, 4, 1) for _ in range(axes)]
    if packet.endswith("_aa"):
        # torch 2.14 makes all rows alike where the output of these is one pixel wide.
        sizes = [max(size, 2) for size in sizes]
    factors: Any = [d.of(2.0, 1.5, 0.7, 1.0) for _ in range(axes)]
    if packet.endswith("_aa"):
        factors = [2.0 if size < 3 else f for f, size in zip(factors, x.shape[2:], strict=True)]
    align = (d.flag(),) if corners else ()
    if overload == "vec":
        by_size = d.flag()
        return Call((x, sizes if by_size else None, *align, None if by_size else factors), ulps=64)
    if d.flag():
        return Call((x, sizes, *align, *(None,) * axes), ulps=64)
    wanted = [int(size * factor) for size, factor in zip(x.shape[2:], factors, strict=True)]
    if min(wanted) < 1 + packet.endswith("_aa"):
        wanted, factors = [2] * axes, [None] * axes
    return Call((x, wanted, *align, *factors), ulps=64)


_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
           "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")  # fmt: skip
_NEAREST = tuple(f"{kind}{axes}d" for kind in ("upsample_nearest", "_upsample_nearest_exact")
                 for axes in (1, 2, 3))  # fmt: skip


@case(*(f"{name}.{overload}" for name in _SMOOTH for overload in ("vec", "default")))
def _smooth(d: Draw, name: str) -> Call:
    return _resized(d, name, True)


@case(*(f"{name}.{overload}" for name in _NEAREST for overload in ("vec", "default")))
def _nearest(d: Draw, name: str) -> Call:
    return _resized(d, name, False)


@case("grid_sampler_2d.default", "grid_sampler.default")
def _grid_sampler(d: Draw, name: str) -> Call:
    x = d.tensor((2, 3, d.of(4, 1, 5), d.of(5, 3)))
    # Places far outside too; not on whole pixels, where the derivative has two sides.
    grid = d.tensor((2, 3, 4, 2), low=-2.7, high=2.9)
    grid = grid + 0.0137 * (grid * 8 == torch.round(grid * 8))
    modes = (d.integer(0, 2), d.integer(0, 2), d.flag())
    return Call((x, grid, *modes), ulps=256)


def _scales(d: Draw, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, Any]:
    return d.of(None, d.tensor(shape, dtype)), d.of(None, d.tensor(shape, dtype))


@case("native_layer_norm.default", "layer_norm.default")
def _layer_norm(d: Draw, name: str) -> Call:
    shape = d.of((2, 3, 4), (5, 4), (4,), (0, 4), (2, 1, 2, 4))
    count, dtype = d.integer(1, len(shape)), d.of(*FLOATS)
    sizes = shape[len(shape) - count :]
    weight, bias = _scales(d, sizes, dtype)
    args = (d.tensor(shape, dtype, layout="rows"), list(sizes), weight, bias, d.of(1e-5, 1e-3))
    # Of nothing torch keeps the moments in another dtype.
    keep = None if 0 not in shape else lambda outputs: outputs[:1]
    return Call(args, ulps=256, keep=keep)


@case("rms_norm.default", "_fused_rms_norm.default")
def _rms_norm(d: Draw, name: str) -> Call:
    shape, dtype = d.of((2, 3, 4), (5, 4), (4,)), d.of(*FLOATS)
    count = d.integer(1, len(shape))
    sizes = shape[len(shape) - count :]
    weight = d.of(None, d.tensor(sizes, dtype))
    return Call((d.tensor(shape, dtype), list(sizes), weight, d.of(None, 1e-3)), ulps=256)


@case("native_group_norm.default")
def _group_norm(d: Draw, name: str) -> Call:
    shape, dtype = d.of((2, 6, 4), (1, 6, 2, 3), (2, 6)), d.of(*FLOATS)
    weight, bias = _scales(d, (6,), dtype)
    x = d.tensor(shape, dtype, layout="rows")
    space = x[0, 0].numel()
    return Call((x, weight, bias, shape[0], 6, space, d.of(2, 3, 1, 6), 1e-5), ulps=256)


def _batch(d: Draw) -> tuple[torch.Tensor, Any, Any, torch.Tensor, torch.Tensor]:
    shape, dtype = d.of((4, 3, 5), (4, 3), (2, 3, 2, 4)), d.of(*FLOATS)
    inner = torch.float32
    weight, bias = _scales(d, (3,), inner if dtype != torch.float32 else dtype)
    mean, variance = d.tensor((3,), inner, layout="rows"), d.tensor((3,), inner, 0.5, layout="rows")
    return d.tensor(shape, dtype), weight, bias, mean, variance


@case("_native_batch_norm_legit_no_training.default")
def _batch_norm_fixed(d: Draw, name: str) -> Call:
    # Its saved moments are empty in a graph, and torch's own kernel leaves them so on some devices.
    args = (*_batch(d), 0.1, 1e-5)
    return Call(args, keep=lambda outputs: outputs[:1], ulps=256, constant=(3, 4))


@case("_native_batch_norm_legit.no_stats")
def _batch_norm_own(d: Draw, name: str) -> Call:
    x, weight, bias, *_ = _batch(d)
    return Call((x, weight, bias, True, 0.1, d.of(1e-5, 1e-3)), ulps=256)


@case("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.default",
      "native_batch_norm.default")  # fmt: skip
def _batch_norm(d: Draw, name: str) -> Call:
    training = d.flag()
    kept = 5 if name.startswith("_native_batch_norm_legit_functional") else 3
    x, weight, bias, mean, variance = _batch(d)

    def keep(outputs: tuple) -> tuple:
        # Outside training the saved moments are not read by anyone.
        return outputs[:kept] if training else (outputs[0], *outputs[3:kept])

    args = (x, weight, bias, mean, variance, training, d.of(0.1, 0.3), 1e-5)
    return Call(args, keep=keep, ulps=256, constant=(3, 4))

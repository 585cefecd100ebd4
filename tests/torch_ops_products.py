"""Calls of matrix products, decompositions, softmax, attention and Fourier transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch_ops import COMPLEX, FLOATS, Call, Draw, case

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.complex64)


def _matrices(d: Draw, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    dtype = d.of(*_DTYPES)
    return [d.tensor(shape, dtype) for shape in shapes]


@case("mm.default")
def _mm(d: Draw, name: str) -> Call:
    n, k, m = d.of(2, 0, 3), d.of(4, 0, 1), d.of(3, 0)
    return Call(tuple(_matrices(d, (n, k), (k, m))))


@case("bmm.default")
def _bmm(d: Draw, name: str) -> Call:
    b, k = d.of(2, 0, 1), d.of(4, 0)
    return Call(tuple(_matrices(d, (b, 3, k), (b, k, 2))))


@case("matmul.default")
def _matmul(d: Draw, name: str) -> Call:
    shapes = d.of(
        ((2, 3), (3, 4)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 1, 2, 3), (4, 3, 2)),
        ((2, 2, 3), (3,)), ((5, 2, 3), (3, 2)),
    )  # fmt: skip
    return Call(tuple(_matrices(d, *shapes)))


@case("mv.default")
def _mv(d: Draw, name: str) -> Call:
    return Call(tuple(_matrices(d, (2, 3), (3,))))


@case("dot.default")
def _dot(d: Draw, name: str) -> Call:
    n = d.of(3, 0, 1)
    return Call(tuple(_matrices(d, (n,), (n,))))


@case("linear.default")
def _linear(d: Draw, name: str) -> Call:
    lead, dtype = d.of((2,), (), (2, 3), (0,), (1, 2, 2)), d.of(*FLOATS)
    x, weight = d.tensor((*lead, 3), dtype), d.tensor(d.of((4, 3), (3,)), dtype)
    bias = d.of(None, d.tensor((4,) if weight.ndim == 2 else (), dtype))
    return Call((x, weight, bias))


def _mixed(d: Draw, shapes: tuple[tuple[int, ...], ...], out: tuple[int, ...]) -> Call:
    dtype = d.of(*_DTYPES)
    x = d.tensor(d.of(out, out[1:], (1,) * len(out)), dtype)
    scale = (1, 0, 2) if dtype == torch.int64 else (1, 0, 0.5)
    if d.integer(0, 3) == 3 and dtype.is_floating_point:
        x, scale = x * float("nan"), (0,)
    mixed = {"beta": d.of(*scale), "alpha": d.of(1, 2)}
    finite = bool(torch.isfinite(x.abs()).all())
    return Call((x, *(d.tensor(shape, dtype) for shape in shapes)), mixed, gradient=finite)


@case("addmm.default")
def _addmm(d: Draw, name: str) -> Call:
    k = d.of(4, 0)
    return _mixed(d, ((2, k), (k, 3)), (2, 3))


@case("addmv.default")
def _addmv(d: Draw, name: str) -> Call:
    return _mixed(d, ((2, 3), (3,)), (2,))


@case("baddbmm.default")
def _baddbmm(d: Draw, name: str) -> Call:
    return _mixed(d, ((2, 2, 4), (2, 4, 3)), (2, 2, 3))


@case("addbmm.default")
def _addbmm(d: Draw, name: str) -> Call:
    return _mixed(d, ((2, 2, 4), (2, 4, 3)), (2, 3))


@case("addr.default")
def _addr(d: Draw, name: str) -> Call:
    return _mixed(d, ((2,), (3,)), (2, 3))


@case("einsum.default")
def _einsum(d: Draw, name: str) -> Call:
    equation, shapes = d.of(
        ("ij,jk->ik", ((2, 3), (3, 4))), ("bij,bkj->bik", ((2, 3, 4), (2, 5, 4))),
        ("i,j->ij", ((2,), (3,))), ("...ij->...ji", ((2, 3, 4),)), ("ii->i", ((3, 3),)),
        ("bhqd,bhkd->bhqk", ((1, 2, 3, 4), (1, 2, 5, 4))), ("ij,jk", ((2, 3), (3, 4))),
        ("ij->", ((2, 3),)),
    )  # fmt: skip
    return Call((equation, _matrices(d, *shapes)))


@case("_grouped_mm.default")
def _grouped_mm(d: Draw, name: str) -> Call:
    # torch wants rows of 16 bytes, and has this for bfloat16 alone on some machines.
    x = d.tensor((6, 8), torch.bfloat16, layout="rows")
    weight = d.tensor((3, 8, 16), torch.bfloat16, layout="rows")
    ends = torch.tensor(d.of([2, 4, 6], [0, 6, 6], [1, 1, 6]), dtype=torch.int32)
    return Call((x, weight, ends), gradient=False)


def _square(d: Draw, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return matrices that are far from singular."""
    x = d.tensor((*d.of((), (2,), (0,)), 3, 3), dtype, layout="rows")
    return 0.3 * x + 2 * torch.eye(3)


@case("linalg_inv_ex.default", "inverse.default", "linalg_inv.default", "linalg_det.default",
      "det.default")  # fmt: skip
def _inverse(d: Draw, name: str) -> Call:
    return Call((_square(d, d.of(torch.float32, *COMPLEX)),), ulps=256)


@case("linalg_cholesky_ex.default")
def _cholesky(d: Draw, name: str) -> Call:
    x = _square(d)
    return Call((x @ x.mT,), {"upper": d.flag()}, ulps=256)


@case("_linalg_eigh.default")
def _eigh(d: Draw, name: str) -> Call:
    x = _square(d)
    x = x + x.mT + torch.diag(torch.tensor([0.0, 5.0, 11.0]))

    def keep(outputs: tuple) -> tuple:
        # Vectors are unique up to their sign, so their projections are compared.
        values, vectors = outputs
        swapped = vectors.mT
        return values, vectors[..., :, None, :] * swapped[..., None, :, :].mT

    return Call((x, d.of("L", "U")), ulps=1024, keep=keep)


@case("linalg_solve_triangular.default")
def _solve_triangular(d: Draw, name: str) -> Call:
    x, left = _square(d), d.flag()
    y = d.tensor((*x.shape[:-2], *((3, 2) if left else (2, 3))))
    options = {"upper": d.flag(), "left": left, "unitriangular": d.flag()}
    return Call((x, y), options, ulps=256)


@case("_linalg_solve_ex.default", "linalg_solve.default")
def _solve(d: Draw, name: str) -> Call:
    x, left = _square(d), d.flag()
    y = d.tensor((*x.shape[:-2], *((3, 2) if left else (2, 3))))
    if left and x.ndim == 2 and d.flag():
        y = d.tensor((3,))
    keep = (lambda outputs: outputs[:1]) if name.startswith("_") else None
    return Call((x, y), {"left": left}, ulps=256, keep=keep)


@case("linalg_cross.default")
def _cross(d: Draw, name: str) -> Call:
    x, y = d.tensor((2, 3, 3)), d.tensor(d.of((2, 3, 3), (1, 3, 3), (3, 3)))
    return Call((x, y), {"dim": d.of(-1, -2)})


@case("kron.default")
def _kron(d: Draw, name: str) -> Call:
    return Call(tuple(_matrices(d, d.of((2, 3), (2,), ()), d.of((3, 1), (2,), (2, 2, 1)))))


@case("trace.default")
def _trace(d: Draw, name: str) -> Call:
    return Call(tuple(_matrices(d, d.of((3, 3), (2, 4), (4, 2)))))


@case("_softmax.default", "_log_softmax.default", "softmax.int", "log_softmax.int",
      "_safe_softmax.default")  # fmt: skip
def _softmax(d: Draw, name: str) -> Call:
    shape, special = d.shape(), d.integer(0, 3) == 3
    x = d.tensor(shape, d.of(*FLOATS), special=special)
    if not special and d.flag():
        x = torch.where(x > 1, float("-inf"), x)
    last = (
        False
        if name.endswith("softmax.default") and "safe" not in name
        else d.of(None, torch.float32)
    )
    return Call((x, d.axis(shape), last), gradient=bool(torch.isfinite(x).all()))


@case("scaled_dot_product_attention.default")
def _attention(d: Draw, name: str) -> Call:
    dtype, causal, grouped = d.of(*FLOATS), d.flag(), d.flag()
    query = d.tensor((2, 4, 3, 8), dtype)
    key, value = (d.tensor((2, 2 if grouped else 4, 5, 8), dtype) for _ in range(2))
    mask: Any = None
    if not causal:
        mask = d.of(None, d.tensor((2, 1, 3, 5), torch.bool), d.tensor((3, 5), dtype))
    options = {"scale": d.of(None, 0.3), "enable_gqa": grouped}
    return Call((query, key, value, mask, 0.0, causal), options, ulps=128)


@case("_scaled_dot_product_flash_attention_for_cpu.default")
def _flash(d: Draw, name: str) -> Call:
    causal = d.flag()
    query, key, value = (d.tensor((2, 2, length, 8), layout="rows") for length in (3, 5, 5))
    mask = None if causal else d.of(None, d.tensor((2, 2, 3, 5)))
    options = {"attn_mask": mask, "scale": d.of(None, 0.3)}
    return Call((query, key, value, 0.0, causal), options, ulps=128)


def _axes(d: Draw, shape: tuple[int, ...]) -> list[int]:
    return d.of([len(shape) - 1], [0], list(range(len(shape))), list(range(len(shape) - 1, -1, -1)))


@case("_fft_c2c.default")
def _fft_c2c(d: Draw, name: str) -> Call:
    shape = d.of((2, 4), (5,), (3, 1, 6))
    return Call((d.tensor(shape, *COMPLEX), _axes(d, shape), d.integer(0, 2), d.flag()), ulps=128)


@case("_fft_r2c.default")
def _fft_r2c(d: Draw, name: str) -> Call:
    shape = d.of((2, 4), (5,), (3, 1, 6))
    return Call((d.tensor(shape), _axes(d, shape), d.integer(0, 2), d.flag()), ulps=128)


@case("_fft_c2r.default")
def _fft_c2r(d: Draw, name: str) -> Call:
    shape = d.of((2, 4), (5,), (3, 2, 6))
    axes = _axes(d, shape)
    length = 2 * (shape[axes[-1]] - 1) + d.integer(0, 1)
    return Call((d.tensor(shape, *COMPLEX), axes, d.integer(0, 2), max(length, 1)), ulps=128)

"""Python numbers in a graph: sizes and what is computed from them, and checks that do nothing."""

from __future__ import annotations

import math
import operator as python
from typing import Any

import jax
import numpy as np

from bridges.torch.ops.operator import operator

for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs", "pos", "eq", "ne",
    "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_", "lshift", "rshift",
):  # fmt: skip
    operator(f"python.{_name}")(getattr(python, _name))

for _name in ("ceil", "floor", "trunc", "sqrt", "log2", "exp"):
    operator(f"python.{_name}")(getattr(math, _name))


@operator("python.getitem")
def _getitem(values: Any, index: int) -> Any:
    return values[index]


@operator("python.sym_ite")
def _sym_ite(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y


@operator("python.sym_not")
def _sym_not(x: Any) -> bool:
    return not x


@operator("python.sym_max")
def _sym_max(x: Any, y: Any) -> Any:
    return max(x, y)


@operator("python.sym_min")
def _sym_min(x: Any, y: Any) -> Any:
    return min(x, y)


@operator("python.sym_sum")
def _sym_sum(values: Any) -> Any:
    return sum(values)


operator("python.sym_int", "python.int")(int)
operator("python.sym_float", "python.float")(float)
operator("python.round")(round)


@operator("_local_scalar_dense.default", "item.default", concrete=True)
def _item(x: jax.Array) -> Any:
    return np.asarray(x).item()


@operator(
    "_assert_tensor_metadata.default", "_assert_scalar.default", "_assert_async.msg",
    "_assert_async.default", "sym_constrain_range_for_size.default", "sym_constrain_range.default",
    "_functional_assert_async.msg", "_functional_assert_scalar.default",
)  # fmt: skip
def _nothing(*_: Any, **__: Any) -> None:
    return None

"""What the table of calls cannot show: places outside, ties, numbers in a graph, names taken."""

from __future__ import annotations

import inspect
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from bridges.torch.ops import operators
from dew.errors import InputRefused

pytestmark = pytest.mark.torch

# Where a tensor lives is no part of a graph, nor is a generator: draws take a key.
PLACES = {"device", "layout", "memory_format", "pin_memory", "generator", "requires_grad"}


def _op(name: str):
    return operators()[name].function


@pytest.mark.parametrize("name", sorted(n for n in operators() if n.startswith("aten.")))
def test_an_operator_takes_the_arguments_of_torchs_schema(name):
    packet, overload = name.removeprefix("aten.").split(".")
    if packet.startswith("sym_") and overload != "default" and packet != "sym_size":
        overload = "int"
    schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
    parameters = inspect.signature(_op(name)).parameters.values()
    kinds = {p.kind for p in parameters}
    named = {p.name for p in parameters}
    ordered = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in ordered]
    for number, argument in enumerate(schema.arguments):
        if argument.kwarg_only:
            taken = argument.name in named | PLACES or inspect.Parameter.VAR_KEYWORD in kinds
        else:
            taken = number < len(positional) or inspect.Parameter.VAR_POSITIONAL in kinds
        assert taken, f"{argument.name} of {schema}"
    required = [p for p in positional if p.default is p.empty]
    needed = [a for a in schema.arguments if not a.has_default_value() or not a.kwarg_only]
    assert len(required) <= len(needed)


def test_a_read_outside_is_marked_and_a_write_outside_is_left_out():
    x = jnp.arange(4.0)
    outside = jnp.asarray([1, 7])
    for got in (
        _op("aten.index.Tensor")(x, [outside]),
        _op("aten.gather.default")(x, 0, outside),
        _op("aten.index_select.default")(x, 0, outside),
        _op("aten.take.default")(x, outside),
        _op("aten.embedding.default")(x[:, None], outside)[:, 0],
    ):
        np.testing.assert_array_equal(np.asarray(got), [1, np.nan])
    for name in ("scatter.src", "scatter_add.default", "index_copy.default"):
        got = _op(f"aten.{name}")(jnp.zeros(4), 0, outside, jnp.ones(2))
        np.testing.assert_array_equal(np.asarray(got), [0, 1, 0, 0])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_of_ties_gives_the_same_values_and_places_that_hold_them(dim, largest):
    # torch leaves the order of equals open, so that places are held by what they point at.
    values = np.random.default_rng(0).integers(0, 3, (6, 7)).astype(np.float32)
    got, places = _op("aten.topk.default")(jnp.asarray(values), 4, dim, largest)
    wanted, _ = torch.topk(torch.tensor(values), 4, dim, largest)
    np.testing.assert_array_equal(np.asarray(got), wanted.numpy())
    held = np.take_along_axis(values, np.asarray(places), dim)
    np.testing.assert_array_equal(held, wanted.numpy())
    rows = np.moveaxis(np.asarray(places), dim, -1).reshape(-1, 4)
    assert all(len(set(row)) == 4 for row in rows)


@pytest.mark.parametrize("name", ["bridge.stop_gradient.default", "aten.detach.default"])
def test_a_stopped_gradient_is_zero(name):
    x = jnp.asarray([1.0, -2.0])
    grad = jax.grad(lambda x: jnp.sum(x * _op(name)(x)))(x)
    np.testing.assert_array_equal(np.asarray(grad), np.asarray(x))


@pytest.mark.parametrize("ends", [[2, 2, 6], [0, 1, 6], [6, 6, 6]])
def test_grouped_products_are_one_product_a_group(ends):
    random = np.random.default_rng(1)
    x, weight = random.normal(size=(6, 4)), random.normal(size=(3, 4, 5))
    got = _op("transformers.grouped_mm_fallback.default")(
        jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32), jnp.asarray(ends)
    )
    starts = [0, *ends[:-1]]
    wanted = [x[a:b] @ w for a, b, w in zip(starts, ends, weight, strict=True)]
    np.testing.assert_allclose(np.asarray(got), np.concatenate(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [
    "_assert_tensor_metadata.default", "_assert_scalar.default", "_assert_async.msg",
    "_assert_async.default", "sym_constrain_range_for_size.default", "sym_constrain_range.default",
    "_functional_assert_async.msg", "_functional_assert_scalar.default",
])  # fmt: skip
def test_a_check_inside_a_graph_does_nothing(name):
    assert _op(f"aten.{name}")(jnp.zeros(2), None, dtype="float32") is None


@pytest.mark.parametrize("name", [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge",
    "and_", "or_", "xor", "lshift", "rshift", "neg", "abs", "pos", "not_",
])  # fmt: skip
def test_python_operators_are_pythons(name):
    numbers = (-7,) if name in ("neg", "abs", "pos", "not_") else (7, 2)
    assert _op(f"python.{name}")(*numbers) == getattr(operator, name)(*numbers)


def test_python_functions_are_pythons():
    assert [_op(f"python.{name}")(2.5) for name in ("ceil", "floor", "trunc")] == [3, 2, 2]
    assert [_op(f"python.{name}")(4.0) for name in ("sqrt", "log2", "exp")] == [2, 2, math.exp(4)]
    assert _op("python.sym_ite")(True, 1, 2) == 1
    assert _op("python.sym_ite")(False, 1, 2) == 2
    assert [_op("python.sym_max")(1, 2), _op("python.sym_min")(1, 2)] == [2, 1]
    assert [_op("python.sym_sum")([1, 2, 3]), _op("python.sym_not")(0)] == [6, True]
    assert [_op(f"python.{name}")(2.9) for name in ("sym_int", "int", "round")] == [2, 2, 3]
    assert [_op(f"python.{name}")(2) for name in ("sym_float", "float")] == [2.0, 2.0]
    assert _op("python.getitem")((4, 5), 1) == 5


@pytest.mark.parametrize("name", ["aten._local_scalar_dense.default", "aten.item.default"])
@pytest.mark.parametrize("value", [3, 2.5, True])
def test_an_item_is_a_python_number(name, value):
    got = _op(name)(jnp.asarray(value))
    assert got == value
    assert type(got) is type(value)


def test_dropout_inside_attention_is_refused_with_what_to_do():
    x = jnp.zeros((1, 1, 2, 4))
    with pytest.raises(InputRefused, match=r'attn_implementation="eager"'):
        _op("aten.scaled_dot_product_attention.default")(x, x, x, None, 0.1)

"""The weight table: moves are invertible, names and shapes are checked first, no copy is made."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from bridges.moves import (
    KEEP,
    TAPS,
    TRANSPOSE,
    merge_heads,
    merge_rows,
    split_bias,
    split_heads,
    split_qkv,
)
from bridges.table import (
    Row,
    aligned_empty,
    flat,
    into_tree,
    nested,
    not_finite,
    out_of_tree,
    tensor_shapes,
)
from dew.errors import WeightMismatch

HEADS, SIZE, WIDTH, LAYERS = 2, 3, 5, 2
ROWS = (
    Row("embed", "embed/table"),
    Row("h.{layer}.q", "layers/query/kernel", split_heads(HEADS)),
    Row("h.{layer}.o", "layers/out/kernel", merge_heads(HEADS)),
    Row(
        "h.{layer}.qkv",
        ("layers/a/kernel", "layers/b/kernel", "layers/c/kernel"),
        split_qkv(HEADS),
    ),
)
KERNEL = (LAYERS, WIDTH, HEADS, SIZE)
SHAPES = {
    "embed": {"table": (7, WIDTH)},
    "layers": {
        "query": {"kernel": KERNEL},
        "out": {"kernel": (LAYERS, HEADS, SIZE, WIDTH)},
        "a": {"kernel": KERNEL},
        "b": {"kernel": KERNEL},
        "c": {"kernel": KERNEL},
    },
}


LEAVES = SHAPES["layers"]


@dataclass
class Arrays:
    """Tensors in memory, in the place of a file."""

    arrays: dict

    def names(self):
        return list(self.arrays)

    def info(self, name):
        return SimpleNamespace(shape=self.arrays[name].shape, dtype=self.arrays[name].dtype)

    def read(self, name):
        return self.arrays[name]

    def release(self, name):
        pass


def abstract(tree, dtype=np.float32):
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, dtype), tree, is_leaf=lambda x: type(x) is tuple
    )


def tensors(dtype=np.float32, seed=0):
    generator = np.random.default_rng(seed)
    shapes = {"embed": (7, WIDTH)}
    for layer in range(LAYERS):
        shapes[f"h.{layer}.q"] = (HEADS * SIZE, WIDTH)
        shapes[f"h.{layer}.o"] = (WIDTH, HEADS * SIZE)
        shapes[f"h.{layer}.qkv"] = (WIDTH, 3 * HEADS * SIZE)
    return {k: generator.normal(size=s).astype(np.float32).astype(dtype) for k, s in shapes.items()}


@pytest.mark.parametrize(
    ("move", "theirs", "ours"),
    [
        (KEEP, (4, 6), (4, 6)),
        (TRANSPOSE, (4, 6), (6, 4)),
        (split_heads(2), (6, 5), (5, 2, 3)),
        (merge_heads(2), (5, 6), (2, 3, 5)),
        (merge_rows(2), (6, 5), (2, 3, 5)),
        (split_bias(2), (6,), (2, 3)),
        (split_qkv(2), (5, 6), (5, 2, 3)),
    ],
)
def test_a_move_is_a_view_and_its_own_inverse(move, theirs, ours):
    w = np.arange(np.prod(theirs)).reshape(theirs)
    moved = move.into(w)
    assert moved.shape == ours
    assert np.shares_memory(moved, w)
    assert np.array_equal(move.out(np.ascontiguousarray(moved)), w)


@pytest.mark.parametrize(
    ("move", "shape"),
    [
        (TRANSPOSE, (600, 129)),
        (TRANSPOSE, (129, 600)),
        (TRANSPOSE, (1, 3)),
        (split_heads(3), (300, 530)),
        (merge_heads(3), (530, 300)),
        (TAPS, (150, 260, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_matrices_larger_than_a_tile_are_turned_whole(move, shape, dtype):
    """Against numpy's own transpose; a NaN in the last tile is counted."""
    given = np.random.default_rng(0).normal(size=shape).astype(dtype)
    given[(-1,) * given.ndim] = np.nan
    moved = move.into(given).astype(np.float32)
    shapes = {"k": jax.ShapeDtypeStruct((1, *moved.shape), np.float32)}
    with pytest.warns(UserWarning, match="h.0: 1"):
        tree = into_tree([Row("h.{layer}", "k", move)], Arrays({"h.0": given}), shapes, None)
    np.testing.assert_array_equal(np.asarray(tree["k"][0]), moved)


def test_split_heads_computes_torchs_linear():
    # Closed form: torch's y = W x, reshaped to heads, is the contraction of x with the leaf.
    w, x = np.random.default_rng(0).normal(size=(6, 5)), np.arange(5.0)
    leaf = split_heads(2).into(w)
    np.testing.assert_allclose(np.einsum("d,dhk->hk", x, leaf), (w @ x).reshape(2, 3), rtol=1e-12)


def test_merge_heads_computes_torchs_linear():
    w, y = np.random.default_rng(0).normal(size=(5, 6)), np.arange(6.0)
    leaf = merge_heads(2).into(w)
    np.testing.assert_allclose(np.einsum("hk,hkd->d", y.reshape(2, 3), leaf), w @ y, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_out_of_tree_undoes_into_tree(dtype):
    source = tensors(dtype)
    params = into_tree(ROWS, Arrays(source), abstract(SHAPES), np.float32)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    found = dict(out_of_tree(ROWS, params))
    assert found.keys() == source.keys()
    for name, array in found.items():
        assert array.flags.c_contiguous
        assert np.array_equal(array, source[name].astype(np.float32)), name


def test_out_of_tree_is_row_major_whatever_the_memory_order():
    # CASES P001: a transposed view that reaches a writer as it is gets scrambled.
    source = {"w": np.asfortranarray(np.arange(12.0, dtype=np.float32).reshape(3, 4))}
    rows = (Row("w", "kernel", TRANSPOSE),)
    params = into_tree(rows, Arrays(source), abstract({"kernel": (4, 3)}), np.float32)
    ((_, back),) = out_of_tree(rows, params)
    assert back.tobytes() == source["w"].tobytes(order="C")


def test_fused_projection_gives_each_leaf_its_columns():
    source = tensors()
    params = into_tree(ROWS, Arrays(source), abstract(SHAPES), np.float32)
    fused = source["h.1.qkv"]
    for number, leaf in enumerate("abc"):
        columns = fused[:, number * HEADS * SIZE : (number + 1) * HEADS * SIZE]
        assert np.array_equal(
            params["layers"][leaf]["kernel"][1], columns.reshape(WIDTH, HEADS, SIZE)
        )


def test_one_error_lists_everything_that_does_not_fit():
    source = tensors()
    del source["h.1.o"]
    source["embed"] = np.zeros((8, WIDTH), np.float32)
    source["h.0.q"] = np.zeros((HEADS * SIZE, WIDTH), np.int32)
    source["\x1b[2Jextra"] = np.zeros((2, 3), np.float32)
    with pytest.raises(WeightMismatch) as refusal:
        into_tree(ROWS, Arrays(source), abstract(SHAPES), np.float32)
    message = str(refusal.value)
    assert message.startswith("4 tensors do not fit")
    assert "missing     h.1.o (for layers/out/kernel (5, 6))" in message
    assert "misshapen   embed: wanted (7, 5), found (8, 5)" in message
    assert "wrong dtype h.0.q: wanted floating point, found int32" in message
    assert r"left over   \x1b[2Jextra (2, 3)" in message


def test_an_endless_list_is_cut_and_counted():
    source = tensors() | {f"t{i}": np.zeros(1, np.float32) for i in range(1000)}
    with pytest.raises(WeightMismatch) as refusal:
        into_tree(ROWS, Arrays(source), abstract(SHAPES), np.float32)
    lines = str(refusal.value).splitlines()
    assert len(lines) <= 20
    assert lines[-1].endswith("t19 (1,) and 980 more")


@pytest.mark.parametrize(
    "shapes",
    [
        SHAPES | {"embed": {"table": (2**59, WIDTH)}},
        SHAPES | {"layers": {k: {"kernel": (10**9, *v["kernel"][1:])} for k, v in LEAVES.items()}},
    ],
    ids=["rows", "layers"],
)
def test_absurd_sizes_are_refused_from_the_headers(shapes):
    # BAD-INPUTS BP024 and BP025: nothing of that size is allocated or written out.
    with pytest.raises(WeightMismatch) as refusal:
        into_tree(ROWS, Arrays(tensors()), abstract(shapes), np.float32)
    assert len(str(refusal.value)) < 2000


def test_a_tree_with_other_leaves_is_refused():
    params = nested(flat(abstract(SHAPES)) | {"extra/leaf": jnp.zeros(3)})
    with pytest.raises(WeightMismatch, match=r"no row .* extra/leaf"):
        list(out_of_tree(ROWS, params))


def test_tensor_shapes_agree_with_the_tensors():
    leaves = flat(abstract(SHAPES))
    assert dict(tensor_shapes(ROWS, leaves)) == {n: a.shape for n, a in tensors().items()}


def test_a_filled_buffer_is_handed_to_jax_without_a_copy():
    buffer = aligned_empty((LAYERS, 1000), np.dtype(np.float32))
    buffer[...] = 1.0
    array = jax.device_put(buffer)
    assert buffer.ctypes.data % 64 == 0
    if jax.default_backend() == "cpu":
        assert array.unsafe_buffer_pointer() == buffer.ctypes.data
    # A step that donates the array must not write into memory that numpy still shows.
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    after = step(array)
    assert array.is_deleted()
    assert np.all(np.asarray(after) == 2.0)
    assert np.all(buffer == 1.0)


def test_loaded_parameters_survive_donating_steps():
    params = into_tree(ROWS, Arrays(tensors()), abstract(SHAPES), np.float32)
    before = {path: np.array(leaf) for path, leaf in flat(params).items()}
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)
    for _ in range(3):
        params = step(params)
    for path, leaf in flat(params).items():
        assert np.array_equal(leaf, before[path] * 8)


def test_values_that_are_not_finite_are_counted_in_one_warning():
    source = tensors()
    source["h.1.q"][0, 1] = np.nan
    source["embed"][2] = np.inf
    with pytest.warns(UserWarning, match="NaN or infinite") as warned:
        into_tree(ROWS, Arrays(source), abstract(SHAPES), np.float32)
    assert len(warned) == 1
    assert "h.1.q: 1" in str(warned[0].message)
    assert "embed: 5" in str(warned[0].message)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_not_finite_counts_exactly(dtype):
    values = np.array([1, np.nan, -np.inf, 3e4, np.inf], np.float32).astype(dtype)
    assert not_finite(values) == 3
    assert not_finite(np.ones(5, dtype)) == 0


def test_a_sum_that_overflows_is_not_taken_for_an_infinity():
    assert not_finite(np.full(10, 3e38, np.float32)) == 0


def test_param_dtype_rounds_every_leaf():
    source = tensors()
    params = into_tree(ROWS, Arrays(source), abstract(SHAPES), ml_dtypes.bfloat16)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(params))
    assert np.array_equal(params["embed"]["table"], source["embed"].astype(ml_dtypes.bfloat16))

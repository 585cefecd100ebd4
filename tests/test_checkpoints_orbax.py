"""A checkpoint's arrays are a tree that orbax reads; orbax itself is the oracle.

Each is read both ways: `load_checkpointables` of its version 1, and the handlers of version 0.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from test_checkpoints import SHARE, assert_same, state_of
from test_checkpoints_pool import answers

from dew.checkpoints import CheckpointDamaged, Checkpoints
from dew.checkpoints.leaves import leaves_of

TREE = "dew/tree"


def written(directory: Path, state, position: bytes | None = None) -> Path:
    checkpoints = Checkpoints(str(directory))
    checkpoints.save(1, state, position, share=SHARE)
    checkpoints.wait()
    return directory / "checkpoint-1" / TREE


def by_version_one(tree: Path, template=None) -> dict:
    from orbax.checkpoint import v1 as ocp

    return ocp.load_checkpointables(str(tree), template)


def by_version_zero(tree: Path) -> dict:
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        return {name: checkpointer.restore(tree / name) for name in ("state", "data")}


def assert_same_leaves(one, other) -> None:
    """Equal under equal names; orbax gives tuples back as lists, dew's restore as dicts."""
    plain = [
        {path: np.asarray(leaf) for path, leaf in leaves_of(tree).items()} for tree in (one, other)
    ]
    assert_same(*plain)


READERS = [by_version_one, by_version_zero]


@pytest.mark.parametrize("read", READERS)
def test_orbax_reads_what_dew_wrote(tmp_path, read):
    """Every leaf under the name that dew's own restore gives it, and the data positions."""
    state = state_of(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), step=3)
    tree = written(tmp_path, state, b"41")
    back, _ = Checkpoints(str(tmp_path)).restore()
    found = read(tree)
    assert_same_leaves(found["state"], back)
    data = found["data"]
    assert (int(data["index"][0]), int(data["count"][0]), int(data["length"][0])) == (0, 1, 2)
    assert bytes(np.asarray(data["position"])[0, :2]) == b"41"


@pytest.mark.parametrize("read", READERS)
def test_orbax_reads_every_dtype_shape_and_name(tmp_path, read):
    """Of `uint4`, which TensorStore cannot name, orbax gets the same numbers as `uint8`."""
    names = ["float8_e4m3fn", "float8_e5m2", "bfloat16", "int4", "float16", "bool", "int8"]
    names += ["uint8", "int64", "float64", "complex64", "uint4"]
    state = {name: np.arange(6).reshape(2, 3).astype(jnp.dtype(name)) for name in names}
    state |= {"model.norm.weight": np.ones(2), "a/b": {"100%": np.float32(2.5)}, "unset": None}
    state |= {"none at all": np.zeros((0, 3), "f4")}
    tree = written(tmp_path, state)
    right = {**state, "uint4": np.asarray(state["uint4"]).astype("uint8")}
    assert_same(jax.tree.map(np.asarray, read(tree)["state"]), jax.tree.map(np.asarray, right))


@pytest.mark.parametrize("read", READERS)
def test_names_that_dots_would_make_one_are_spelled_out(tmp_path, read):
    state = {"a.b": {"c/d": np.ones(2), "e": {}}, "a": {"b.c/d": np.zeros(2)}}
    tree = written(tmp_path, state)
    back, _ = Checkpoints(str(tmp_path)).restore()
    assert_same_leaves(back, state)
    spelled = {"a%2Eb": {"c%2Fd": np.ones(2), "e": {}}, "a": {"b%2Ec%2Fd": np.zeros(2)}}
    assert_same(jax.tree.map(np.asarray, read(tree)["state"]), spelled)


EMPTIES = {"none": None, "tuple": (), "list": [], "dict": {}, "pair": (None, optax.MaskedNode())}


def test_orbax_restores_into_a_train_states_own_containers(tmp_path):
    """The dataclass, optax's named tuples, the empty ones too; and onto the devices it names."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    state = state_of(optimizer, step=5)
    key = jax.random.key_data(jax.random.key(5))
    state = dataclasses.replace(state, key=key, ema=EMPTIES)
    tree = written(tmp_path, state)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    placed = NamedSharding(mesh, PartitionSpec())
    wanted = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed), state
    )
    found = by_version_one(tree, {"state": wanted})["state"]
    assert_same(found, state)
    assert all(leaf.sharding == placed for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("read", READERS)
def test_orbax_reads_what_a_pool_wrote(tmp_path, read):
    """Two processes with two devices each: sharded, replicated and host leaves alike."""
    done = answers("2x2", ["open", str(tmp_path)], ["save", 1], ["wait"])
    assert all(rank[2] is None for rank in done)
    back, _ = Checkpoints(str(tmp_path)).restore()
    found = read(tmp_path / "checkpoint-1" / TREE)
    assert_same_leaves(found["state"], back)
    assert np.asarray(found["data"]["count"]).tolist() == [2, 2]


@pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "orbax.checkpoint", "state/_METADATA"])
def test_what_orbax_needs_is_sealed_too(tmp_path, name):
    tree = written(tmp_path, {"w": np.ones(3)})
    (tree / name).write_text("{}")
    with pytest.raises(CheckpointDamaged, match=name):
        Checkpoints(str(tmp_path)).restore()

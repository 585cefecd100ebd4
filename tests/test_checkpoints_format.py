"""What lies on disk: types, chunks, the manifest's seal, and the first format."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checkpoints import SHARE, assert_same, saved

from dew.checkpoints import Checkpoints
from dew.checkpoints.manifest import file_digest
from dew.checkpoints.shards import chunk_of


def test_every_dtype_and_shape_comes_back(tmp_path):
    """Empty leaves, numbers, names with dots and slashes, and types that NumPy lacks."""
    names = ["float8_e4m3fn", "float8_e5m2", "bfloat16", "int4", "uint4", "float16", "bool"]
    names += ["int8", "uint8", "int64", "float64", "complex64"]
    state = {name: np.arange(6).reshape(2, 3).astype(jnp.dtype(name)) for name in names}
    state |= {"none at all": np.zeros((0, 3), "f4"), "a.b": {"c/d": np.ones(2)}, "a": {"b.c": 5}}
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(1, state, None)
    checkpoints.wait()
    back, _ = checkpoints.restore()
    assert_same(back, jax.tree.map(np.asarray, state))


def test_a_large_leaf_is_cut_so_that_a_slice_reads_little(tmp_path):
    """Chunks stay under 16 MiB, and are the devices' boxes or parts of them."""
    rows = [((start, start + 1024), (0, 4096)) for start in range(0, 4096, 1024)]
    assert chunk_of((4096, 4096), rows, 4) == (1024, 4096)
    assert chunk_of((50257, 768), [((0, 50257), (0, 768))], 4) == (5461, 768)
    halves = [((0, 50257), (0, 384)), ((0, 50257), (384, 768))]
    assert chunk_of((50257, 768), halves, 4) == (10922, 384)
    assert chunk_of((2 * 9973, 4096), [((0, 9973), (0, 4096)), ((9973, 19946), (0, 4096))], 4) == (
        9973,
        420,
    )
    assert chunk_of((), [()], 4) == ()


def test_a_flipped_bit_in_the_manifest_is_found(tmp_path):
    """Each byte of it once: none passes for what was written, or for another format."""
    saved(tmp_path, (1, 2))
    path = tmp_path / "checkpoint-2" / "dew" / "checkpoint.json"
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        with pytest.warns(UserWarning, match="checkpoint-2 is damaged.*checkpoint-1") as caught:
            state, _ = Checkpoints(str(tmp_path)).restore()
        assert len(caught) == 1
        assert state["w"][0] == 1


def test_a_checkpoint_of_the_first_format_still_restores(tmp_path):
    """As dew wrote it through orbax, which is the oracle of our reader."""
    from orbax.checkpoint import v1 as ocp

    state = {
        "layer": {"kernel": np.arange(12, dtype="f4").reshape(3, 4)},
        "count": np.array(3, "i4"),
    }
    row = {"index": np.zeros(1, "i4"), "count": np.ones(1, "i4"), "length": np.array([2])}
    data = {**row, "position": np.frombuffer(b"41\0", np.uint8)[None].copy()}
    folder = tmp_path / "checkpoint-7"
    (folder / "dew").mkdir(parents=True)
    tree = {"state": {"params": state}, "data": data}
    context = ocp.Context()
    context.async_options.create_directories_asynchronously = False
    with context:
        ocp.save_checkpointables_async(str(folder / "dew" / "tree"), tree).result()
    leaves = {"params": {"layer": {"kernel": ["float32", [3, 4]]}, "count": ["int32", []]}}
    record = {"format": 1, "step": 7, "metrics": {}, "leaves": leaves, "unset": ["ema"]}
    files = {
        path.relative_to(folder).as_posix(): file_digest(path)
        for path in (folder / "dew").rglob("*")
        if path.is_file()
    }
    (folder / "dew" / "checkpoint.json").write_text(json.dumps({**record, "files": files}))
    back, position = Checkpoints(str(tmp_path)).restore(share=SHARE)
    assert position == b"41"
    assert_same(back, {"params": jax.tree.map(np.asarray, state), "ema": None})

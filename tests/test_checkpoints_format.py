"""What lies on disk: types, chunks and the manifest's seal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checkpoints import assert_same, saved

from dew.checkpoints import Checkpoints
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

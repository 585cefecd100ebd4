"""Loading straight into a mesh: equal values, and no process holds more than its parts."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from helpers import write_llama
from pools import run

import bridges

CHILD = "pool_loading_child.py"


def test_a_checkpoint_loaded_onto_a_mesh_has_the_same_values(tmp_path):
    write_llama(tmp_path)
    plain = [np.asarray(leaf) for leaf in jax.tree.leaves(bridges.load(tmp_path).variables)]
    for ranks, devices in ((1, 4), (2, 2)):
        said = run(
            CHILD,
            ranks,
            devices=devices,
            source=str(tmp_path),
            mesh={"fsdp": 2, "tensor": 2},
            values=True,
        )
        for rank in said:
            for mine, right in zip(rank.said["values"], plain, strict=True):
                np.testing.assert_array_equal(np.asarray(mine, right.dtype), right)


@pytest.mark.slow
@pytest.mark.assets
def test_no_process_holds_more_than_its_parts_and_a_tensor(smollm2_gguf):
    """113 MB is the largest tensor, the embedding; two threads read at a time."""
    for rank in run(CHILD, 2, devices=1, source=str(smollm2_gguf), mesh={"fsdp": 2}):
        said = rank.said
        assert said["held"] < 0.51 * said["whole"]
        assert said["above"] < said["held"] + 2 * 49152 * 576 * 4, said

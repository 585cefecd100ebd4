"""One rank that loads a checkpoint onto a mesh: prints the parts' bytes, peak and sums."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pools import join

SETTINGS = json.loads(sys.argv[1])
join(SETTINGS)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import bridges  # noqa: E402
from dew.artifacts import host  # noqa: E402
from dew.training import Layout, MeshSpec  # noqa: E402


def peak() -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def main() -> None:
    jnp.zeros(1).block_until_ready()
    before = peak()
    layout = Layout(min_shard=SETTINGS.get("min_shard", 64))
    bundle = bridges.load(SETTINGS["source"], mesh=MeshSpec(**SETTINGS["mesh"]), layout=layout)
    jax.block_until_ready(bundle.variables)
    above = peak() - before
    leaves = jax.tree.leaves(bundle.variables)
    held = {
        (index, str(shard.index)): shard.data.nbytes
        for index, leaf in enumerate(leaves)
        for shard in leaf.addressable_shards
    }
    said = {
        "above": above,
        "held": sum(held.values()),
        "whole": sum(leaf.nbytes for leaf in leaves),
        "largest": SETTINGS.get("largest"),
    }
    if SETTINGS.get("values"):
        said["values"] = [leaf.tolist() for leaf in jax.tree.leaves(host(bundle.variables))]
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()

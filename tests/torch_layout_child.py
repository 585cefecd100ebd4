"""A program that loads and trains a traced model on the meshes it is told, and writes figures."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import bridges
from bridges.torch.objectives import TracedLMObjective
from dew import Checkpoints, Dataset, Layout, MeshSpec, Trainer
from dew.training.progress import Silent

ROWS, LENGTH, STEPS = 4, 12, 3
NAMES = (
    ("*.q_proj.weight", ("heads", "embed")),
    ("transformer.h.*.mlp.c_fc.weight", ("mlp", "embed")),
)


TEXT = np.random.default_rng(5).integers(0, 96, (STEPS, ROWS, LENGTH + 1)).astype(np.int32)
BATCHES = [{"text": rows} for rows in TEXT]


def data() -> Dataset:
    """Return batches of tokens, the same at each call."""
    return Dataset(lambda share: Opened(BATCHES), None, records=ROWS * STEPS, batch=ROWS)


class Opened:
    """An iterator over batches that can be put into a checkpoint."""

    def __init__(self, batches: list[dict[str, np.ndarray]]):
        self.batches, self.at = batches, 0

    def __iter__(self) -> Opened:
        """Return itself."""
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        """Return the next batch, from the start again at the end."""
        self.at += 1
        return self.batches[(self.at - 1) % len(self.batches)]

    def get_state(self) -> bytes:
        """Return the position."""
        return str(self.at).encode()

    def set_state(self, state: bytes) -> None:
        """Go to a position."""
        self.at = int(state)


def layout_of(mesh: MeshSpec) -> Layout:
    """Return a layout that cuts small parameters, by name where heads and features are cut."""
    return Layout(min_shard=64, names=NAMES if mesh.tensor > 1 else ())


def trained(
    bundle: Any, mesh: MeshSpec, folder: Path | None = None, *, steps: int = STEPS
) -> tuple[list[float], Any]:
    """Return the loss of each step and the last state."""
    losses: list[float] = []
    checkpoints = None if folder is None else Checkpoints(str(folder))
    trainer = Trainer(
        TracedLMObjective(bundle, LENGTH),
        optax.adamw(1e-2),
        key=jax.random.key(0),
        mesh=mesh,
        layout=layout_of(mesh),
        checkpoints=checkpoints,
    )
    state = trainer.fit(
        data(),
        steps=steps,
        log_every=1,
        variables=bundle.variables,
        on_report=lambda scalars, step: losses.append(scalars["train/loss"]),
        progress=Silent(),
    )
    if checkpoints is not None:
        checkpoints.wait()
    return losses, state


def device_elements(tree: Any) -> list[int]:
    """Return how many elements of a tree each device holds."""
    held = dict.fromkeys(jax.devices(), 0)
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.size
    return list(held.values())


def main(source: str, out: str) -> None:
    """Load and train on each mesh of four devices, and write what was seen."""
    warnings.simplefilter("ignore")
    figures = {}
    for name, mesh in {
        "data": MeshSpec(),
        "fsdp": MeshSpec(fsdp=4),
        "names": MeshSpec(fsdp=2, tensor=2),
    }.items():
        bundle = bridges.load(source, mesh=mesh, layout=layout_of(mesh))
        losses, state = trained(bundle, mesh)
        key = "transformer.h.0.attn.attention.q_proj.weight"
        specs = {
            "params": bundle.variables["params"][key].sharding.spec,
            "moments": state.opt_state[0].mu[key].sharding.spec,
        }
        figures[name] = {
            "losses": losses,
            "loaded": device_elements(bundle.variables["params"]),
            "moments": device_elements(state.opt_state[0].mu),
            "specs": {what: [str(part) for part in spec] for what, spec in specs.items()},
        }
    trained(bridges.load(source), MeshSpec(fsdp=4), Path(out).parent / "steps", steps=2)
    Path(out).write_text(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])

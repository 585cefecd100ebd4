"""One rank of a tracked run: `tracking_child.py SETTINGS`, JSON; prints one JSON line.

Settings: those of `pools.start`, and folder, told (the ranks that build a tracker), failing (the
rank whose preview raises).
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import jax
from pools import join

SETTINGS = json.loads(sys.argv[1])
join(SETTINGS)

import numpy as np  # noqa: E402
import optax  # noqa: E402

from dew import Dataset, LocalTracker, MeshSpec, Trainer, metrics  # noqa: E402
from dew.artifacts import end_pool_on_failure  # noqa: E402
from dew.nn.backbones.causal_transformer import CausalTransformer  # noqa: E402
from dew.objectives.lm import LMObjective  # noqa: E402
from dew.objectives.samples import Samples  # noqa: E402
from dew.training import Layout  # noqa: E402

RANK = SETTINGS["rank"]


class Watched(LMObjective):
    """Counts the previews, and fails in one where it is told to."""

    previews = 0

    def preview(self, variables, batch, step, *, scored=None):
        self.previews += 1
        if SETTINGS.get("failing") == RANK:
            raise RuntimeError("no preview today")
        return super().preview(variables, batch, step, scored=scored)


def batches(share, count: int):
    rows = np.random.default_rng(1).integers(0, 11, (8, 9)).astype(np.int32)
    for _ in range(count):
        yield {"text": rows[share.of(8)]}


def main() -> None:
    end_pool_on_failure(5.0)
    model = CausalTransformer(
        vocab_size=11,
        emb_features=16,
        num_layers=2,
        num_heads=2,
        mlp_features=32,
        max_seq_len=16,
    )
    samples = Samples(((3, 1, 4), (1,)), max_new_tokens=5, count=2)
    objective = Watched(model, 8, samples=samples)
    folder = Path(SETTINGS["folder"]) / str(RANK)
    tracker = LocalTracker(folder) if RANK in SETTINGS["told"] else None
    trainer = Trainer(
        objective,
        optax.adam(1e-2),
        key=jax.random.key(3),
        mesh=MeshSpec(fsdp=2),
        layout=Layout(min_shard=64),
        tracker=tracker,
    )
    data = Dataset(
        train=lambda share: itertools.cycle(batches(share, 1)),
        val=lambda share: batches(share, 2 + RANK),
        records=8,
        batch=8,
    )
    scores = {}
    trainer.fit(
        data,
        steps=2,
        eval_every=2,
        metrics=(metrics.perplexity(),),
        preview=True,
        on_report=lambda scalars, step: scores.update(scalars),
    )
    kept = {k: v for k, v in scores.items() if k.startswith(("val/", "evaluation/"))}
    print(json.dumps({"scores": kept, "previews": objective.previews}), flush=True)


if __name__ == "__main__":
    main()

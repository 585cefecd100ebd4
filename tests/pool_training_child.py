"""One rank of a run on a mesh: `pool_training_child.py SETTINGS`, JSON; prints one JSON line.

Settings: those of `pools.start`, and devices, mesh, steps, directory, stop_at, stuck_at, hang,
grace, batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import jax
from pools import join

SETTINGS = json.loads(sys.argv[1])
join(SETTINGS)

import numpy as np  # noqa: E402

from dew import metrics  # noqa: E402
from dew.artifacts import end_pool_on_failure  # noqa: E402
from dew.checkpoints import Checkpoints  # noqa: E402
from dew.data import Dataset  # noqa: E402
from dew.nn.backbones.causal_transformer import CausalTransformer  # noqa: E402
from dew.objectives.lm import LMObjective  # noqa: E402
from dew.training import Layout, MeshSpec, Trainer  # noqa: E402
from dew.training.adam import adamw  # noqa: E402

LENGTH = 16


class Tokens:
    """Rows of random tokens by position, the same in every run; a share takes its own."""

    def __init__(self, share, batch: int):
        self.share, self.batch, self.position = share, batch, 0

    def __iter__(self):
        return self

    def __next__(self):
        draws = np.random.default_rng([7, self.position])
        rows = draws.integers(0, 64, (self.batch, LENGTH + 1)).astype(np.int32)
        weights = (draws.random((self.batch, LENGTH + 1)) < 0.7).astype(np.float32)
        self.position += 1
        if self.position - 1 == SETTINGS.get("stop_at") and SETTINGS["rank"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.position - 1 == SETTINGS.get("stuck_at") and SETTINGS["rank"] == 1:
            time.sleep(10_000)
        own = self.share.of(self.batch)
        return {"text": rows[own], "weights": weights[own]}

    def get_state(self) -> bytes:
        return json.dumps({"position": self.position}).encode()

    def set_state(self, state: bytes) -> None:
        self.position = json.loads(state)["position"]


def validation(share, batch: int):
    stream = Tokens(share, batch)
    stream.position = 1000
    return iter([next(stream) for _ in range(3)])


def main() -> None:
    end_pool_on_failure(SETTINGS.get("grace", 60.0))
    batch = SETTINGS.get("batch", 8)
    model = CausalTransformer(
        vocab_size=64,
        emb_features=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        mlp_features=64,
        max_seq_len=32,
    )
    directory = SETTINGS.get("directory")
    trainer = Trainer(
        LMObjective(model, LENGTH),
        adamw(1e-2),
        key=jax.random.key(3),
        mesh=MeshSpec(**SETTINGS["mesh"]),
        layout=Layout(min_shard=64),
        hang_timeout=SETTINGS.get("hang", 1800.0),
        checkpoints=None if directory is None else Checkpoints(directory),
    )
    data = Dataset(
        train=lambda share: Tokens(share, batch),
        val=lambda share: validation(share, batch),
        records=1000,
        batch=batch,
    )
    losses: dict[int, float] = {}
    scores: dict[str, float] = {}

    def keep(scalars, step) -> None:
        if "train/loss" in scalars:
            losses[step] = scalars["train/loss"]
        scores.update({k: v for k, v in scalars.items() if k.startswith("val/")})

    state = trainer.fit(
        data,
        steps=SETTINGS["steps"],
        log_every=1,
        eval_every=SETTINGS["steps"],
        checkpoint_every=None if directory is None else 5,
        metrics=(metrics.perplexity(),),
        on_report=keep,
    )
    kernel = state.params["params"]["layers"]["mlp"]["up"]["kernel"]
    print(
        json.dumps(
            {
                "losses": losses,
                "scores": scores,
                "spec": str(kernel.sharding.spec),
                "step": int(state.step),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()

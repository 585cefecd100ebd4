"""Datasets and functions for DataLoader workers, in a module that they can import."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Squares(Dataset):
    """Sample n holds n and its square, and what the three generators draw."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        drawn = [torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002
        return {"n": torch.tensor(index), "square": np.float32(index**2), "drawn": np.array(drawn)}


class Failing(Squares):
    """Sample 5 dies, hangs, raises, or is what JAX made."""

    def __init__(self, count: int, way: str) -> None:
        super().__init__(count)
        self.way = way

    def __getitem__(self, index):
        if self.way == "modules":
            names = [name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib")]
            return {"n": index, "loaded": len(names)}
        if index == 5 and self.way == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 5 and self.way == "hang":
            time.sleep(600)
        if index == 5 and self.way == "raise":
            raise KeyError("sample 5 has no picture")
        if self.way == "jax":
            import jax.numpy as jnp

            return {"n": jnp.zeros(2) + index}
        return super().__getitem__(index)


class Counted(IterableDataset):
    """The numbers below a count, cut among the workers, with draws of each."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first, self.count, step):
            yield {"n": number, "drawn": torch.rand(()).item() + random.random()}


def masked(samples):
    """Collate with a draw, as a collator that masks tokens does."""
    batch = torch.utils.data.default_collate(samples)
    return {**batch, "mask": torch.rand(len(samples)) < 0.5}

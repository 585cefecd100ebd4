"""What runs in a DataLoader's worker processes: draws by number, NumPy and tensors, never JAX."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

WORKER_ENVIRONMENT = {"JAX_PLATFORMS": "cpu"}
SEARCHED_DEPTH = 4


@dataclass(frozen=True)
class Numbered:
    """What a sampler gave for one batch, and the seed of what is drawn to make it."""

    indices: Any
    seed: int


@dataclass(frozen=True)
class Fetched:
    """The samples of one batch, and the seed of what is drawn to put them together."""

    samples: Any
    seed: int


@dataclass(frozen=True)
class Refused:
    """A batch that cannot be used; the process that asked for it raises this text."""

    text: str


def drawn_seed(*parts: Any) -> int:
    """Return a seed of 63 bits that depends on nothing but the parts' texts."""
    text = " ".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Let the generators of torch, NumPy and Python draw from a seed; put them back afterwards."""
    import numpy as np
    import torch

    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


class NumberedSampler:
    """A sampler whose batches are numbered, and are skipped without being loaded.

    Args:
        sampler: of batches, or of single samples where the loader does not batch.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._epoch = 0, 0

    def begin(self, seed: int, skipped: int) -> None:
        """Set the seed of the next epoch, and how many batches are left out at its start.

        Workers that persist keep the sampler they began with, so it is told and not replaced.
        """
        self._epoch = seed, skipped

    def __iter__(self) -> Iterator[Numbered]:
        """Give the batches of an epoch from the first that is not skipped on."""
        seed, skipped = self._epoch
        with drawing_from(drawn_seed(seed, "order")):
            inner = iter(self.sampler)
        number = 0
        while True:
            with drawing_from(drawn_seed(seed, "order", number)):
                try:
                    indices = next(inner)
                except StopIteration:
                    return
            if number >= skipped:
                yield Numbered(indices, drawn_seed(seed, "samples", number))
            number += 1

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.sampler)


class NumberedDataset:
    """A dataset with samples to look up, drawn from their batch's own seed.

    So what is drawn depends neither on the worker nor on what it loaded before.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset)

    def __getitem__(self, numbered: Numbered) -> Fetched:
        """Return one sample of a loader that does not batch."""
        with drawing_from(numbered.seed):
            return Fetched(self.dataset[numbered.indices], numbered.seed)

    def __getitems__(self, numbered: Numbered) -> Fetched:
        """Return the samples of a batch."""
        with drawing_from(numbered.seed):
            several = getattr(self.dataset, "__getitems__", None)
            if several is not None:
                samples = several(numbered.indices)
            else:
                samples = [self.dataset[index] for index in numbered.indices]
        return Fetched(samples, numbered.seed)


class CheckedCollate:
    """A collate function that refuses JAX arrays in a worker, before and after."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, fetched: Any) -> Any:
        """Return the batch, or why it cannot be used."""
        if not isinstance(fetched, Fetched):
            return self._checked(fetched)
        with drawing_from(drawn_seed(fetched.seed, "batch")):
            return self._checked(fetched.samples)

    def _checked(self, samples: Any) -> Any:
        from torch.utils.data import get_worker_info

        if get_worker_info() is None:
            return self.collate(samples)
        found = jax_array(samples)
        if found is not None:
            return Refused(_refusal("a sample of the dataset", found))
        batch = self.collate(samples)
        found = jax_array(batch)
        return batch if found is None else Refused(_refusal("the collate function", found))


class WorkerStart:
    """Prepares a worker: JAX, if a sample's code imports it, stays on the CPU."""

    def __init__(self, given: Callable[[int], None] | None) -> None:
        self.given = given

    def __call__(self, worker: int) -> None:
        """Set the environment, then do what the loader's own function does."""
        os.environ.update(WORKER_ENVIRONMENT)
        if self.given is not None:
            self.given(worker)


@contextmanager
def worker_environment() -> Iterator[None]:
    """Let processes that start now find the environment of workers."""
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def jax_array(value: Any, depth: int = SEARCHED_DEPTH) -> str | None:
    """Return the place of a JAX array in a value, such as `['image']`, or None; JAX stays out."""
    kind = type(value)
    if any(base.__module__.partition(".")[0] in ("jax", "jaxlib") for base in kind.__mro__):
        return ""
    if depth and isinstance(value, dict):
        parts = [(repr(key), part) for key, part in value.items()]
    elif depth and isinstance(value, list | tuple):
        parts = [(str(number), part) for number, part in enumerate(value)]
    else:
        return None
    for key, part in parts:
        found = jax_array(part, depth - 1)
        if found is not None:
            return f"[{key}]{found}"
    return None


def _refusal(source: str, place: str) -> str:
    return (
        f"the data loader: {source} holds a JAX array{f' at {place}' if place else ''}. Expected "
        "NumPy arrays or tensors: worker processes have no accelerator, and the batch is placed "
        "where it belongs by the process that trains."
    )

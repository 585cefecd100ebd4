"""`bridges.from_dataloader`: a torch DataLoader as what dew trains on, resumed where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bridges.torch.loader_fields import Fields, named_fields
from bridges.torch.loader_order import generators_of, set_epoch_of, set_states, states_of
from bridges.torch.loader_process import closed, opened, ready_loader
from bridges.torch.loader_workers import drawing_from, drawn_seed
from bridges.torch.plain_state import plain, restored
from dew.data import DataPartition, Dataset
from dew.errors import InputRefused, listed, shown

MAP, ITERABLE, STATEFUL, OTHER = "map", "iterable", "stateful", "iterable object"
PATIENCE = 30.0


def from_dataloader(
    loader: Any,
    *,
    eval_loader: Any = None,
    fields: Fields = None,
    batch: int | None = None,
    records: int | None = None,
    seed: int = 0,
    patience: float = PATIENCE,
) -> Dataset:
    """Return a dataset that trains from a torch `DataLoader`, as it is.

    Its dataset, sampler, collate function and transforms run on the host as they do under torch,
    in the same order. One that shuffles without a generator of its own shuffles by `seed`; with
    one, it draws from that as torch would. Workers are spawned, never forked, with JAX on the CPU
    should a sample's code import it; their dataset must be picklable, and a script needs its
    `if __name__ == '__main__':`.

    Where a run stands is a number of batches. Of a dataset with `__getitem__` the batches before
    are not loaded again on resuming, and each batch's draws (augmentation, masking) come from a
    seed of its own: they depend neither on the workers nor on their number. Of an
    `IterableDataset`, or any other object that can be iterated, the epoch is gone through again.
    Of a loader with `state_dict` and `load_state_dict`, such as torchdata's
    `StatefulDataLoader`, that state is the position.

    Args:
        loader: gives global batches, each process keeping its share of the rows; or, with a
            `DistributedSampler` set up by share, this process's shares.
        eval_loader: what to validate on, gone through from its start each time.
        fields: the names of a tuple batch's parts; which keys of a dictionary are read; or their
            new names by key. None takes a dictionary as it is.
        batch: rows of a global batch; None takes the loader's.
        records: rows of an epoch; None takes the loader's, or 0 for not known.
        seed: of what draws without a generator of its own.
        patience: seconds that a batch may take before the worker is given up.

    Returns:
        The dataset; its batches hold NumPy arrays, on the tensors' own memory where it can be,
        64-bit numbers in 32 bits.

    Raises:
        InputRefused: a loader without a batch size where none is given, one that forks, or a
            script without a guard. While training, also batches without names, with integers that
            32 bits do not hold, or that do not divide into shares.
    """
    if not hasattr(loader, "__iter__") or isinstance(loader, Iterator):
        raise InputRefused(
            f"loader: found {shown(type(loader).__name__)}; expected a DataLoader, or another "
            "object that can be iterated anew for each epoch."
        )
    shares = _shares_of(loader)
    if batch is None:
        size = getattr(loader, "batch_size", None)
        size = size or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        if not isinstance(size, int):
            raise InputRefused(
                "batch: this loader has no batch_size. Give the rows of one of its batches, "
                "batch=...: over all processes."
            )
        batch = size * shares
    if records is None:
        held = getattr(loader, "dataset", None)
        sized = kind_of_loader(loader) in (MAP, STATEFUL) and hasattr(held, "__len__")
        records = len(held) if sized else 0  # type: ignore[arg-type]
    if getattr(loader, "num_workers", 0):
        ready_loader(loader, numbered=False)  # refuse now what could not start
    options = {"fields": fields, "seed": seed, "patience": patience, "batch": batch}
    return Dataset(
        train=partial(LoaderStream, loader, **options),
        val=None if eval_loader is None else _Passes(eval_loader, **options),
        records=records,
        batch=batch,
    )


def kind_of_loader(loader: Any) -> str:
    """Return how a loader's position is kept."""
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return STATEFUL
    if not hasattr(loader, "dataset") or not hasattr(loader, "collate_fn"):
        return OTHER
    from torch.utils.data import IterableDataset

    return ITERABLE if isinstance(loader.dataset, IterableDataset) else MAP


@dataclass
class _Position:
    """Where a loader stands: how many batches of an epoch are taken.

    Args:
        epoch: whole epochs before.
        batches: taken of this one.
        generators: the states of the loader's generators as the epoch began.
        state: a stateful loader's own state, to go on from.
        after: the generators' states beside it: loading it draws otherwise than the run did.
    """

    epoch: int = 0
    batches: int = 0
    generators: list[str] | None = None
    state: Any = None
    after: list[str] | None = None


class LoaderStream:
    """An endless iterator over a loader's batches, epoch after epoch.

    Args:
        loader: see `from_dataloader`, as the other arguments.
        partition: this process's share.
        fields: names of the batch's parts.
        seed: of what draws without a generator of its own.
        patience: seconds that a batch may take.
        batch: rows of a global batch.

    Raises:
        InputRefused: a batch that does not divide, or a sampler of another number of shares.
    """

    def __init__(
        self,
        loader: Any,
        partition: DataPartition = DataPartition(),  # noqa: B008 (frozen)
        *,
        fields: Fields,
        seed: int,
        patience: float,
        batch: int,
    ) -> None:
        self._kind = kind_of_loader(loader)
        self._shares = _check_shares(loader, partition)
        partition.of(batch)
        self.partition, self._fields = partition, fields
        self._seed, self._patience, self._batch = int(seed), patience, batch
        ready = self._kind != OTHER
        self._loader = ready_loader(loader, numbered=self._kind == MAP) if ready else loader
        self._generators = generators_of(loader)
        if self._kind == STATEFUL and getattr(loader, "generator", None) is None:
            for generator in self._generators:  # torchdata seeds its own from what it finds
                generator.manual_seed(drawn_seed(seed, "generator"))
        self._at = _Position()
        self._iterator: Any = None

    def __iter__(self) -> LoaderStream:
        """Return the stream itself."""
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        """Return this share of the next batch.

        Raises:
            InputRefused: see `from_dataloader`. WorkerFailed: a worker died or is stuck.
        """
        while (batch := self.next_of_epoch()) is None:
            if not self._at.batches:
                raise InputRefused(
                    "the data loader gives no batch in a whole epoch; give it at least one."
                )
            self._at, self._iterator = _Position(self._at.epoch + 1), None
        return batch

    def next_of_epoch(self) -> dict[str, np.ndarray] | None:
        """Return this share of the next batch, or None where the epoch ends.

        Raises:
            InputRefused: see `from_dataloader`. WorkerFailed: a worker died or is stuck.
        """
        at = self._at
        if self._iterator is None:
            self._open()
        try:
            with self._drawing("batch", at.batches):
                found: Any = next(self._iterator)  # type: ignore[arg-type]
        except StopIteration:
            return None
        except Exception as error:
            error.add_note(f"in the data loader, batch {at.batches + 1} of epoch {at.epoch + 1}")
            raise
        at.batches += 1
        return self._share(named_fields(found, self._fields))

    @property
    def epoch(self) -> int:
        """Whole epochs consumed so far."""
        return self._at.epoch

    def get_state(self) -> bytes:
        """Return the position as JSON.

        Raises:
            InputRefused: a loader's own state that JSON cannot hold.
        """
        state: dict[str, Any] = {
            "epoch": self._at.epoch,
            "batches": self._at.batches,
            "generators": self._at.generators or states_of(self._generators),
            **self._identity(),
        }
        if self._kind == STATEFUL and self._iterator is not None:
            state["state"] = plain(self._loader.state_dict())
            state["after"] = states_of(self._generators)
        elif self._at.state is not None:
            state |= {"state": plain(self._at.state), "after": self._at.after}
        return json.dumps(state).encode()

    def set_state(self, state: bytes) -> None:
        """Go on at a position that `get_state` gave.

        Raises:
            InputRefused: not such a position, or one of another loader, seed or batch; of an
                `IterableDataset`, also of another number of workers.
        """
        saved = _read_state(state)
        problems = [
            f"{name}: the position has {shown(saved.get(name))}, this loader {shown(value)}"
            for name, value in self._identity().items()
            if saved.get(name) != value
        ]
        if len(saved["generators"]) != len(self._generators):
            problems.append(
                f"generators: the position has {len(saved['generators'])}, this loader "
                f"{len(self._generators)}"
            )
        if problems:
            heading = "the saved data position is not one of this loader; go on with the same:"
            raise InputRefused(listed(heading, problems))
        self._end()
        self._go_to(saved)

    def rewind(self, state: bytes) -> None:
        """Go back to a position of this stream after the end of an epoch, with the same workers."""
        self._iterator = None
        self._go_to(_read_state(state))

    def _go_to(self, saved: Mapping[str, Any]) -> None:
        self._at = _Position(
            saved["epoch"],
            saved["batches"],
            saved["generators"],
            restored(saved.get("state")),
            saved.get("after"),
        )

    def close(self) -> None:
        """End the workers."""
        self._end()

    def _end(self) -> None:
        if self._iterator is not None:
            closed(self._loader, self._iterator) if self._kind != OTHER else None
            self._iterator = None

    def _open(self) -> None:
        """Begin an epoch, or go on in one after the batches that were taken."""
        at = self._at
        if at.generators is not None:
            set_states(self._generators, at.generators)
        at.generators = states_of(self._generators)
        set_epoch_of(self._loader, at.epoch)
        if self._kind == STATEFUL and at.state is not None:
            self._loader.load_state_dict(at.state)
            at.state = None
        if self._kind == OTHER:
            with self._drawing("start"):
                self._iterator = iter(self._loader)
        else:
            self._iterator = opened(
                self._loader,
                seed=self._drawn(),
                skipped=at.batches,
                numbered=self._kind == MAP,
                patience=self._patience,
            )
        if at.after is not None:
            set_states(self._generators, at.after)
            at.after = None
        if self._kind in (ITERABLE, OTHER):
            for number in range(at.batches):
                with self._drawing("batch", number):
                    next(self._iterator, None)

    def _drawing(self, *parts: Any) -> AbstractContextManager[None]:
        """Draw from a seed, unless the batches have their own where they are made."""
        return nullcontext() if self._kind == MAP else drawing_from(self._drawn(*parts))

    def _drawn(self, *parts: Any) -> int:
        return drawn_seed(self._seed, self._at.epoch, *parts)

    def _share(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        count, index = self.partition.count, self.partition.index
        if self._shares > 1 or count == 1:
            return batch
        rows = len(next(iter(batch.values())))
        if rows % count:
            raise InputRefused(
                f"the data loader: a batch of {rows} rows does not divide into {count} shares. "
                "Choose a batch_size that does, and drop_last=True for the rest of an epoch."
            )
        return {name: value[index::count] for name, value in batch.items()}

    def _identity(self) -> dict[str, Any]:
        held = getattr(self._loader, "dataset", None)
        same: dict[str, Any] = {"kind": self._kind, "seed": self._seed, "batch": self._batch}
        if self._kind == MAP and hasattr(held, "__len__"):
            same["rows"] = len(held)  # type: ignore[arg-type]
        if self._kind in (ITERABLE, STATEFUL):
            same["workers"] = getattr(self._loader, "num_workers", 0)
        if self._shares > 1:
            same["shares"] = self._shares
        return same


class _Passes:
    """Gives the batches of one epoch, the same ones each time; its workers stay for the next."""

    def __init__(self, loader: Any, **options: Any) -> None:
        self._loader = loader
        self._options = options
        self._stream: LoaderStream | None = None

    def __call__(self, partition: DataPartition) -> Iterator[dict[str, np.ndarray]]:
        """Return an iterator over one pass of a share."""
        stream, self._stream = self._stream, None
        if stream is None or stream.partition != partition:
            stream = LoaderStream(self._loader, partition, **self._options)
        return self._given(stream)

    def _given(self, stream: LoaderStream) -> Iterator[dict[str, np.ndarray]]:
        start = stream.get_state()
        whole = False
        try:
            while (found := stream.next_of_epoch()) is not None:
                yield found
            whole = True
        finally:
            if whole:
                stream.rewind(start)
                self._stream = stream
            else:
                stream.close()


def _shares_of(loader: Any) -> int:
    """Return into how many shares a loader's sampler cuts an epoch: 1 if it does not."""
    sampler = getattr(loader, "sampler", None)
    shares = getattr(sampler, "num_replicas", 1)
    return shares if isinstance(shares, int) else 1


def _check_shares(loader: Any, partition: DataPartition) -> int:
    shares = _shares_of(loader)
    rank = getattr(getattr(loader, "sampler", None), "rank", 0)
    if shares > 1 and (shares, rank) != (partition.count, partition.index):
        raise InputRefused(
            f"the data loader: its sampler reads share {rank} of {shares}, and this process reads "
            f"share {partition.index} of {partition.count}. Set num_replicas and rank by the "
            "DataPartition, or leave the distributed sampler out: batches are cut into shares."
        )
    return shares


def _read_state(state: bytes) -> dict[str, Any]:
    try:
        saved = json.loads(bytes(state).decode())
    except (ValueError, RecursionError):
        saved = None
    numbers = ("epoch", "batches")
    if (
        not isinstance(saved, dict)
        or any(type(saved.get(name)) is not int or saved[name] < 0 for name in numbers)
        or not isinstance(saved.get("generators"), list)
    ):
        raise InputRefused(
            f"data position: found {shown(bytes(state))}; expected what get_state() of a data "
            "loader's stream gave."
        )
    return saved

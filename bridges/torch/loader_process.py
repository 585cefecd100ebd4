"""A DataLoader made ready to train from: workers that start clean, answer in time, or are named."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import queue
import sys
import time
from pathlib import Path
from typing import Any

from bridges.torch.loader_workers import (
    CheckedCollate,
    NumberedDataset,
    NumberedSampler,
    WorkerStart,
    drawing_from,
    drawn_seed,
    worker_environment,
)
from dew.errors import InputRefused

START_PATIENCE = 120.0
"""Seconds that workers have to start, import what they need and give a first batch."""
CHECKED_SECONDS = 1.0
GUARD = (
    "Worker processes run the script that started them again, up to its "
    "`if __name__ == '__main__':`. Put what trains under one, or use num_workers=0."
)


class WorkerFailed(RuntimeError):
    """A worker process that died, or that gave no batch in time."""


def ready_loader(loader: Any, *, numbered: bool) -> Any:
    """Return a copy of a loader whose workers start clean; the loader itself stays as it is.

    Workers are spawned: a fork of this process would hold the locks of threads that it has not,
    and hang sooner or later.

    Args:
        loader: a torch `DataLoader`, or what has its attributes.
        numbered: whether each batch draws from a seed of its own.

    Raises:
        InputRefused: a loader that forks, a script without a guard, or this process is itself a
            worker that is starting.
    """
    made = copy.copy(loader)
    known = vars(made)
    if "collate_fn" in known:
        known["collate_fn"] = CheckedCollate(loader.collate_fn)
    if numbered:
        known["dataset"] = NumberedDataset(loader.dataset)
        known[_sampler_name(loader)] = NumberedSampler(known[_sampler_name(loader)])
    known["_iterator"] = None
    if not getattr(loader, "num_workers", 0):
        return made
    _check_process(loader)
    made.multiprocessing_context = "spawn"
    made.worker_init_fn = WorkerStart(loader.worker_init_fn)
    if numbered and not hasattr(loader.dataset, "set_epoch"):
        known["persistent_workers"] = True  # a spawned worker takes seconds to start
    if not loader.timeout:
        made.timeout = START_PATIENCE  # of the loader's own, should it not be waited for here
    return made


def opened(loader: Any, *, seed: int, skipped: int, numbered: bool, patience: float) -> Any:
    """Return an iterator over one epoch of a ready loader.

    Args:
        loader: from `ready_loader`.
        seed: of the epoch.
        skipped: how many batches a numbered loader leaves out.
        numbered: as for `ready_loader`.
        patience: seconds that a batch may take, once a first one has come.
    """
    if numbered:
        vars(loader)[_sampler_name(loader)].begin(seed, skipped)
    with drawing_from(drawn_seed(seed, "start")), worker_environment():
        try:
            iterator = iter(loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if not getattr(loader, "num_workers", 0):
                raise
            raise _not_handed("its dataset", error) from error
        except RuntimeError as error:
            if not getattr(loader, "num_workers", 0):
                raise
            raise WorkerFailed(f"the data loader: {error}. {GUARD}") from error
    if hasattr(iterator, "_try_get_data") and not hasattr(iterator, "_waited_by_dew"):
        iterator._waited_by_dew = _Waiting(iterator, patience)
        iterator._try_get_data = iterator._waited_by_dew
    return iterator


def _sampler_name(loader: Any) -> str:
    """Return which of a loader's samplers says what a batch holds."""
    return "batch_sampler" if loader.batch_sampler is not None else "sampler"


def closed(loader: Any, iterator: Any) -> None:
    """End the workers of an iterator."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()
    vars(loader)["_iterator"] = None


class _Waiting:
    """Waits for a batch in short turns, so that a dead or stuck worker is named in time."""

    def __init__(self, iterator: Any, patience: float) -> None:
        self._iterator = iterator
        self._get = iterator._try_get_data
        self._patience = patience
        self._came = False

    def __call__(self, timeout: float = 0.0) -> tuple[bool, Any]:
        """Return whether a batch came, and the batch.

        Raises:
            WorkerFailed: a worker died, or none came within the patience.
        """
        del timeout
        limit = self._patience if self._came else max(START_PATIENCE, self._patience)
        ends = time.monotonic() + limit
        while time.monotonic() < ends:
            try:
                found, data = self._get(timeout=CHECKED_SECONDS)
            except (RuntimeError, OSError, EOFError, queue.Empty) as error:
                raise WorkerFailed(self._death(error)) from error
            if found:
                self._came = True
                return True, data
        raise WorkerFailed(
            f"the data loader: {self._awaited()} gave no batch within {limit:.0f} s. Is a sample "
            "stuck (a lock, a download, a pipe)? Give from_dataloader a longer patience if it "
            "is only slow."
        )

    def _awaited(self) -> str:
        task = getattr(self._iterator, "_task_info", {}).get(
            getattr(self._iterator, "_rcvd_idx", None)
        )
        if not task:
            return "no worker"
        process = self._iterator._workers[task[0]]
        return f"worker {task[0]} (pid {process.pid})"

    def _death(self, error: Exception) -> str:
        dead = [
            f"worker {number} (pid {process.pid}, exit status {process.exitcode})"
            for number, process in enumerate(getattr(self._iterator, "_workers", []))
            if not process.is_alive()
        ]
        advice = (
            "Killed for want of memory? Fewer workers take less."
            if self._came
            else f"Its own message stands above. {GUARD} What a dataset is made of must be "
            "importable there, and picklable."
        )
        return f"the data loader: {', '.join(dead) or error} ended by itself. {advice}"


def _check_process(loader: Any) -> None:
    """Refuse to start workers where they could not start.

    Raises:
        InputRefused: see `ready_loader`.
    """
    context = loader.multiprocessing_context
    if context is not None and context.get_start_method() == "fork":
        raise InputRefused(
            "the data loader: multiprocessing_context is 'fork'. JAX runs threads whose locks a "
            "forked worker would wait for without end. Leave it out, or use 'spawn'."
        )
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputRefused(f"the data loader is opened by a worker that is starting. {GUARD}")
    for name in ("collate_fn", "worker_init_fn"):
        try:
            pickle.dumps(getattr(loader, name))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise _not_handed(f"its {name}", error) from error
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None:
        here = [type(loader.dataset), loader.collate_fn, loader.worker_init_fn]
        if any(getattr(part, "__module__", None) == "__main__" for part in here):
            raise InputRefused(
                "the data loader: its dataset or a function of it is defined in a session without "
                "a file, where worker processes cannot find it. Put it into a module and import "
                "it, or use num_workers=0."
            )
    elif spec is None and "__main__" not in _text(file):
        raise InputRefused(f"the data loader: {file} has no guard. {GUARD}")


def _not_handed(what: str, error: Exception) -> InputRefused:
    return InputRefused(
        f"the data loader: {what} cannot be handed to a worker: {error}. Expected what a module "
        "defines, no lambda and nothing defined within a function; or use num_workers=0."
    )


def _text(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return "__main__"  # not a script that could be read, so nothing is known

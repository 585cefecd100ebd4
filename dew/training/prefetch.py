"""A thread that has the next batches on the device before the step asks for them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

DEPTH = 2
_END = object()


@dataclass(frozen=True)
class Fed:
    """One batch on the device.

    Attributes:
        batch: field name to jax array.
        rows: its first axis.
        position: the iterator's position right after it, or None where it has none.
        waited: seconds that passed between asking for it and having it.
    """

    batch: dict[str, jax.Array]
    rows: int
    position: bytes | None
    waited: float = 0.0


class Prefetch:
    """Reads an iterator ahead, on one thread.

    The position that comes with a batch is the one after that batch, however far the thread has
    read ahead. An error of the iterator is raised where its batch would have come.

    Args:
        iterator: of batches, field name to numpy array. One that draws its batches from the model
            has `learned`, see `tell`.
        limit: how many batches will be asked for; none is read beyond.
        place: puts a batch on the devices, in memory that the iterator does not share.
        depth: how many batches may lie ready.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        *,
        limit: int,
        place: Callable[[Any], dict[str, jax.Array]],
        depth: int = DEPTH,
    ):
        self._iterator = iterator
        self._place = place
        self._limit = limit
        self._ready: queue.Queue[Any] = queue.Queue(maxsize=max(1, depth))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="prefetch", daemon=True)
        self._thread.start()

    def next(self, while_waiting: Callable[[], None] = lambda: None) -> Fed:
        """Return the next batch.

        Args:
            while_waiting: called twice a second while none is ready; what it raises is raised.

        Raises:
            StopIteration: the iterator has no more.
            Exception: what the iterator raised.
        """
        began = time.perf_counter()
        # A wait without an end would keep the main thread from hearing signals on some systems.
        while True:
            try:
                item = self._ready.get(timeout=0.5)
                break
            except queue.Empty:
                if not self._thread.is_alive() and self._ready.empty():
                    raise StopIteration from None
                while_waiting()
        if item is _END:
            raise StopIteration
        if isinstance(item, BaseException):
            raise item
        return replace(item, waited=time.perf_counter() - began)

    def tell(self, variables: Any, step: int) -> None:
        """Hand the variables after `step` steps to an iterator that draws its batches from them.

        That is one with a method `learned(variables, step)`, and with `stop()`, which ends its
        waiting.
        """
        learned = getattr(self._iterator, "learned", None)
        if learned is not None:
            learned(variables, step)

    def close(self, timeout: float = 10.0) -> None:
        """Stop the thread, then close the iterator where it can be closed.

        Args:
            timeout: seconds to wait for the batch being read.
        """
        self._stopped.set()
        waiting: Any = self._iterator
        if hasattr(waiting, "learned"):
            waiting.stop()
        while True:
            try:
                self._ready.get_nowait()
            except queue.Empty:
                break
        self._thread.join(timeout)
        close = getattr(self._iterator, "close", None)
        if close is not None and not self._thread.is_alive():
            close()

    def _read(self) -> None:
        try:
            for _ in range(self._limit):
                if self._stopped.is_set():
                    return
                batch = next(self._iterator)
                state = getattr(self._iterator, "get_state", None)
                position = state() if state is not None else None
                if not self._put(Fed(self._place(batch), _rows(batch), position)):
                    return
            self._put(_END)
        except StopIteration:
            self._put(_END)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Any) -> bool:
        while not self._stopped.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


def _rows(batch: Any) -> int:
    return max((np.shape(value)[0] for value in batch.values() if np.ndim(value)), default=0)

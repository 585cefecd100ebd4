"""The step, compiled ahead of the run, once for each shape of batch."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from dew.placement import Placement


@dataclass(frozen=True)
class StepMemory:
    """What XLA says the compiled step needs on a device, in bytes.

    Attributes:
        argument: state, frozen collections and batch.
        output: the state after and the report.
        temporary: activations and scratch.
        aliased: the part of the output that reuses the argument's place.
    """

    argument: int
    output: int
    temporary: int
    aliased: int

    @property
    def total(self) -> int:
        """The most that is held at one time."""
        return self.argument + self.output + self.temporary - self.aliased


class CompiledStep:
    """Runs a step function with its state donated; compiles apart, and counts that time.

    Args:
        function: `step(state, frozen, batch)`.
        placement: where the state lies.

    Attributes:
        seconds: spent compiling so far.
    """

    def __init__(self, function: Callable[..., Any], placement: Placement):
        self._function = placement.traced(function)
        self._placement = placement
        self._ready: dict[Any, Any] = {}
        self.seconds = 0.0

    def __call__(self, state: Any, frozen: Any, batch: Mapping[str, Any]) -> Any:
        """Run one microbatch; `state` is used up."""
        return self.ready(state, frozen, batch)(state, frozen, batch)

    def knows(self, batch: Mapping[str, Any]) -> bool:
        """Tell whether this shape of batch has been compiled."""
        return _signature(batch) in self._ready

    def ready(self, state: Any, frozen: Any, batch: Mapping[str, Any]) -> Any:
        """Return the executable for this shape of batch, compiled if it is a new one.

        Args:
            state: the state, or its shapes.
            frozen: the frozen collections, or their shapes.
            batch: the batch, or its shapes.
        """
        signature = _signature(batch)
        if signature not in self._ready:
            if self._ready:
                shapes = ", ".join(f"{name} {shape}" for name, shape, _ in signature)
                warnings.warn(
                    f"the step is compiled again, for a new batch shape: {shapes}. Equal shapes "
                    "for all batches avoid that.",
                    stacklevel=3,
                )
            started = time.perf_counter()
            # The state comes out where it went in, or the next call could not take it.
            places = (self._placement.shardings(state), self._placement.whole)
            jitted = jax.jit(self._function, donate_argnums=0, out_shardings=places)
            self._ready[signature] = _apart(lambda: jitted.lower(state, frozen, batch).compile())
            self.seconds += time.perf_counter() - started
        return self._ready[signature]


def memory_of(executable: Any) -> StepMemory:
    """Return what an executable needs, from XLA's own analysis."""
    analysis = executable.memory_analysis()
    return StepMemory(
        argument=analysis.argument_size_in_bytes,
        output=analysis.output_size_in_bytes,
        temporary=analysis.temp_size_in_bytes,
        aliased=analysis.alias_size_in_bytes,
    )


def _signature(batch: Mapping[str, Any]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple(sorted((name, tuple(x.shape), str(x.dtype)) for name, x in batch.items()))


def _apart(work: Callable[[], Any]) -> Any:
    """Run `work` on another thread, so that this one hears signals while XLA compiles."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, name="compile", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]

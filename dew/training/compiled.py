"""The step, compiled ahead of the run, once for each shape of batch."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from dew.objectives.base import Objective, Step
from dew.placement import Placement
from dew.telemetry.flops import traced_flops
from dew.training.state import TrainState, laid_over


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
        work: the FLOPs of one call, told from its arguments or their shapes.

    Attributes:
        seconds: spent compiling so far.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        placement: Placement,
        work: Callable[..., float] = lambda *_: 0.0,
    ):
        self._function = placement.traced(function)
        self._placement = placement
        self._work = work
        self._ready: dict[Any, Any] = {}
        self._flops: dict[Any, float] = {}
        self.seconds = 0.0

    def __call__(self, state: Any, frozen: Any, batch: Mapping[str, Any]) -> Any:
        """Run one microbatch; `state` is used up."""
        return self.ready(state, frozen, batch)(state, frozen, batch)

    def knows(self, batch: Mapping[str, Any]) -> bool:
        """Tell whether this shape of batch has been compiled."""
        return _signature(batch) in self._ready

    def flops(self, batch: Mapping[str, Any]) -> float:
        """Return the FLOPs of a step on a compiled shape of batch, over all devices."""
        return self._flops.get(_signature(batch), 0.0)

    def ready(
        self,
        state: Any,
        frozen: Any,
        batch: Mapping[str, Any],
        *,
        meant: bool = False,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> Any:
        """Return the executable for this shape of batch, compiled if it is a new one.

        Args:
            state: the state, or its shapes.
            frozen: the frozen collections, or their shapes.
            batch: the batch, or its shapes.
            meant: whether several shapes are expected, so that no warning names a new one.
            while_waiting: called ten times a second while it compiles; what it raises is raised,
                and what was begun is thrown away once it is done.
        """
        signature = _signature(batch)
        if signature not in self._ready:
            if self._ready and not meant:
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
            self._ready[signature], self._flops[signature] = _apart(
                lambda: (
                    jitted.lower(state, frozen, batch).compile(),
                    self._work(state, frozen, batch),
                ),
                while_waiting,
            )
            self.seconds += time.perf_counter() - started
        return self._ready[signature]


def forward_backward_flops(
    objective: Objective, state: TrainState, frozen: Mapping[str, Any], batch: Mapping[str, Any]
) -> float:
    """Return the FLOPs that a step's arithmetic takes, recomputation left out.

    Three times those of the loss, once forward and twice as much backward; an objective that
    knows better says so with a `step_flops(variables, batch)`.

    Args:
        objective: whose loss it is; traced, not run.
        state: the state, or its shapes.
        frozen: the frozen collections, or their shapes.
        batch: the batch, or its shapes.
    """
    variables = {**state.params, **frozen}
    own = getattr(objective, "step_flops", None)
    if own is not None:
        return float(own(variables, batch))

    def loss(variables: Any, ema: Any, key: Any, step: Any, batch: Any) -> Any:
        averaged = None if ema is None else laid_over(variables, ema)
        return objective.loss(variables, batch, Step(step, key, averaged))

    return 3.0 * traced_flops(loss, variables, state.ema, state.key, state.step, dict(batch))


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


def _apart(work: Callable[[], Any], while_waiting: Callable[[], None]) -> Any:
    """Run `work` on another thread, so that this one hears signals while XLA compiles."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:
            outcome["error"] = error

    # No daemon: a process that ended while XLA compiles would crash, and its status tell nothing.
    thread = threading.Thread(target=run, name="compile")
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        while_waiting()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]

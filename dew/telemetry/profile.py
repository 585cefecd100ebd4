"""`profile`: a capture of jax's profiler, by hand."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any


class Capture:
    """Traces what runs between `start` and `stop`, or in a `with` block, into `directory`.

    It may be used again; each use writes a folder of its own, `plugins/profile/<time>/`, that
    TensorBoard's profile page and Perfetto read. jax traces one capture at a time.

    Args:
        directory: where the trace goes; made with it.
        python_calls: whether every Python call is traced too, which slows them.
        perfetto: whether a file for ui.perfetto.dev is written beside.
    """

    def __init__(
        self, directory: str | Path, *, python_calls: bool = False, perfetto: bool = False
    ):
        self.directory = Path(directory)
        self.python_calls = python_calls
        self.perfetto = perfetto
        self.running = False

    def start(self) -> None:
        """Begin to trace.

        Raises:
            RuntimeError: this capture is under way, or another one is.
        """
        import jax

        if self.running:
            raise RuntimeError(f"the capture into {self.directory} is under way; stop it first")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = int(self.python_calls)
        jax.profiler.start_trace(
            str(self.directory), create_perfetto_trace=self.perfetto, profiler_options=options
        )
        self.running = True

    def stop(self) -> None:
        """End the trace and write it.

        Raises:
            RuntimeError: nothing is under way.
        """
        import jax

        if not self.running:
            raise RuntimeError(f"no capture into {self.directory} is under way; start it first")
        self.running = False
        jax.profiler.stop_trace()

    def __enter__(self) -> Capture:
        """Start, and return the capture."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop, without hiding an error of the block."""
        try:
            self.stop()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"stopping the profiler failed too: {failure}")


def profile(directory: str | Path, **options: Any) -> Capture:
    """Set up a capture of jax's profiler; it starts at `start()` or when a `with` block begins.

    Example: `with dew.profile("trace"): step(state).block_until_ready()`. What is dispatched but
    not awaited in the block is cut off.

    Args:
        directory: where the trace goes.
        options: `python_calls` and `perfetto`, both False, as `Capture` has them.
    """
    return Capture(directory, **options)

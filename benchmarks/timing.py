"""How benchmarks measure: a process a side, in turn; medians, peak memory, one table.

A side runs in a process of its own, as its users run it: beside the other library in one process
it would share that one's heap and lose its own freed pages while it waits. The sides take turns in
blocks, so that what slows the machine slows all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
GEMM_SIZE = 2048
ANSWER = "seconds:"


@dataclass(frozen=True)
class Pace:
    """How a side's turns go: runs that are not counted, timed runs, and timed runs in all."""

    warm: int = 2
    block: int = 5
    least: int = 0


@dataclass(frozen=True)
class Timing:
    """The seconds of one side's runs, and of its first run, which compiles."""

    first: float
    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median run, in seconds."""
        return statistics.median(self.runs)


@dataclass
class Row:
    """One line of a benchmark's table.

    Args:
        shape: which model.
        side: which library, and how it was run.
        timing: the seconds.
        work: floating-point operations, or bytes, of one run.
        memory: peak resident bytes of a process that does only this, or None.
        figures: anything else worth a column of the JSON.
    """

    shape: str
    side: str
    timing: Timing
    work: float
    memory: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def arguments(description: str) -> argparse.Namespace:
    """Return the options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=7, help="timed runs a side, in fives")
    parser.add_argument("--shape", action="append", help="only this shape (repeatable)")
    parser.add_argument("--side", action="append", help="only this side (repeatable)")
    parser.add_argument("--alone", nargs=2, metavar=("SHAPE", "SIDE"), help=argparse.SUPPRESS)
    return parser.parse_args()


def run_benchmark(
    script: str,
    shapes: Mapping[str, Any],
    sides: Mapping[str, Callable[[Any], Callable[[], Any]]],
    *,
    against: str,
    work: Callable[[str], float],
    description: str,
    pace: Mapping[str, Pace] | None = None,
    without: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Measure every side on every shape in one process, and print the table.

    Args:
        script: the benchmark's file, which child processes run for their peak memory.
        shapes: name to shape.
        sides: name to what makes a run, a function of a shape.
        against: the side that ratios are taken of.
        work: FLOPs of one run on the shape of a name.
        description: of the command line's help.
        pace: of the shapes whose runs are not of the usual length, by their names.
        without: the sides that say nothing on a shape, by its name.
    """
    options = arguments(description)
    if options.alone:
        shape, side = options.alone
        _serve(sides[side](shapes[shape]))
        return
    rows = []
    for name in options.shape or shapes:
        left_out, own = (without or {}).get(name, ()), (pace or {}).get(name, Pace())
        chosen = [side for side in options.side or sides if side not in left_out]
        processes = {side: _Side(script, name, side) for side in chosen}
        repeats = own.least or options.repeats
        for _ in range(-(-repeats // own.block)):
            for process in processes.values():
                process.block(own)
        for side, process in processes.items():
            rows.append(Row(name, side, process.timing, work(name), process.finish()))
    report(Path(script).stem, rows, against=against, peak=gemm_peak())


class _Side:
    """A process that runs one side of a benchmark when told to."""

    def __init__(self, script: str, shape: str, side: str) -> None:
        command = [sys.executable, script, "--alone", shape, side]
        self._process = subprocess.Popen(
            command,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._first = self._ask(1)[0]
        self._seconds: list[float] = []

    def block(self, pace: Pace) -> None:
        """Time a block of runs after some that are not counted: a wait cools its memory."""
        self._seconds.extend(self._ask(pace.warm + pace.block)[pace.warm :])

    @property
    def timing(self) -> Timing:
        """What was measured so far."""
        return Timing(self._first, tuple(self._seconds))

    def finish(self) -> int:
        """End the process, and return its peak resident memory in bytes."""
        peak = int(self._ask(0)[0])
        self._process.wait()
        return peak

    def _ask(self, runs: int) -> list[float]:
        sent, answers = self._process.stdin, self._process.stdout
        if sent is None or answers is None:
            raise RuntimeError("the process has no pipes")
        print(runs, file=sent, flush=True)
        for line in answers:
            if line.startswith(ANSWER):
                return [float(word) for word in line.removeprefix(ANSWER).split()]
        raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")


def _serve(run: Callable[[], Any]) -> None:
    """Answer each number on stdin with the seconds of so many runs, and 0 with the peak memory."""
    for line in sys.stdin:
        count = int(line)
        answer = [_seconds(run) for _ in range(count)] if count else [own_peak()]
        print(ANSWER, *answer, flush=True)
        if not count:
            return


def clean_environment() -> dict[str, str]:
    """Return the environment for a child, without what this process's libraries left in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}


def own_peak() -> int:
    """Return this process's peak resident memory in bytes.

    getrusage would not do: its peak starts at that of the parent this process was forked from.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def gemm_peak() -> float:
    """Return this machine's float32 FLOP/s in a square matrix product, the best of ten."""
    import jax
    import jax.numpy as jnp

    square = jnp.ones((GEMM_SIZE, GEMM_SIZE), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(square).block_until_ready()
    best = min(_seconds(lambda: product(square).block_until_ready()) for _ in range(10))
    return 2 * GEMM_SIZE**3 / best


def report(name: str, rows: list[Row], *, against: str, peak: float | None) -> None:
    """Print the table and write `benchmarks/results/<name>.json`.

    Args:
        name: of the benchmark.
        rows: its lines.
        against: the side that ratios are taken of: its seconds over the row's.
        peak: FLOP/s of the machine's matrix product, or None where work is not in FLOPs.
    """
    base = {row.shape: row.timing.median for row in rows if row.side == against}
    heading = f"{'shape':<22}{'side':<26}{'median s':>10}{'ratio':>8}{'first s':>9}"
    print(heading + f"{'of peak':>9}{'peak MiB':>10}")
    records = []
    for row in rows:
        ratio = base[row.shape] / row.timing.median if row.shape in base else None
        share = row.work / row.timing.median / peak if peak else None
        print(
            f"{row.shape:<22}{row.side:<26}{row.timing.median:>10.4f}"
            f"{_shown(ratio, '{:.2f}x'):>8}{row.timing.first:>9.2f}{_shown(share, '{:.0%}'):>9}"
            f"{_shown(row.memory and row.memory / 2**20, '{:.0f}'):>10}"
        )
        records.append({**asdict(row), "median": row.timing.median, "ratio": ratio, "share": share})
    RESULTS.mkdir(exist_ok=True)
    document = {"benchmark": name, "machine": machine(), "gemm_flops": peak, "rows": records}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Return what the numbers depend on: processor, cores, versions."""
    from importlib.metadata import version

    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    packages = ("jax", "jaxlib", "flax", "optax", "torch", "transformers", "numpy")
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)

"""How benchmarks measure: interleaved runs, medians, peak memory by child process, one table."""

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
    parser.add_argument("--repeats", type=int, default=7, help="timed runs a side")
    parser.add_argument("--shape", action="append", help="only this shape (repeatable)")
    parser.add_argument("--side", action="append", help="only this side (repeatable)")
    parser.add_argument("--no-memory", action="store_true", help="skip the child processes")
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
) -> None:
    """Measure every side on every shape in one process, and print the table.

    Args:
        script: the benchmark's file, which child processes run for their peak memory.
        shapes: name to shape.
        sides: name to what makes a run, a function of a shape.
        against: the side that ratios are taken of.
        work: FLOPs of one run on the shape of a name.
        description: of the command line's help.
    """
    options = arguments(description)
    if options.alone:
        shape, side = options.alone
        run = sides[side](shapes[shape])
        for _ in range(3):
            run()
        print(own_peak())
        return
    rows = []
    for name in options.shape or shapes:
        memory = {
            side: None if options.no_memory else peak_bytes(script, name, side)
            for side in options.side or sides
        }
        runs = {side: sides[side](shapes[name]) for side in options.side or sides}
        for side, timing in interleaved(runs, options.repeats).items():
            rows.append(Row(name, side, timing, work(name), memory[side]))
    report(Path(script).stem, rows, against=against, peak=gemm_peak())


def interleaved(sides: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Timing]:
    """Time the sides in turn, so that what slows the machine slows all of them.

    Args:
        sides: name to a function that returns when its work is done.
        repeats: timed runs a side, after two that are not counted.
    """
    first = {name: _seconds(run) for name, run in sides.items()}
    for run in sides.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            seconds[name].append(_seconds(run))
    return {name: Timing(first[name], tuple(seconds[name])) for name in sides}


def peak_bytes(script: str, shape: str, side: str) -> int:
    """Return the peak resident memory of a child process that runs one side of `script` twice."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")
    }
    command = [sys.executable, script, "--alone", shape, side]
    child = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return int(child.stdout.split()[-1])


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

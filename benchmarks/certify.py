"""What does a certificate cost? Seconds and peak memory of `python -m parity run --model`.

Every run is the whole command, imports included, with no answer of torch kept from before. Memory
is that of all its processes together, shared pages counted once, looked at five times a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from timing import Row, Timing, arguments, clean_environment, report

SIDE = "python -m parity"
TINY, SMOLLM2 = "tiny llama", "smollm2-135m"
LOOK = 0.2
"""Seconds between two looks at the memory."""
PROVEN, NOT_PROVEN = 0, 1


def checkpoint(name: str, folder: Path) -> Path:
    """Return the checkpoint of a name, written into a folder where it is a random one."""
    if name == TINY:
        from parity import tiny

        return tiny.write("llama", folder, seed=0)
    from bridges.assets import fetch

    return fetch("smollm2")


def measured(path: Path, folder: Path) -> tuple[float, int, dict[str, Any]]:
    """Return the seconds and the peak bytes of one run, and what it said."""
    import psutil

    told = folder / "told.json"
    command = [sys.executable, "-m", "parity", "run", "--model", str(path), "--no-cache"]
    start, peak = time.perf_counter(), 0
    child = subprocess.Popen([*command, "--report", str(told)], env=clean_environment())
    watched = psutil.Process(child.pid)
    while child.poll() is None:
        peak = max(peak, _memory(watched))
        time.sleep(LOOK)
    seconds = time.perf_counter() - start
    if child.returncode not in (PROVEN, NOT_PROVEN):
        raise RuntimeError(f"parity left with status {child.returncode}")
    verdicts = json.loads(told.read_text())["verdicts"]
    said = {
        "checks": {verdict["name"]: round(verdict["seconds"], 2) for verdict in verdicts},
        "not_proven": [verdict["name"] for verdict in verdicts if not verdict["passed"]],
    }
    return seconds, peak, said


def _memory(process: Any) -> int:
    import psutil

    total = 0
    try:
        for part in (process, *process.children(recursive=True)):
            total += part.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return total
    return total


def main() -> None:
    """Certify each checkpoint, and print the table."""
    options = arguments(__doc__ or "")
    rows = []
    for name in options.shape or (TINY, SMOLLM2):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            path = checkpoint(name, folder)
            repeats = options.repeats if name == TINY else 1
            runs = [measured(path, folder) for _ in range(repeats)]
        timing = Timing(runs[0][0], tuple(seconds for seconds, _, _ in runs))
        peak = max(peak for _, peak, _ in runs)
        rows.append(Row(name, SIDE, timing, 0.0, peak, runs[-1][2]))
    report("certify", rows, against="", peak=None)


if __name__ == "__main__":
    main()

"""Does loading cost more than reading the files? Seconds and peak memory of `bridges.load`.

Every run is a process of its own, with the files in the page cache; memory is the peak above what
the process holds before it loads. The largest checkpoint is of 8 GB, in 16 shards.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shapes import SHAPES, Shape
from timing import Row, Timing, arguments, clean_environment, own_peak, report

READ = "read the file"
PIECE = 16 * 2**20
CHECKPOINTS = {**SHAPES, "llama-2b": Shape(49152, 2048, 5632, 42, 32, 8, 2048, 10000.0)}
LARGEST_SHARD = "535MB"
"""What splits 8 GB into 16."""


def weights(folder: Path) -> list[Path]:
    """Return the files that hold the weights."""
    return sorted(folder.glob("*.safetensors"))


def read_file(folder: Path) -> Any:
    """Return the files' bytes in fresh memory."""
    return [_bytes_of(path) for path in weights(folder)]


def _bytes_of(path: Path) -> bytearray:
    held = bytearray(path.stat().st_size)
    with path.open("rb", buffering=0) as file:
        view, at = memoryview(held), 0
        while count := file.readinto(view[at : at + PIECE]):
            at += count
    return held


def dew(folder: Path) -> Any:
    """Return the bundle, its parameters on the device."""
    import jax

    import bridges

    bundle = bridges.load(folder)
    jax.block_until_ready(bundle.variables)
    return bundle


def transformers(folder: Path) -> Any:
    """Return transformers' model."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def prepare(side: str) -> None:
    """Import what the side needs, and start its backend, so that neither is timed."""
    if side == "dew":
        import jax

        import bridges.families.llama
        import bridges.loading
        import bridges.text.processors  # noqa: F401

        jax.block_until_ready(jax.numpy.zeros(1))
    elif side == "transformers":
        import torch  # noqa: F401
        from transformers import LlamaForCausalLM  # noqa: F401


SIDES = {"dew": dew, READ: read_file, "transformers": transformers}


def alone(folder: str, side: str) -> None:
    """Load once, and print the seconds and the bytes above the baseline."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        prepare(side)
        before, start = own_peak(), time.perf_counter()
        held = SIDES[side](Path(folder))
        seconds = time.perf_counter() - start
    print(seconds, own_peak() - before, type(held).__name__)


def write(shape: Shape, folder: Path) -> None:
    """Write a random float32 checkpoint of a shape."""
    from shapes import torch_model

    torch_model(shape).save_pretrained(folder, max_shard_size=LARGEST_SHARD)


def measured(folder: Path, side: str) -> tuple[float, int]:
    """Return seconds and bytes of one load in a child process."""
    command = [sys.executable, __file__, "--alone", str(folder), side]
    child = subprocess.run(
        command, env=clean_environment(), check=True, capture_output=True, text=True
    )
    seconds, peak, _ = child.stdout.splitlines()[-1].split()
    return float(seconds), int(peak)


def main() -> None:
    """Measure every shape and side, and print the table."""
    options = arguments(__doc__ or "")
    if options.alone:
        alone(*options.alone)
        return
    rows = []
    for name in options.shape or CHECKPOINTS:
        sides = list(options.side or SIDES)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write(CHECKPOINTS[name], folder)
            files = len(weights(folder))
            size = sum(path.stat().st_size for path in weights(folder))
            first = {side: measured(folder, side)[0] for side in sides}
            found: dict[str, list[tuple[float, int]]] = {side: [] for side in sides}
            for _ in range(options.repeats):
                for side in sides:
                    found[side].append(measured(folder, side))
        for side in sides:
            timing = Timing(first[side], tuple(seconds for seconds, _ in found[side]))
            peak = max(peak for _, peak in found[side])
            figures = {
                "memory_over_parameters": peak / (4 * CHECKPOINTS[name].parameters),
                "files": files,
            }
            rows.append(Row(name, side, timing, size, peak, figures))
            print(f"{name} {side}: peak above baseline {figures['memory_over_parameters']:.2f} x")
    report("load_safetensors", rows, against=READ, peak=None)


if __name__ == "__main__":
    main()

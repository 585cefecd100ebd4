"""Does a run of `dew finetune` take the memory that `--dry-run` states before a weight is read?

Each run is a process of its own. It stands against the statement twice: as a whole, and less what
the process holds once everything is imported, which is most of a small run.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from finetune_shapes import RUNS

SHAPES = ("llama-5m", "SmolLM2 LoRA", "MiniLM classes", "MobileNetV2 images", "T5")
RESULTS = Path(__file__).with_name("results") / "dry_run.json"
BOUND = 0.15
STEPS = 4
GIB = 2**30
LINE = re.compile(r"^  ([a-z ]+?) +([0-9.]+) GiB$", re.MULTILINE)


def peak() -> int:
    """Return the most bytes that this process has held, as Linux tells them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def run_here(words: list[str]) -> None:
    """Run `dew finetune` in this process and print its peaks as the last line."""
    import jax
    import jax.numpy as jnp

    import dew.training.trainer
    from bridges.finetune.fitting import resident_bytes
    from dew.cli.main import main

    jax.jit(jnp.sum)(jnp.ones(8)).block_until_ready()
    found = {"imported": resident_bytes()}
    fit = dew.training.trainer.Trainer.fit

    def watched(*arguments: Any, **options: Any) -> Any:
        found["before"] = peak()
        state = fit(*arguments, **options)
        found["trained"] = peak()
        return state

    dew.training.trainer.Trainer.fit = watched
    status = main(["finetune", *words])
    print(json.dumps({**found, "peak": peak()}))
    sys.exit(status)


def measured(name: str) -> dict[str, float]:
    """Return what is stated for a run and what it takes, in bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        words = [str(word) for word in RUNS[name](folder)]
        words += ["--max_steps", str(STEPS), "--output_dir", str(folder / "out")]
        words += ["--no_certify", "--report_samples", "0", "--quiet"]
        here = [sys.executable, __file__, "--words", *words]
        dry = [sys.executable, "-m", "dew.cli.main", "finetune", *words, "--dry_run"]
        told = subprocess.run(dry, check=True, capture_output=True, text=True).stdout
        stated = {part: float(size) * GIB for part, size in LINE.findall(told)}
        out = subprocess.run(here, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(out.splitlines()[-1])
    return {
        "stated": stated["in all"],
        "stated for the run": stated["in all"] - stated["the process itself"],
        **found,
    }


def main() -> int:
    """Print a table; fail where a statement is not within the bound of the peak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", action="append", choices=RUNS, help="only this one (repeatable)")
    parser.add_argument("--words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.words:
        run_here(asked.words)
    print(f"{'':<18}  GiB stated  when imported  before  trained  in all  ratio  of the run alone")
    results, failed = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}, False
    for name in asked.shape or SHAPES:
        found = measured(name)
        ratio = found["stated"] / found["peak"]
        alone = found["stated for the run"] / (found["peak"] - found["imported"])
        failed |= abs(ratio - 1) > BOUND
        results[name] = {
            **found,
            "ratio": round(ratio, 3),
            "ratio of the run alone": round(alone, 3),
        }
        parts = [("stated", 10), ("imported", 13), ("before", 6), ("trained", 7), ("peak", 6)]
        sizes = "  ".join(f"{found[part] / GIB:{width}.3f}" for part, width in parts)
        print(f"{name:<18}  {sizes}  {ratio:5.3f}  {alone:16.3f}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

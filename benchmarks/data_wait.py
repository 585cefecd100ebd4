"""Does the data keep up with the steps of `dew finetune`?

The loop says for each interval of its log what share of it passed in waiting for a batch. The
first interval is left out: it holds the first batch, which nothing can have made ready.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from finetune_shapes import RUNS

SHAPES = ("SmolLM2", "SmolLM2 LoRA", "MiniLM classes")
RESULTS = Path(__file__).with_name("results") / "data_wait.json"
BOUND = 0.02
INTERVAL, INTERVALS = 5, 6


def measured(name: str) -> dict[str, float]:
    """Return the median and largest share of an interval, and the seconds of a step."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        words = [*RUNS[name](folder), "--output_dir", folder / "out", "--save_strategy", "no"]
        words += ["--max_steps", INTERVAL * INTERVALS, "--logging_steps", INTERVAL]
        words += ["--no_certify", "--report_samples", 0, "--quiet"]
        command = [sys.executable, "-m", "dew.cli.main", "finetune", *words]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        lines = (folder / "out" / "log.jsonl").read_text().splitlines()
    intervals = [record for record in map(json.loads, lines) if "loss" in record][1:]
    shares = [record["data_wait_share"] for record in intervals]
    return {
        "median share": statistics.median(shares),
        "largest share": max(shares),
        "step seconds": statistics.median(record["step_seconds"] for record in intervals),
    }


def main() -> int:
    """Print a table; fail where a median is not within the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", action="append", choices=RUNS, help="only this one (repeatable)")
    asked = parser.parse_args().shape
    print("shape               step s  waited, median  largest")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked or SHAPES:
        results[name] = found = measured(name)
        shares = f"{found['median share']:13.2%}  {found['largest share']:7.2%}"
        print(f"{name:<18}  {found['step seconds']:6.3f}  {shares}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(found["median share"] > BOUND for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())

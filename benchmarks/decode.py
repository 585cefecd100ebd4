"""Is dew's greedy decoding faster than transformers', and how near is it to memory's speed?

64 tokens after 16, batches of 1 and 8, with the model's own weights and with narrow ones.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from shapes import SHAPES, Shape, dew_bundle, tokens, torch_model
from timing import RESULTS, run_benchmark

PROMPT, NEW = 16, 64
EAGER = "transformers eager"
WIDTHS = {"dew": 4, "dew bfloat16": 2, "dew int8": 1, EAGER: 4}
"""Bytes of a weight on each side."""
COPIED = 1 << 28


@dataclass(frozen=True)
class Task:
    """A model's shape and how many prompts are continued at a time."""

    shape: Shape
    batch: int

    @property
    def flops(self) -> float:
        """FLOPs of the weights' products for every token."""
        return 2.0 * self.shape.parameters * self.batch * (PROMPT + NEW)


TASKS = {
    f"{name} x {batch}": Task(shape, batch) for name, shape in SHAPES.items() for batch in (1, 8)
}


def torch_eager(task: Task) -> Callable[[], Any]:
    """Return transformers' `generate` without sampling."""
    import torch

    model = torch_model(task.shape).eval()
    ids = torch.tensor(tokens(task.shape, task.batch, PROMPT)).long()
    mask = torch.ones_like(ids)

    def run() -> Any:
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
        if out.shape[1] != PROMPT + NEW:
            raise RuntimeError(f"transformers stopped after {out.shape[1] - PROMPT} tokens")
        return out

    return run


def dew(task: Task, weights: str | None = None) -> Callable[[], Any]:
    """Return the bundle's `generate`, from ids to ids."""
    bundle, ids = dew_bundle(task.shape), tokens(task.shape, task.batch, PROMPT)

    def run() -> Any:
        out = bundle.generate(ids, max_new_tokens=NEW, do_sample=False, weights=weights)
        if out.shape[1] != PROMPT + NEW:
            raise RuntimeError(f"dew stopped after {out.shape[1] - PROMPT} tokens")
        return out

    return run


SIDES = {
    "dew": dew,
    "dew bfloat16": partial(dew, weights="bfloat16"),
    "dew int8": partial(dew, weights="int8"),
    EAGER: torch_eager,
}


def copy_bandwidth() -> float:
    """Return bytes a second that NumPy reads and writes in a copy, the median of seven."""
    source = np.ones(COPIED // 4, np.float32)
    target = np.empty_like(source)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return 2 * source.nbytes / float(np.median(seconds))


def tell_bound(bandwidth: float) -> None:
    """Print each row's share of the memory bound, and keep it with the results.

    The bound is the time in which memory moves the weights once a step.

    Args:
        bandwidth: bytes a second.
    """
    path = RESULTS / f"{Path(__file__).stem}.json"
    document = json.loads(path.read_text())
    print(f"\ncopying {bandwidth / 1e9:.1f} GB/s")
    for row in document["rows"]:
        task = TASKS[row["shape"]]
        bound = WIDTHS[row["side"]] * task.shape.parameters * NEW / bandwidth
        row["figures"] = {
            "tokens_per_second": task.batch * NEW / row["median"],
            "of_memory_bound": bound / row["median"],
        }
        speed, share = row["figures"].values()
        print(
            f"{row['shape']:<22}{row['side']:<26}{speed:>8.0f} tokens/s{share:>6.0%} of the bound"
        )
    document["copy_bandwidth"] = bandwidth
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Measure every task and side, and print the tables."""
    alone = "--alone" in sys.argv
    bandwidth = 0.0 if alone else copy_bandwidth()
    run_benchmark(
        __file__,
        TASKS,
        SIDES,
        against=EAGER,
        work=lambda name: TASKS[name].flops,
        description=__doc__ or "",
    )
    if not alone:
        tell_bound(bandwidth)


if __name__ == "__main__":
    main()

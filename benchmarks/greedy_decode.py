"""Is dew's greedy decoding faster than transformers'? 64 tokens after 16, batches of 1 and 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shapes import SHAPES, Shape, dew_bundle, tokens, torch_model
from timing import run_benchmark

PROMPT, NEW = 16, 64
EAGER = "transformers eager"


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
    f"{name} x {batch}": Task(shape, batch) for name, shape in SHAPES.items() for batch in (1, 4)
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


def dew(task: Task) -> Callable[[], Any]:
    """Return the bundle's `generate`, from ids to ids."""
    bundle, ids = dew_bundle(task.shape), tokens(task.shape, task.batch, PROMPT)

    def run() -> Any:
        out = bundle.generate(ids, max_new_tokens=NEW, do_sample=False)
        if out.shape[1] != PROMPT + NEW:
            raise RuntimeError(f"dew stopped after {out.shape[1] - PROMPT} tokens")
        return out

    return run


SIDES = {"dew": dew, EAGER: torch_eager}


def main() -> None:
    """Measure every task and side, and print the table."""
    run_benchmark(
        __file__,
        TASKS,
        SIDES,
        against=EAGER,
        work=lambda name: TASKS[name].flops,
        description=__doc__ or "",
    )


if __name__ == "__main__":
    main()

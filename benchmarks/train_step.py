"""Is dew's train step faster than transformers'? Four rows of 128 tokens, AdamW, float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes import SHAPES, Shape, dew_model, tokens, torch_model
from timing import run_benchmark

BATCH, LENGTH = 4, 128
RATE, DECAY = 1e-4, 1e-2
EAGER = "transformers eager"


def torch_eager(shape: Shape) -> Callable[[], Any]:
    """Return one step of transformers' model under torch.optim.AdamW."""
    return _torch_step(shape, torch_model(shape).train())


def torch_compiled(shape: Shape) -> Callable[[], Any]:
    """Return the same step with the model under torch.compile."""
    import torch

    return _torch_step(shape, torch.compile(torch_model(shape).train()))


def _torch_step(shape: Shape, model: Any) -> Callable[[], Any]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    ids = torch.tensor(tokens(shape, BATCH, LENGTH + 1)).long()

    def step() -> float:
        # As a causal loss on one token more would: both sides predict LENGTH targets a row.
        optimizer.zero_grad(set_to_none=True)
        scores = model(input_ids=ids[:, :-1], use_cache=False).logits
        flat = scores.reshape(-1, scores.shape[-1])
        loss = torch.nn.functional.cross_entropy(flat, ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def dew(shape: Shape) -> Callable[[], Any]:
    """Return one step as `Trainer` runs it: jitted, its state donated, checked for finiteness."""
    import jax

    from dew.objectives.lm import LMObjective
    from dew.training.adam import adamw
    from dew.training.state import first_state
    from dew.training.step import microstep

    model, variables = dew_model(shape)
    objective = LMObjective(model, LENGTH)
    optimizer = adamw(RATE, weight_decay=DECAY)
    batch = {"text": tokens(shape, BATCH, LENGTH + 1)}
    step = jax.jit(microstep(objective, optimizer, accumulation=1), donate_argnums=0)

    @jax.jit
    def start(variables: Any) -> Any:
        return first_state(variables, optimizer, key=jax.random.key(0), ema=None, accumulation=1)

    held = [start(variables)]
    del variables

    def run() -> float:
        held[0], report = step(held[0], {}, batch)
        return float(report["total"])

    return run


SIDES = {"dew": dew, EAGER: torch_eager, "transformers compiled": torch_compiled}


def main() -> None:
    """Measure every shape and side, and print the table."""
    run_benchmark(
        __file__,
        SHAPES,
        SIDES,
        against=EAGER,
        work=lambda name: 3 * SHAPES[name].forward_flops(BATCH, LENGTH),
        description=__doc__ or "",
    )


if __name__ == "__main__":
    main()

"""Is dew's train step faster than transformers'? Four rows of 128 tokens, AdamW, float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes import SHAPES, Shape, dew_model, tokens, torch_model
from timing import Row, arguments, gemm_peak, interleaved, peak_bytes, print_own_peak, report

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
    """Return one donated, jitted step of dew's objective under optax.adamw."""
    import jax
    import numpy as np
    import optax

    from dew.objectives.base import Step
    from dew.objectives.lm import LMObjective

    model, variables = dew_model(shape)
    objective = LMObjective(model, LENGTH)
    optimizer = optax.adamw(RATE, weight_decay=DECAY)
    batch = {"text": tokens(shape, BATCH, LENGTH + 1)}

    def step(params: Any, state: Any, batch: Any) -> Any:
        def mean(params: Any) -> Any:
            now = Step(step=np.int32(0), key=jax.random.key(0), ema=None)
            return objective.loss({"params": params}, batch, now).value

        loss, gradients = jax.value_and_grad(mean)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    compiled = jax.jit(step, donate_argnums=(0, 1))
    held = [variables["params"], optimizer.init(variables["params"])]

    def run() -> float:
        *held[:], loss = compiled(*held, batch)
        return float(loss)

    return run


SIDES = {"dew": dew, EAGER: torch_eager, "transformers compiled": torch_compiled}


def main() -> None:
    """Measure every shape and side, and print the table."""
    options = arguments(__doc__ or "")
    if options.alone:
        shape, side = options.alone
        run = SIDES[side](SHAPES[shape])
        for _ in range(3):
            run()
        print_own_peak()
        return
    rows = []
    for name in options.shape or SHAPES:
        sides = {side: SIDES[side](SHAPES[name]) for side in options.side or SIDES}
        work = 3 * SHAPES[name].forward_flops(BATCH, LENGTH)
        for side, timing in interleaved(sides, options.repeats).items():
            memory = None if options.no_memory else peak_bytes(__file__, name, side)
            rows.append(Row(name, side, timing, work, memory))
    report("train_step", rows, against=EAGER, peak=gemm_peak())


if __name__ == "__main__":
    main()

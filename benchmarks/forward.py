"""Is dew's forward pass faster than transformers'? Four rows of 128 tokens, all logits, float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes import SHAPES, Shape, dew_bundle, tokens, torch_model
from timing import run_benchmark

BATCH, LENGTH = 4, 128
EAGER = "transformers eager"


def torch_eager(shape: Shape) -> Callable[[], Any]:
    """Return a forward pass of transformers' model."""
    return _torch_forward(shape, torch_model(shape).eval())


def torch_compiled(shape: Shape) -> Callable[[], Any]:
    """Return the same pass under torch.compile."""
    import torch

    return _torch_forward(shape, torch.compile(torch_model(shape).eval()))


def _torch_forward(shape: Shape, model: Any) -> Callable[[], Any]:
    import torch

    ids = torch.tensor(tokens(shape, BATCH, LENGTH)).long()

    def run() -> Any:
        with torch.inference_mode():
            return model(input_ids=ids, use_cache=False).logits

    return run


def dew(shape: Shape) -> Callable[[], Any]:
    """Return a call of dew's bundle."""
    import jax

    bundle, ids = dew_bundle(shape), tokens(shape, BATCH, LENGTH)
    return lambda: jax.block_until_ready(bundle(input_ids=ids)["logits"])


SIDES = {"dew": dew, EAGER: torch_eager, "transformers compiled": torch_compiled}


def main() -> None:
    """Measure every shape and side, and print the table."""
    run_benchmark(
        __file__,
        SHAPES,
        SIDES,
        against=EAGER,
        work=lambda name: SHAPES[name].forward_flops(BATCH, LENGTH),
        description=__doc__ or "",
    )


if __name__ == "__main__":
    main()

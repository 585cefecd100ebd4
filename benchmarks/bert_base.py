"""Is BERT-base faster than torch's own, native and traced? How soon does a second start answer?

Eight rows of 128 tokens, float32: the forward pass, and a step of AdamW on a classifier. Then a
checkpoint of that shape is loaded, to be traced, and called by two new processes, one after the
other: the first exports and compiles, the second reads what the first kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from timing import run_benchmark

BATCH, LENGTH, WIDTH, LAYERS = 8, 128, 768, 12
TORCH = "torch eager"
RATE = 1e-5
AT_MOST = 1 / 3
_PRODUCTS = 2 * BATCH * LENGTH * 12 * WIDTH * WIDTH * LAYERS
_ATTENTION = 2 * 2 * BATCH * LENGTH * LENGTH * WIDTH * LAYERS
FORWARD_FLOPS = _PRODUCTS + _ATTENTION

START = """
import sys, time
import numpy as np
import jax
from bridges import load
bundle = load(sys.argv[1], traced="always")
ids = np.random.default_rng(0).integers(0, 30000, (8, 128))
jax.block_until_ready(bundle(input_ids=ids))
print("torch" in sys.modules)
"""


def torch_classifier() -> Any:
    """Return transformers' BERT-base for two classes, without dropout."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForSequenceClassification(config)


def batch() -> tuple[np.ndarray, np.ndarray]:
    """Return ids int64 [BATCH, LENGTH] and labels [BATCH]."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 30000, (BATCH, LENGTH)), generator.integers(0, 2, BATCH)


def torch_side(what: str) -> Callable[[], Any]:
    """Return a run of transformers' model, eager."""
    import torch

    model = torch_classifier()
    ids, labels = map(torch.tensor, batch())
    if what == "forward":
        model.eval()

        def forward() -> Any:
            with torch.inference_mode():
                return model(input_ids=ids).logits

        return forward
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(input_ids=ids).logits, labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def traced_side(what: str) -> Callable[[], Any]:
    """Return the same of the model traced to JAX."""
    from bridges import from_torch

    torch_model = torch_classifier()
    torch_model.set_attn_implementation("eager")
    ids, _ = batch()
    traced = from_torch(torch_model.eval(), {"input_ids": ids}, dynamic=False)
    return _jax_run(what, traced)


def native_side(what: str) -> Callable[[], Any]:
    """Return the same of dew's own BERT, with the same weights."""
    import bridges

    with tempfile.TemporaryDirectory() as folder:
        torch_classifier().save_pretrained(folder)
        return _jax_run(what, bridges.load(folder, traced="never"))


def _jax_run(what: str, model: Any) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp
    import optax

    from dew.training.adam import adamw

    ids, labels = batch()
    if what == "forward":
        return lambda: jax.block_until_ready(model(input_ids=ids)["logits"])
    optimizer = adamw(RATE, weight_decay=1e-2)

    def loss(params: Any) -> Any:
        variables = {**model.variables, "params": params}
        logits = model.apply(variables, input_ids=jnp.asarray(ids))["logits"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def update(params: Any, state: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    step = jax.jit(update, donate_argnums=(0, 1))
    params = jax.tree.map(jnp.copy, model.variables["params"])
    held = [params, jax.jit(optimizer.init)(params)]

    def run() -> float:
        *held[:], value = step(*held)
        return float(value)

    return run


def starts() -> tuple[float, float]:
    """Return the seconds to the first output of a first and of a second start."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bert"
        torch_classifier().save_pretrained(model)
        env = {**os.environ, "DEW_CACHE": str(Path(folder) / "cache"), "JAX_PLATFORMS": "cpu"}
        return _start(model, env), _start(model, env)


def _start(model: Path, env: dict[str, str]) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-c", START, str(model)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    print(f"torch imported: {done.stdout.strip()}")
    return time.perf_counter() - began


SHAPES = {"bert-base forward": "forward", "bert-base train step": "step"}
SIDES = {"dew": native_side, "dew, traced": traced_side, TORCH: torch_side}


def main() -> None:
    """Measure every shape and side, print the table, and then the two starts."""
    run_benchmark(
        __file__,
        SHAPES,
        SIDES,
        against=TORCH,
        work=lambda name: FORWARD_FLOPS * (1 if "forward" in name else 3),
        description=__doc__ or "",
    )
    if "--alone" not in sys.argv:
        first, second = starts()
        print(f"first output: {first:.1f} s, at a second start {second:.1f} s", end=" ")
        print(f"({second / first:.2f} of it, <= {AT_MOST:.2f})")


if __name__ == "__main__":
    main()

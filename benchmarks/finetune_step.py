"""Are the steps of `dew finetune` faster than torch's: LoRA beside SmolLM2, MiniLM for classes?

LoRA: rank 16 on every linear map of the layers, four rows of 128 tokens; torch's side is peft's.
Classes: MiniLM's shape, sixteen rows of 64 tokens, two classes. AdamW in float32, without dropout.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from shapes import SHAPES as MODELS
from shapes import dew_model, tokens, torch_model
from timing import run_benchmark

EAGER = "torch eager"
LORA, CLASSES = "smollm2-135m LoRA", "MiniLM classes"
RATE, RANK = 1e-4, 16
ROWS, LENGTH = {LORA: 4, CLASSES: 16}, {LORA: 128, CLASSES: 64}
MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def work(name: str) -> float:
    """Return the FLOPs of a step: no gradient of frozen weights."""
    if name == LORA:
        return 2 * MODELS["smollm2-135m"].forward_flops(ROWS[name], LENGTH[name])
    layers, width = MINILM["num_hidden_layers"], MINILM["hidden_size"]
    places = ROWS[name] * LENGTH[name]
    return 3.0 * layers * (2 * places * 12 * width**2 + 4 * places * LENGTH[name] * width)


def classifier() -> Any:
    """Return transformers' BERT of MiniLM's shape, for two classes."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**MINILM))


def class_batch() -> dict[str, np.ndarray]:
    """Return ids, mask and labels."""
    draw = np.random.default_rng(0)
    shape = (ROWS[CLASSES], LENGTH[CLASSES])
    return {
        "input_ids": draw.integers(1000, 30000, shape).astype(np.int32),
        "attention_mask": np.ones(shape, np.int32),
        "labels": draw.integers(0, 2, shape[0]).astype(np.int32),
    }


def torch_side(name: str) -> Callable[[], Any]:
    """Return one step of torch's model under torch.optim.AdamW."""
    import torch

    if name == LORA:
        from peft import LoraConfig, get_peft_model

        settings = LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear")
        model: Any = get_peft_model(torch_model(MODELS["smollm2-135m"]).train(), settings)
        ids = torch.tensor(tokens(MODELS["smollm2-135m"], ROWS[name], LENGTH[name] + 1)).long()

        def loss() -> Any:
            scores = model(input_ids=ids[:, :-1], use_cache=False).logits
            flat = scores.reshape(-1, scores.shape[-1])
            return torch.nn.functional.cross_entropy(flat, ids[:, 1:].reshape(-1))
    else:
        model = classifier().train()
        batch = {key: torch.tensor(value).long() for key, value in class_batch().items()}

        def loss() -> Any:
            return model(**batch).loss

    learnt = [part for part in model.parameters() if part.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=RATE)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        found = loss()
        found.backward()
        optimizer.step()
        return float(found.detach())

    return step


def dew_side(name: str) -> Callable[[], Any]:
    """Return one step as `Trainer` runs it: jitted, its state donated, checked for finiteness."""
    import jax

    from dew.training.adam import adamw
    from dew.training.state import first_state
    from dew.training.step import microstep

    objective, variables, batch = _lora_side() if name == LORA else _class_side()
    optimizer = adamw(RATE, weight_decay=1e-2)
    begun = objective.init(jax.random.key(0), variables)
    frozen = {part: begun[part] for part in objective.frozen}
    learnt = {part: value for part, value in begun.items() if part not in frozen}
    step = jax.jit(microstep(objective, optimizer, accumulation=1), donate_argnums=0)
    state = first_state(learnt, optimizer, key=jax.random.key(0), ema=None, accumulation=1)
    held = [jax.tree.map(lambda leaf: leaf.copy(), state)]

    def run() -> float:
        held[0], report = step(held[0], frozen, batch)
        return float(report["total"])

    return run


def _lora_side() -> tuple[Any, Any, Any]:
    from dew.nn.lora import ADAPTED, LoRA
    from dew.objectives.lm import LoRAObjective

    model, variables = dew_model(MODELS["smollm2-135m"])
    lora = LoRA(rank=RANK, alpha=32.0, targets=tuple(ADAPTED))
    objective = LoRAObjective(model, LENGTH[LORA], lora)
    batch = {"text": tokens(MODELS["smollm2-135m"], ROWS[LORA], LENGTH[LORA] + 1)}
    return objective, variables, batch


def _class_side() -> tuple[Any, Any, Any]:
    import bridges
    from bridges.finetune.outputs_learner import outputs_learner
    from dew.objectives.criteria import ClassLoss

    with tempfile.TemporaryDirectory() as folder:
        classifier().save_pretrained(folder)
        bundle = bridges.load(folder, traced="never")
    objective = outputs_learner(bundle, ClassLoss()).objective(LENGTH[CLASSES])
    return objective, bundle.variables, class_batch()


def main() -> None:
    """Measure both sides of both steps, and print the table."""
    run_benchmark(
        __file__,
        {LORA: LORA, CLASSES: CLASSES},
        {"dew": dew_side, EAGER: torch_side},
        against=EAGER,
        work=work,
        description=__doc__ or "",
    )


if __name__ == "__main__":
    main()

"""The torch side of a loss curve: windows of microbatches under a recipe."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from parity.packing import Directed, Tokens
from parity.recipes import UPDATES, WARMUP, Recipe
from parity.reference import precision_of
from parity.reference_inside import live_names
from parity.reference_training import loss_and_mass


def loss_curve(
    model: Any,
    windows: Sequence[Sequence[Tokens | Directed]],
    recipe: Recipe,
    undecayed: Collection[str],
) -> list[float]:
    """Train a model in place, and return its loss before each update.

    A window's loss is the sum of its microbatches' over all that they count: microbatches of
    unequal lengths weigh as their tokens do.

    Args:
        model: from `Checkpoint.fresh_model`.
        windows: the microbatches of each update, in turn as often as there are updates.
        recipe: how.
        undecayed: the names, in the files, of the weights that do not decay.
    """
    import torch
    from transformers import get_scheduler

    optimizer = _optimizer(model, recipe, undecayed)
    scheduler = get_scheduler(
        recipe.schedule, optimizer, num_warmup_steps=WARMUP, num_training_steps=UPDATES
    )
    losses = []
    for update in range(UPDATES):
        optimizer.zero_grad(set_to_none=True)
        total, mass = 0.0, 0.0
        for batch in windows[update % len(windows)]:
            with precision_of(model):
                loss, counted = loss_and_mass(model, batch)
                loss.backward()
            total, mass = total + float(loss.detach()), mass + counted
        for tensor in model.parameters():
            if tensor.grad is not None:
                tensor.grad /= mass
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        scheduler.step()
        losses.append(total / mass)
    return losses


def _optimizer(model: Any, recipe: Recipe, undecayed: Collection[str]) -> Any:
    import torch
    from transformers.optimization import Adafactor

    stored = {live: name for name, live in live_names(model).items()}
    groups: dict[bool, list[Any]] = {True: [], False: []}
    for name, tensor in model.named_parameters():
        if tensor.requires_grad:
            groups[stored.get(name, name) not in undecayed].append(tensor)
    parts = [
        {"params": tensors, "weight_decay": recipe.weight_decay if decays else 0.0}
        for decays, tensors in groups.items()
        if tensors
    ]
    named: dict[str, Any] = dict(recipe.arguments)
    if recipe.name == "sgd":
        return torch.optim.SGD(parts, lr=recipe.learning_rate, foreach=False, **named)
    if recipe.name == "adafactor":
        still = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
        return Adafactor(parts, lr=recipe.learning_rate, **still, **named)
    return torch.optim.AdamW(parts, lr=recipe.learning_rate, foreach=False, **named)

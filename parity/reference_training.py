"""The torch side of the checks that train: losses, gradients and AdamW's steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parity.packing import Directed, Tokens
from parity.reference import AdamW, as_stored, forward, precision_of


def token_losses(model: Any, rows: Tokens) -> np.ndarray:
    """Return the loss in nats of each token given those before it, [N, L - 1]; 0 where not real."""
    import torch

    with torch.no_grad(), precision_of(model):
        return _token_losses(model, rows).cpu().numpy()


def loss_and_gradients(model: Any, batch: Tokens | Directed) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss of a batch and each parameter's gradient by name.

    Args:
        model: from `Checkpoint.model`.
        batch: tokens, for the mean loss per counted target in nats; or inputs with directions.
    """
    model.zero_grad(set_to_none=True)
    with precision_of(model):
        loss = _loss(model, batch)
        loss.backward()
    named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    gradients = as_stored(model, named)
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), gradients


def adamw_steps(
    model: Any, batches: Sequence[Tokens | Directed], settings: AdamW
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Take one AdamW step a batch, in place.

    Args:
        model: from `Checkpoint.fresh_model`; every parameter is trained and decayed.
        batches: as for `loss_and_gradients`.
        settings: the optimizer's numbers.

    Returns:
        The loss before each step, and by name the root mean square gradient of every value, as
        the optimizer's second moment weighs the steps.
    """
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        foreach=False,
    )
    losses = []
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        with precision_of(model):
            loss = _loss(model, batch)
            loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    weight = 1 - settings.beta2 ** len(batches)
    sizes = {
        name: (optimizer.state[tensor]["exp_avg_sq"] / weight).sqrt()
        for name, tensor in model.named_parameters()
        if tensor in optimizer.state
    }
    return losses, as_stored(model, sizes)


def _loss(model: Any, batch: Tokens | Directed) -> Any:
    import torch

    if isinstance(batch, Tokens):
        return _token_losses(model, batch).sum() / _counted(batch.attention_mask).sum()
    found = forward(model, batch.inputs)
    parts = [
        (found[name] * torch.tensor(way).to(found[name].dtype)).sum()
        for name, way in batch.ways.items()
    ]
    return torch.stack(parts).sum()


def _token_losses(model: Any, rows: Tokens) -> Any:
    import torch

    # The last token is a target only: its own position may not exist.
    given = {
        "input_ids": rows.input_ids[:, :-1],
        "attention_mask": rows.attention_mask[:, :-1],
    }
    scores = forward(model, given)["logits"]
    targets = torch.tensor(np.asarray(rows.input_ids, np.int64))[:, 1:]
    losses = torch.nn.functional.cross_entropy(
        scores.reshape(-1, scores.shape[-1]), targets.reshape(-1), reduction="none"
    ).reshape(targets.shape)
    return torch.where(_counted(rows.attention_mask), losses, torch.zeros_like(losses))


def _counted(attention_mask: np.ndarray) -> Any:
    """A target counts when it and the token before it are real."""
    import torch

    real = torch.tensor(np.asarray(attention_mask) != 0)
    return real[:, 1:] & real[:, :-1]

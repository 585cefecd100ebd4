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


def strided_loss(model: Any, tokens: np.ndarray, *, window: int, stride: int) -> float:
    """Return the mean loss in nats of a text in overlapping windows, by Hugging Face's recipe.

    Args:
        model: a causal language model of `Checkpoint.model`.
        tokens: ids [T].
        window: tokens of a window; those that an earlier window held get the label -100.
        stride: tokens between the beginnings of windows.

    Source: transformers' documentation, "Perplexity of fixed-length models".
    """
    import torch

    ids = torch.from_numpy(np.asarray(tokens, np.int64))[None]
    nats, counted, scored = 0.0, 0, 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + window, ids.shape[1])
        labels = ids[:, begin:end].clone()
        labels[:, : -(end - scored)] = -100
        scored = end
        # The model moves labels by one, so that the first of a window is no target.
        targets = int((labels[:, 1:] != -100).sum())
        with torch.no_grad(), precision_of(model):
            loss = model(input_ids=ids[:, begin:end], labels=labels).loss
        nats, counted = nats + float(loss) * targets, counted + targets
        if end == ids.shape[1]:
            break
    return nats / counted


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

    # A weight is stepped, and its gradient dropped, as soon as the backward pass has it: all
    # gradients at once would take as much room as the weights.
    optimizers = {
        tensor: torch.optim.AdamW(
            [tensor],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            foreach=False,
        )
        for tensor in model.parameters()
        if tensor.requires_grad
    }

    def stepped(tensor: Any) -> None:
        optimizers[tensor].step()
        tensor.grad = None

    hooks = [tensor.register_post_accumulate_grad_hook(stepped) for tensor in optimizers]
    losses = []
    for batch in batches:
        with precision_of(model):
            loss = _loss(model, batch)
            loss.backward()
        losses.append(float(loss.detach()))
    for hook in hooks:
        hook.remove()
    moments = {
        tensor: optimizer.state[tensor].pop("exp_avg_sq")
        for tensor, optimizer in optimizers.items()
        if optimizer.state
    }
    optimizers.clear()
    weight = 1 - settings.beta2 ** len(batches)
    sizes = {
        name: moments[tensor].div_(weight).sqrt_()
        for name, tensor in model.named_parameters()
        if tensor in moments
    }
    return losses, as_stored(model, sizes)


def loss_and_mass(model: Any, batch: Tokens | Directed) -> tuple[Any, float]:
    """Return the summed loss of a batch, to be called under `precision_of`, and what it counts.

    Args:
        model: from `Checkpoint.fresh_model`.
        batch: tokens, each of which counts; or inputs with directions, which count as one.
    """
    if isinstance(batch, Tokens):
        return _token_losses(model, batch).sum(), float(_counted(batch.attention_mask).sum())
    return _loss(model, batch), 1.0


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

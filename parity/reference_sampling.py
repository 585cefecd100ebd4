"""The torch side of drawn tokens: transformers' processed scores, and noise from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.reference import outputs


def sampled(
    model: Any,
    prompt: Mapping[str, np.ndarray],
    noise: np.ndarray,
    *,
    ends: Sequence[int],
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    max_new_tokens: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return int [N, P + T] and the margin of each drawn token, float [N, T].

    Args:
        model: from `Checkpoint.model`.
        prompt: `input_ids` and `attention_mask` [N, P].
        noise: [N, T, candidates], added to the scores before the largest is taken; of top-k, to
            those of the k candidates in the order of their ids.
        ends: ids that are not drawn.
        temperature, top_k, top_p: as of `generate`; 0 and 1 switch the last two off.
        max_new_tokens: T.
        seed: what the noise was drawn from, not read here.
    """
    del seed
    ids, mask = prompt["input_ids"], prompt["attention_mask"]
    margins = []
    for step in range(max_new_tokens):
        found = outputs(model, {"input_ids": ids, "attention_mask": mask})["logits"][:, -1]
        scores = _processed(ids, found, ends, temperature, top_k, top_p)
        tokens, margin = _drawn(scores, noise[:, step])
        margins.append(margin)
        ids = np.concatenate([ids, tokens[:, None].astype(ids.dtype)], axis=1)
        mask = np.concatenate([mask, np.ones_like(mask[:, :1])], axis=1)
    return ids, np.stack(margins, axis=1)


def _processed(
    ids: np.ndarray,
    logits: np.ndarray,
    ends: Sequence[int],
    temperature: float,
    top_k: int,
    top_p: float,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the scores after transformers' processors, and which ids top-k left."""
    import torch
    from transformers.generation.logits_process import (
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    given: Any = torch.tensor(np.asarray(ids, np.int64))
    scores: Any = torch.tensor(logits)
    scores[:, list(ends)] = float("-inf")
    scores = TemperatureLogitsWarper(temperature)(given, scores)
    kept = None
    if top_k:
        scores = TopKLogitsWarper(top_k)(given, scores)
        kept = np.isfinite(scores.numpy())
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(given, scores)
    return scores.numpy(), kept


def _drawn(
    scored: tuple[np.ndarray, np.ndarray | None], noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    scores, kept = scored
    tokens, margins = [], []
    for row, (values, drawn) in enumerate(zip(scores, noise, strict=True)):
        among = np.arange(len(values)) if kept is None else np.flatnonzero(kept[row])
        sums = values[among] + drawn[: len(among)]
        best = np.argsort(sums)[::-1]
        tokens.append(int(among[best[0]]))
        margins.append(float(sums[best[0]] - sums[best[1]]) if len(best) > 1 else np.inf)
    return np.asarray(tokens), np.asarray(margins)

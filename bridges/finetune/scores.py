"""Held-out scores by Hugging Face's names."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def scored(
    objective: Any, variables: Any, batches: Iterable[Any], *, step: int = 0, mesh: Any = None
) -> dict:
    """Return eval_loss (nats a token), eval_perplexity, eval_runtime and eval_samples_per_second.

    Args:
        objective: a language-model objective.
        variables: what to score.
        batches: finite, or what opens them for a data partition.
        step: the training step of the variables.
        mesh: where they lie; None is the default device.
    """
    import jax

    from dew import evaluate, metrics

    found = evaluate(
        objective,
        variables,
        batches,
        key=jax.random.key(0),
        metrics=(metrics.perplexity(),),
        step=step,
        mesh=mesh,
    )
    perplexity = found.scores["val/perplexity"]
    return {
        "eval_loss": math.log(perplexity),
        "eval_perplexity": perplexity,
        "eval_runtime": round(found.elapsed_seconds, 4),
        "eval_samples_per_second": round(found.records / found.elapsed_seconds, 4),
    }

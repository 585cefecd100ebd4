"""Held-out scores by Hugging Face's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def scored(
    objective: Any,
    variables: Any,
    batches: Iterable[Any],
    *,
    metrics: Sequence[Any],
    results: Callable[[Mapping[str, float]], Mapping[str, float]],
    step: int = 0,
    averaged: Any = None,
    mesh: Any = None,
) -> dict[str, Any]:
    """Return the scores, eval_runtime and eval_samples_per_second.

    Args:
        objective: what evaluates.
        variables: what to score.
        batches: finite, or what opens them for a data partition.
        metrics: what to measure.
        results: the scores by Hugging Face's names; see `Task.results`.
        step: the training step of the variables.
        averaged: the variables with averaged leaves, for objectives that read them.
        mesh: where they lie; None is the default device.
    """
    import jax

    from dew import evaluate

    found = evaluate(
        objective,
        variables,
        batches,
        key=jax.random.key(0),
        metrics=metrics,
        step=step,
        averaged=averaged,
        mesh=mesh,
    )
    return {
        **results(found.scores),
        "eval_runtime": round(found.elapsed_seconds, 4),
        "eval_samples_per_second": round(found.records / found.elapsed_seconds, 4),
    }

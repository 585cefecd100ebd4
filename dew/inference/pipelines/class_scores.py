"""From a classifier's logits to the scores that transformers' pipelines give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused, shown

FUNCTIONS = ("sigmoid", "softmax", "none")


def checked_function(value: Any) -> str | None:
    """Return the name of what is applied to logits, or None.

    Raises:
        InputRefused: another name.
    """
    if value is None:
        return None
    name = str(getattr(value, "value", value)).lower()
    if name not in FUNCTIONS:
        raise InputRefused(
            f"function_to_apply is {shown(value)}; expected {', '.join(FUNCTIONS)} or None"
        )
    return name


def score_function(config: Mapping[str, Any], labels: int) -> str:
    """Return what a checkpoint's `problem_type` and number of labels ask for."""
    problem = config.get("problem_type")
    if problem == "regression":
        return "none"
    return "sigmoid" if problem == "multi_label_classification" or labels == 1 else "softmax"


def class_scores(logits: NDArray[Any], function: str) -> NDArray[np.float32]:
    """Return float32 scores [..., C] of logits [..., C].

    Args:
        logits: any floating dtype.
        function: one of `FUNCTIONS`.
    """
    values = np.asarray(logits, np.float32)
    if function == "none":
        return values
    if function == "sigmoid":
        return np.float32(1) / (np.float32(1) + np.exp(-values))
    shares = np.exp(values - values.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)

"""The evaluation values a metric scores and a tracker draws; their arrays cross `jit`."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
from flax import struct

T = TypeVar("T")


@struct.dataclass
class TextSamples:
    """Token rows that a model wrote.

    Args:
        tokens: int32 [N, L].
        prompt: the text they continue.
        texts: the decoded rows, where a tokenizer was at hand.
    """

    tokens: Any
    prompt: str = struct.field(pytree_node=False, default="")
    texts: tuple[str, ...] = struct.field(pytree_node=False, default=())


@struct.dataclass
class TokenScores:
    """Losses of given targets under teacher forcing.

    Args:
        losses: float32 [N, L], -log p of each target, in nats.
        weights: float32 [N, L], 1 where the target counts; 0 at padding and at the first token
            of a document.
    """

    losses: Any
    weights: Any


Artifact = TextSamples | TokenScores
"""One evaluation value."""

Artifacts = Artifact | tuple[Artifact, ...]
"""What `Objective.evaluate` returns."""


def host(value: T) -> T:
    """Return `value` with its arrays as numpy arrays of this process."""
    return jax.device_get(value)

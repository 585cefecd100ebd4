"""The evaluation values a metric scores and a tracker draws; their arrays cross `jit`."""

from __future__ import annotations

from typing import Any

from flax import struct


@struct.dataclass
class ImageGrid:
    """Images to score or to look at.

    Args:
        images: [N, H, W, C], in [-1, 1].
        captions: the text each was made from, where there was one.
    """

    images: Any
    captions: tuple[str, ...] = struct.field(pytree_node=False, default=())


@struct.dataclass
class VideoGrid:
    """Clips to score or to look at.

    Args:
        videos: [N, T, H, W, C], in [-1, 1].
        captions: the text each was made from, where there was one.
    """

    videos: Any
    captions: tuple[str, ...] = struct.field(pytree_node=False, default=())


@struct.dataclass
class Representations:
    """What an encoder makes of records, for a probe.

    Args:
        features: [N, D].
        labels: int32 [N], the class of each record; negative where it does not count.
    """

    features: Any
    labels: Any


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


@struct.dataclass
class Predictions:
    """What a model gives for records whose right answers are in the batch.

    Args:
        outputs: some of its outputs by Hugging Face's names, each [N, ...].
        weights: float32 [N] or [N, ...], 0 where a record or a place in it does not count.
    """

    outputs: Any
    weights: Any


Artifact = ImageGrid | VideoGrid | TextSamples | Representations | TokenScores | Predictions
"""One evaluation value."""

Artifacts = Artifact | tuple[Artifact, ...]
"""What `Objective.evaluate` returns."""

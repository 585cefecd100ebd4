"""Texts to what an encoder makes of them, batched by length so that little padding is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dew.artifacts import Representations
from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.row_outputs import Row, position_limit, row_outputs
from dew.nn.heads import SentencePooling
from dew.typing import TextProcessor

VECTOR = "sentence_embedding"


def text_outputs(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    outputs: Sequence[str] | None = None,
    batch_size: int = 32,
    max_tokens: int | None = None,
) -> list[dict[str, np.ndarray]]:
    """Return the model's outputs for each text, as if it had been run alone.

    Args:
        bundle: an encoder with a tokenizer.
        texts: any number.
        outputs: the names of those wanted; None for all.
        batch_size: texts in a batch; they are sorted by length first.
        max_tokens: longer texts are cut to so many, special tokens included; None for as many as
            the model can take.

    Returns:
        A dict a text: `last_hidden_state` [L, D], `sentence_embedding` [S], `logits` and so on,
        without a batch axis and without padding.

    Raises:
        InputRefused: no tokenizer, no such output, a batch size below 1, a text that is none.
    """
    if batch_size < 1:
        raise InputRefused(f"batch_size is {shown(batch_size)}; expected at least 1")
    rows = [Row(ids) for ids in encoded(bundle, texts, max_tokens)]
    return row_outputs(bundle, rows, names=tuple(outputs or ()), batch_size=batch_size)


def sentence_embeddings(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    pooling: SentencePooling | None = None,
    batch_size: int = 32,
    max_tokens: int | None = None,
) -> np.ndarray:
    """Return one vector a text.

    Args:
        bundle: an encoder without a head, with a tokenizer.
        texts: any number.
        pooling: how vectors are made; None for what the checkpoint says.
        batch_size: as for `text_outputs`.
        max_tokens: as for `text_outputs`; None for what the checkpoint's pooling says.

    Returns:
        float32 [N, S].

    Raises:
        InputRefused: as `text_outputs`; a model with a head; no pooling named by anyone.
    """
    model: Any = bundle.model
    pooling = pooling or getattr(model, "sentence", None)
    if pooling is None:
        raise InputRefused(
            "the checkpoint does not say how a text's vector is made (modules.json of "
            "sentence-transformers); pass pooling=SentencePooling(('mean',), normalized=True)"
        )
    if model.head:
        raise InputRefused(
            f"the model ends in a head ({model.head}); load it with task='feature-extraction'"
        )
    stated = pooling == model.sentence
    chosen = bundle if stated else bundle.replace(model=model.clone(sentence=pooling))
    found = text_outputs(
        chosen,
        texts,
        outputs=(VECTOR,),
        batch_size=batch_size,
        max_tokens=max_tokens or pooling.max_tokens,
    )
    width = len(pooling.modes) * model.emb_features
    return np.stack([one[VECTOR] for one in found]) if found else np.zeros((0, width), np.float32)


def representations(vectors: Sequence[np.ndarray] | np.ndarray) -> Representations:
    """Return vectors [D] as the features [N, D] of a probe, of no class."""
    features = np.stack(list(vectors)) if len(vectors) else np.zeros((0, 0), np.float32)
    return Representations(features, np.full(len(vectors), -1, np.int32))


def encoded(bundle: Bundle, texts: Sequence[str], max_tokens: int | None) -> list[list[int]]:
    """Return each text's ids, special tokens included, cut to what the model can take.

    What is cut is the text's end: the special tokens behind it stay.

    Args:
        bundle: with a tokenizer.
        texts: any number.
        max_tokens: as for `text_outputs`.

    Raises:
        InputRefused: no tokenizer, a text that is none or has no token, room for special tokens
            only.
    """
    processor = bundle.tokenizer
    if processor is None:
        raise InputRefused(
            "embedding texts needs a tokenizer and the checkpoint has none; put tokenizer.json "
            "beside the weights, or call the bundle with ids"
        )
    for text in texts:
        if not isinstance(text, str):
            raise InputRefused(f"a text is {shown(text)}; expected a string")
    limits = (max_tokens, position_limit(bundle))
    longest = min((limit for limit in limits if limit is not None), default=None)
    rows = []
    for text, row in zip(texts, processor.encode_batch(list(texts)), strict=True):
        if longest is not None and len(row) > longest:
            row = _cut(processor, text, row, longest)
        if not row:
            raise InputRefused(f"the text {shown(text)} has no token")
        rows.append(row)
    return rows


def _cut(processor: TextProcessor, text: str, row: list[int], longest: int) -> list[int]:
    """Return a row of `longest` tokens: the special ones around the text, and its beginning."""
    own = processor.encode(text, add_special_tokens=False)
    extra = len(row) - len(own)
    if extra >= longest:
        raise InputRefused(
            f"max_tokens is {longest}: there is no room beside {extra} special tokens"
        )
    start = next((at for at in range(extra + 1) if row[at : at + len(own)] == own), 0)
    end = row[start + len(own) :]
    return [*row[: longest - len(end)], *end]

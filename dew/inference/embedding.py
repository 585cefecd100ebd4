"""Texts to what an encoder makes of them, batched by length so that little padding is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.nn.heads import SentencePooling
from dew.typing import TextProcessor

SMALLEST_STEP = 8
STEPS = 8
"""How many lengths there are between a power of two and the next: beyond the shortest rows, the
longest of a batch is padded by an eighth at most, and 32 compiled shapes reach 512 tokens."""
VECTOR = "sentence_embedding"


def padded_length(length: int, limit: int | None = None) -> int:
    """Return the length that a row of `length` tokens is padded to, at most `limit`."""
    step = max(SMALLEST_STEP, 2 ** max(0, (length - 1).bit_length() - 1) // STEPS)
    padded = -(-length // step) * step
    return padded if limit is None else max(length, min(padded, limit))


def length_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Return the rows of each batch: all rows once, those of like length together.

    Args:
        lengths: of the rows, in tokens.
        batch_size: the most rows in a batch.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


def padded_batch(
    rows: Sequence[Sequence[int]], *, length: int, count: int, padding: int
) -> dict[str, np.ndarray]:
    """Return `input_ids` and `attention_mask`, int32 [count, length], padded on the right.

    Rows that are wanted beyond those given repeat the last one.

    Args:
        rows: the ids, no longer than `length`.
        length: of each row.
        count: how many rows.
        padding: the id that stands in padding.
    """
    ids = np.full((count, length), padding, np.int32)
    mask = np.zeros((count, length), np.int32)
    for place in range(count):
        row = rows[min(place, len(rows) - 1)]
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


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
    rows = encoded(bundle, texts, max_tokens)
    padding = getattr(bundle.tokenizer, "pad_token_id", None) or 0
    limit = position_limit(bundle)
    waiting = []
    for batch in length_batches([len(row) for row in rows], batch_size):
        length = padded_length(max(len(rows[row]) for row in batch), limit)
        chosen = [rows[row] for row in batch]
        # A batch of fewer rows would be compiled once more.
        count = batch_size if len(rows) > batch_size else len(batch)
        inputs = padded_batch(chosen, length=length, count=count, padding=padding)
        # Dispatched only: the next batch is prepared while this one is computed.
        waiting.append((batch, length, _wanted(bundle(**inputs), outputs)))
    results: list[dict[str, np.ndarray]] = [{} for _ in rows]
    for batch, length, found in waiting:
        for name, values in found.items():
            host = np.asarray(values)
            by_token = host.ndim > 1 and host.shape[1] == length and name in BY_TOKEN
            for place, row in enumerate(batch):
                one = host[place]
                results[row][name] = one[: len(rows[row])] if by_token else one
    return results


BY_TOKEN = ("last_hidden_state", "logits", "start_logits", "end_logits")
"""The outputs that may have an axis of tokens behind that of the batch."""


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
    chosen = bundle.replace(model=model.clone(sentence=pooling))
    found = text_outputs(
        chosen,
        texts,
        outputs=(VECTOR,),
        batch_size=batch_size,
        max_tokens=max_tokens or pooling.max_tokens,
    )
    width = len(pooling.modes) * model.emb_features
    return np.stack([one[VECTOR] for one in found]) if found else np.zeros((0, width), np.float32)


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


def position_limit(bundle: Any) -> int | None:
    """Return how many tokens a text may have, None for any; a traced bundle knows it itself."""
    own = getattr(bundle, "position_limit", None)
    return getattr(bundle.model, "position_limit", own)


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


def _wanted(found: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    if names is None:
        return found
    lacking = [name for name in names if name not in found]
    if lacking:
        raise InputRefused(
            f"the model gives no {lacking[0]}; it gives {', '.join(found)}: see load(..., task=...)"
        )
    return {name: found[name] for name in names}

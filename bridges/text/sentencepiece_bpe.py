"""SentencePiece's pair encoding, rebuilt from its pieces and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers

from dew.errors import InputRefused

SPACE = "▁"


def sentencepiece_bpe(
    vocabulary: Mapping[str, int],
    scores: Sequence[float],
    where: str,
    *,
    unknown: str | None = None,
    prefix: bool = True,
) -> tokenizers.Tokenizer:
    """Return Llama's SentencePiece tokenizer for a vocabulary.

    SentencePiece merges the neighbours whose union has the best score. The tokenizers library
    merges by rank, so every way to part a piece into two others becomes a merge, ranked by the
    score of the piece and then by the ids of the parts.

    Args:
        vocabulary: piece to id, from 0 without gaps.
        scores: of each id.
        where: the source's name for messages.
        unknown: the piece for unknown text; bytes (`<0x41>`) come first where there are any.
        prefix: start every text with a space, as Llama does.

    Returns:
        The tokenizer, no special tokens added.

    Raises:
        InputRefused: not one score for each piece.
    """
    if len(scores) != len(vocabulary):
        raise InputRefused(
            f"{where}: {len(vocabulary)} tokens but {len(scores)} scores. Expected as many; get "
            "the file again."
        )
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, number in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[number], vocabulary[left], vocabulary[right], left, right))
    ranked.sort()
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            dict(vocabulary),
            [(left, right) for *_, left, right in ranked],
            unk_token=unknown if unknown in vocabulary else None,
            fuse_unk=True,
            byte_fallback="<0x00>" in vocabulary,
        )
    )
    spaced = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*spaced, normalizers.Replace(" ", SPACE)])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] * prefix)])
    return tokenizer

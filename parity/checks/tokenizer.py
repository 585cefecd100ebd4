"""Does the tokenizer give the ids that transformers' gives, and the same text back?"""

from __future__ import annotations

from dataclasses import dataclass

from parity.check import Finding
from parity.subject import Subject


@dataclass(frozen=True)
class Tokenized:
    """Ids with and without special tokens, and the text that the ids decode to, for each line."""

    with_special: list[list[int]]
    without: list[list[int]]
    decoded: list[str]


class Tokenizer:
    """The ids of every line of the text, of the whole text, and of nothing."""

    name = "tokenizer"
    tolerance = "ids and decoded text equal"

    def inputs(self, subject: Subject, seed: int) -> list[str]:
        """Return the texts."""
        return [*subject.text.splitlines(), subject.text, " "]

    def ours(self, subject: Subject, inputs: list[str]) -> Tokenized:
        """Return what the bundle's processor makes of them."""
        processor = subject.bundle.tokenizer
        without = processor.encode_batch(inputs, add_special_tokens=False)
        return Tokenized(
            processor.encode_batch(inputs, add_special_tokens=True),
            without,
            [processor.decode(ids, skip_special_tokens=False) for ids in without],
        )

    def reference(self, subject: Subject, inputs: list[str]) -> Tokenized:
        """Return what transformers' tokenizer makes of them."""
        tokenizer = subject.checkpoint.tokenizer()
        without = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in inputs]
        return Tokenized(
            [tokenizer(text)["input_ids"] for text in inputs],
            without,
            [
                tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
                for ids in without
            ],
        )

    def compare(self, ours: Tokenized, reference: Tokenized) -> Finding:
        """Name the first text whose ids or decoding differ."""
        ids = sum(len(row) for row in reference.without)
        figures = {"texts": len(reference.without), "ids": ids}
        for part in ("with_special", "without", "decoded"):
            pairs = zip(getattr(ours, part), getattr(reference, part), strict=True)
            for place, (found, wanted) in enumerate(pairs):
                if found != wanted:
                    shown = f"dew {found!r:.80}, transformers {wanted!r:.80}"
                    return Finding(False, figures, f"text {place}, {part}: {shown}")
        return Finding(True, figures)

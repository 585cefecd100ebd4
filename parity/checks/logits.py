"""Do dew's logits agree with torch's, padding on either side, short and long?"""

from __future__ import annotations

import numpy as np

from parity import reference
from parity.check import Finding
from parity.packing import Tokens
from parity.rounding import RULE, Deviation, deviation, judged
from parity.subject import Subject

SHORT = 12

Answers = dict[str, np.ndarray]


class Logits:
    """Float32 logits at every real position of two batches, one of them as long as allowed."""

    name = "logits"
    tolerance = RULE

    def inputs(self, subject: Subject, seed: int) -> list[Tokens]:
        """Return a short and a long batch: rotary scaling may differ between them."""
        lengths = sorted({min(SHORT, subject.context), subject.context})
        return [subject.batch(length, seed) for length in lengths]

    def ours(self, subject: Subject, inputs: list[Tokens]) -> Answers:
        """Return dew's logits [tokens, V] of each batch."""
        found = {}
        for batch in inputs:
            out = subject.bundle(**subject.given(batch.input_ids, batch.attention_mask))
            found[_named(batch)] = _real(np.asarray(reference.first_output(out)), batch)
        return found

    def reference(self, subject: Subject, inputs: list[Tokens]) -> tuple[Answers, Answers]:
        """Return torch's logits in float32 and in float64."""
        single, exact = (
            {
                _named(batch): _real(
                    reference.logits(
                        subject.checkpoint.model(precision), batch.input_ids, batch.attention_mask
                    ),
                    batch,
                )
                for batch in inputs
            }
            for precision in (reference.SINGLE, reference.EXACT)
        )
        return single, exact

    def compare(self, ours: Answers, reference: tuple[Answers, Answers]) -> Finding:
        """Hold the logits of each batch to the rule, and count the top tokens that differ."""
        single, exact = reference
        found: list[Deviation] = []
        changed = 0
        for name in exact:
            scale = float(np.abs(exact[name]).max())
            found.append(deviation(name, ours[name], single[name], exact[name], scale=scale))
            changed += int((ours[name].argmax(-1) != exact[name].argmax(-1)).sum())
        return judged(found, top_tokens_changed=changed)


def _named(batch: Tokens) -> str:
    return f"length {batch.input_ids.shape[1]}"


def _real(values: np.ndarray, batch: Tokens) -> np.ndarray:
    rows_alone = values.shape[:2] != batch.attention_mask.shape
    return values if rows_alone else values[batch.attention_mask != 0]

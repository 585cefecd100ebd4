"""Texts that a model wrote beside those that it should have: what scores of texts are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class WrittenTexts:
    """The texts of a pass, by the rows that a batch names.

    Args:
        decode: ids to the text they are, special tokens left out.
        references: the right text of each row of the validation data.
        output: which of the outputs holds the ids [N, T].
        record: the field of the batch that names each row [N].
    """

    decode: Decode
    references: Sequence[str]
    output: str = "written"
    record: str = "record"

    def pairs(
        self, scored: Predictions, batch: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, str]]:
        """Yield the text that was written and the right one of each row that counts.

        Raises:
            InputRefused: nothing was written.
        """
        if self.output not in scored.outputs:
            raise InputRefused(
                f"a score of texts reads {self.output!r}, which the objective did not write; give "
                "it a writer"
            )
        ids = np.asarray(scored.outputs[self.output])
        counted = np.asarray(scored.weights).reshape(len(ids), -1).max(axis=1) > 0
        for row, number, counts in zip(ids, np.asarray(batch[self.record]), counted, strict=True):
            if counts:
                yield self.decode(row.tolist()), self.references[int(number)]

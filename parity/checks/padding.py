"""Does padding change nothing: are padded rows what torch makes of each row alone?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity import inputs as model_inputs
from parity import reference
from parity.check import Finding
from parity.inputs import Inputs
from parity.rounding import RULE, deviations, judged
from parity.subject import Subject

LENGTH = 12

Answers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Rows:
    """One side's outputs: of the padded batch, and of each of its rows alone where it was asked."""

    padded: Answers
    alone: tuple[Answers, ...] = ()


class Padding:
    """The outputs of a padded batch, row by row.

    Causal models are padded on both sides; others on the right, their positions left to them. A
    model of transformers that minds padding itself is allowed twice its own error.
    """

    name = "padding"
    tolerance = f"padded against alone; {RULE}"

    def inputs(self, subject: Subject, seed: int) -> Inputs:
        """Return three rows, of which two are padded."""
        length = min(LENGTH, subject.context)
        return model_inputs.batch(subject, length, seed, left=subject.causal)

    def ours(self, subject: Subject, inputs: Inputs) -> tuple[Inputs, Answers]:
        """Return dew's outputs of the padded batch."""
        return inputs, model_inputs.outputs(subject, inputs)

    def reference(self, subject: Subject, inputs: Inputs) -> tuple[Rows, Rows]:
        """Return torch's padded outputs in float32, and its float64 ones of each row alone."""
        single = subject.checkpoint.model(reference.SINGLE)
        exact = subject.checkpoint.model(reference.EXACT)
        alone = tuple(
            {
                name: value
                for name, value in reference.outputs(exact, row).items()
                if len(value) == 1
            }
            for row in model_inputs.rows_alone(inputs)
        )
        return Rows(reference.outputs(single, inputs)), Rows({}, alone)

    def compare(self, ours: tuple[Inputs, Answers], reference: tuple[Rows, Rows]) -> Finding:
        """Hold each output of each row to the rule."""
        inputs, found = ours
        single, exact = reference
        alone = model_inputs.joined(exact.alone)
        found, torch = (
            model_inputs.joined(model_inputs.without_padding(side, inputs, exact.alone))
            for side in (found, single.padded)
        )
        rows = deviations(found, torch, alone)
        return judged(rows, torch_itself=max(part.torch / part.scale for part in rows))

"""Do dew's outputs agree with torch's: of texts short, long and padded, of images, of sound?"""

from __future__ import annotations

import numpy as np

from parity import inputs as model_inputs
from parity import reference
from parity.check import Finding
from parity.inputs import Inputs
from parity.rounding import RULE, deviations, judged
from parity.subject import Subject

SHORT = 12
NAME = "logits"

Answers = dict[str, np.ndarray]


class Logits:
    """Every float32 output, at the real positions of texts, one of them as long as allowed."""

    name = NAME
    tolerance = RULE

    def inputs(self, subject: Subject, seed: int) -> dict[str, Inputs]:
        """Return a short and a long batch of texts, since rotary scaling may differ between them.

        What is no text has one size, and one batch.
        """
        lengths = sorted({min(SHORT, subject.context), subject.context})
        if not {"input_ids", "decoder_input_ids"} & set(subject.input_names):
            return {"": model_inputs.batch(subject, 0, seed)}
        return {
            f" at length {length}": model_inputs.batch(subject, length, seed) for length in lengths
        }

    def ours(self, subject: Subject, inputs: dict[str, Inputs]) -> Answers:
        """Return dew's outputs of each batch, [tokens, ...] where they are by token."""
        found = {}
        for place, batch in inputs.items():
            answers = model_inputs.real(model_inputs.outputs(subject, batch), batch)
            found |= {name + place: value for name, value in answers.items()}
        return found

    def reference(self, subject: Subject, inputs: dict[str, Inputs]) -> tuple[Answers, Answers]:
        """Return torch's outputs in float32 and in float64."""
        sides: list[Answers] = []
        for precision in (reference.SINGLE, reference.EXACT):
            model, found = subject.checkpoint.model(precision), {}
            for place, batch in inputs.items():
                answers = model_inputs.real(reference.outputs(model, batch), batch)
                found |= {name + place: value for name, value in answers.items()}
            sides.append(found)
        return sides[0], sides[1]

    def compare(self, ours: Answers, reference: tuple[Answers, Answers]) -> Finding:
        """Hold each output to the rule, and count the logits whose largest is another."""
        single, exact = reference
        invented = sorted(set(ours) - set(exact))
        if invented:
            return Finding(False, {}, f"transformers has no output {invented[0]}")
        changed = sum(
            int((ours[name].argmax(-1) != exact[name].argmax(-1)).sum())
            for name in exact
            if name.startswith(NAME) and name in ours
        )
        return judged(deviations(ours, single, exact), tops_changed=changed)

"""Do the loss and the gradient of every parameter agree with torch's?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity import reference
from parity.check import Finding
from parity.packing import Documents, packed, single_rows
from parity.rounding import RULE, Deviation, deviations, judged
from parity.subject import Subject
from parity.training import mean_loss_and_gradients


@dataclass(frozen=True)
class Answer:
    """A mean loss in nats per counted target, and its gradient by torch name."""

    loss: float
    gradients: dict[str, np.ndarray]


class LossAndGradient:
    """dew sees documents packed into rows; torch sees each in a row of its own.

    Their means over the counted targets are the same number only if nothing crosses from one
    document to the next.
    """

    name = "loss and gradient"
    tolerance = RULE

    def inputs(self, subject: Subject, seed: int) -> Documents:
        """Return documents of uneven lengths."""
        return subject.documents(seed)

    def ours(self, subject: Subject, inputs: Documents) -> Answer:
        """Return the objective's loss and gradient on the packed rows."""
        loss, gradients = mean_loss_and_gradients(subject, packed(inputs))
        return Answer(loss, subject.by_torch_name(gradients))

    def reference(self, subject: Subject, inputs: Documents) -> tuple[Answer, Answer]:
        """Return torch's in float32 and in float64."""
        rows = single_rows(inputs)
        single, exact = (
            Answer(
                *reference.loss_and_gradients(
                    subject.checkpoint.model(precision), rows.input_ids, rows.attention_mask
                )
            )
            for precision in (reference.SINGLE, reference.EXACT)
        )
        return single, exact

    def compare(self, ours: Answer, reference: tuple[Answer, Answer]) -> Finding:
        """Hold the loss and each gradient to the rule."""
        single, exact = reference
        loss = Deviation(
            "the loss", abs(ours.loss - exact.loss), abs(single.loss - exact.loss), abs(exact.loss)
        )
        found = deviations(
            ours.gradients, single.gradients, exact.gradients, scale=_largest(exact.gradients)
        )
        return judged([loss, *found], loss=ours.loss, loss_torch=exact.loss)


def _largest(gradients: dict[str, np.ndarray]) -> float:
    """Return the largest magnitude of any gradient.

    It is the scale of all of them: a key's bias, for one, has the gradient zero, since softmax
    does not see it, and what float32 leaves there is the rounding of larger numbers.
    """
    return max(float(np.abs(value).max()) for value in gradients.values())

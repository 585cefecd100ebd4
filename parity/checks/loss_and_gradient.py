"""Do the loss and the gradient of every parameter agree with torch's?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity import reference
from parity.check import Finding
from parity.packing import Documents, Tokens, single_rows
from parity.rounding import RULE, Deviation, deviation, deviations, judged
from parity.subject import Subject
from parity.training import mean_loss_and_gradients, training_batch


@dataclass(frozen=True)
class Answer:
    """A mean loss in nats per counted target, its gradient by torch name, and torch's token losses.

    One sum's error may be small by luck; torch's error of the loss is therefore taken over the
    losses of single tokens, of which there are many.
    """

    loss: float
    gradients: dict[str, np.ndarray]
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0))


class LossAndGradient:
    """dew sees documents packed into rows; torch sees each in a row of its own.

    Their means over the counted targets are the same number only if nothing crosses from one
    document to the next. A traced model takes no document mask: there both see single rows.
    """

    name = "loss and gradient"
    tolerance = RULE

    def inputs(self, subject: Subject, seed: int) -> Documents:
        """Return documents of uneven lengths."""
        return subject.documents(seed)

    def ours(self, subject: Subject, inputs: Documents) -> Answer:
        """Return the objective's loss and gradient on the packed rows."""
        loss, gradients = mean_loss_and_gradients(subject, training_batch(subject, inputs))
        return Answer(loss, subject.by_torch_name(gradients))

    def reference(self, subject: Subject, inputs: Documents) -> tuple[Answer, Answer]:
        """Return torch's in float32 and in float64."""
        rows = single_rows(inputs)
        single, exact = (
            _reference(subject.checkpoint.model(precision), rows)
            for precision in (reference.SINGLE, reference.EXACT)
        )
        return single, exact

    def compare(self, ours: Answer, reference: tuple[Answer, Answer]) -> Finding:
        """Hold the loss and each gradient to the rule."""
        single, exact = reference
        tokens = deviation("", single.tokens, single.tokens, exact.tokens, scale=0.0).torch
        own = max(tokens, abs(single.loss - exact.loss))
        error = abs(ours.loss - exact.loss)
        loss = Deviation("the loss", error, own, abs(exact.loss), error, own)
        found = deviations(
            ours.gradients, single.gradients, exact.gradients, scale=_largest(exact.gradients)
        )
        return judged([loss, *found], loss=ours.loss, loss_torch=exact.loss)


def _reference(model: Any, rows: Tokens) -> Answer:
    loss, gradients = reference.loss_and_gradients(model, rows.input_ids, rows.attention_mask)
    tokens = reference.token_losses(model, rows.input_ids, rows.attention_mask)
    return Answer(loss, gradients, tokens)


def _largest(gradients: dict[str, np.ndarray]) -> float:
    """Return the largest magnitude of any gradient.

    It is the scale of all of them: a key's bias, for one, has the gradient zero, since softmax
    does not see it, and what float32 leaves there is the rounding of larger numbers.
    """
    return max(float(np.abs(value).max()) for value in gradients.values())

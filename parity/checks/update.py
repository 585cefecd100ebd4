"""Do ten AdamW updates move every weight as torch's do?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity import reference
from parity.check import Finding
from parity.checks.loss_and_gradient import largest
from parity.packing import Documents, packed, single_rows
from parity.reference import AdamW
from parity.rounding import RULE, ULP, deviations, judged
from parity.subject import Subject
from parity.training import adamw_steps

STEPS = 10
SETTINGS = AdamW()


@dataclass(frozen=True)
class Trained:
    """The weights after the last step by torch name, and the loss before each step.

    `undirected` names the weights whose exact gradient is below the rounding of float32: AdamW
    divides it by its own size, so that their direction is noise on every float32 machine.
    """

    weights: dict[str, np.ndarray]
    losses: list[float]
    undirected: tuple[str, ...] = ()


class Update:
    """The weights after ten AdamW steps, one small batch each."""

    name = "update"
    tolerance = f"{STEPS} AdamW steps; {RULE}"

    def inputs(self, subject: Subject, seed: int) -> list[Documents]:
        """Return the documents of each step."""
        return [subject.documents(seed + step) for step in range(STEPS)]

    def ours(self, subject: Subject, inputs: list[Documents]) -> Trained:
        """Return what the objective and optax make of the weights."""
        losses, params = adamw_steps(subject, [packed(step) for step in inputs], SETTINGS)
        return Trained(subject.by_torch_name(params), losses)

    def reference(self, subject: Subject, inputs: list[Documents]) -> tuple[Trained, Trained]:
        """Return what torch.optim.AdamW makes of them in float32 and in float64."""
        subject.checkpoint.release()
        batches = [single_rows(step) for step in inputs]
        pairs = [(batch.input_ids, batch.attention_mask) for batch in batches]
        exact = _trained(subject, reference.EXACT, pairs)
        return _trained(subject, reference.SINGLE, pairs), exact

    def compare(self, ours: Trained, reference: tuple[Trained, Trained]) -> Finding:
        """Hold each weight to the rule, but for those without a direction, which are named."""
        single, exact = reference
        kept = {
            name: value for name, value in exact.weights.items() if name not in exact.undirected
        }
        return judged(
            deviations(ours.weights, single.weights, kept),
            last_loss=ours.losses[-1],
            last_loss_torch=exact.losses[-1],
            undirected=list(exact.undirected),
        )


def _trained(
    subject: Subject, precision: str, batches: list[tuple[np.ndarray, np.ndarray]]
) -> Trained:
    model = subject.checkpoint.fresh_model(precision)
    undirected: tuple[str, ...] = ()
    if precision == reference.EXACT:
        _, gradients = reference.loss_and_gradients(model, *batches[0])
        least = ULP * largest(gradients)
        undirected = tuple(
            name for name, value in gradients.items() if np.abs(value).max() < least
        )
    losses = reference.adamw_steps(model, batches, SETTINGS)
    return Trained(reference.tensors(model), losses, undirected)

"""Do ten AdamW updates move every weight as torch's do?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity import reference, reference_training
from parity.check import Finding
from parity.packing import Directed, Documents, Tokens
from parity.reference import AdamW
from parity.rounding import RULE, ULP, deviations, judged
from parity.subject import Subject
from parity.training import adamw_steps, asked, by_torch

STEPS = 10
# With torch's default epsilon of 1e-8, a weight whose first gradient is below rounding goes a full
# step in a random direction, in torch too, and all that follows is noise. 1e-4 is above the
# rounding of these gradients and below most of them.
SETTINGS = AdamW(epsilon=1e-4)


@dataclass(frozen=True)
class Trained:
    """The weights after the last step by torch name, and the loss before each step.

    `directed` is True where a weight's exact gradients are above the rounding of float32. AdamW
    divides a gradient by its own size, so that below it the direction is noise on any machine:
    a key's bias, for one, has the gradient zero.
    """

    weights: dict[str, np.ndarray]
    losses: list[float]
    directed: dict[str, np.ndarray]


class Update:
    """The weights after ten AdamW steps, one small batch each."""

    name = "update"
    tolerance = f"{STEPS} AdamW steps; {RULE}"

    def inputs(self, subject: Subject, seed: int) -> list[Documents | Directed]:
        """Return what the loss of each step is of."""
        return [asked(subject, seed + step) for step in range(STEPS)]

    def ours(self, subject: Subject, inputs: list[Documents | Directed]) -> Trained:
        """Return what the trainer's step makes of the weights."""
        losses, params = adamw_steps(subject, inputs, SETTINGS)
        return Trained(subject.by_torch_name(params), losses, {})

    def reference(
        self, subject: Subject, inputs: list[Documents | Directed]
    ) -> tuple[Trained, Trained]:
        """Return what torch.optim.AdamW makes of them in float32 and in float64."""
        subject.checkpoint.release()
        batches = [by_torch(step) for step in inputs]
        exact = _trained(subject, reference.EXACT, batches)
        return _trained(subject, reference.SINGLE, batches), exact

    def compare(self, ours: Trained, reference: tuple[Trained, Trained]) -> Finding:
        """Hold each tensor's directed weights to the rule, and count the others."""
        single, exact = reference
        kept = {name: mask for name, mask in exact.directed.items() if mask.any()}
        lonely = sorted(set(kept) - set(ours.weights))
        if lonely:
            return Finding(False, {}, f"dew has no counterpart of {lonely[0]}")
        sides = (ours, single, exact)
        # One tensor at a time: all that is picked would take as much room as the weights.
        found = [
            part
            for name, mask in kept.items()
            for part in deviations(*({name: side.weights[name][mask]} for side in sides))
        ]
        undirected = sum(int((~mask).sum()) for mask in exact.directed.values())
        return judged(
            found,
            last_loss=ours.losses[-1],
            last_loss_torch=exact.losses[-1],
            undirected_values=undirected,
        )


def _trained(subject: Subject, precision: str, batches: list[Tokens | Directed]) -> Trained:
    model = subject.checkpoint.fresh_model(precision)
    losses, sizes = reference_training.adamw_steps(model, batches, SETTINGS)
    least = ULP * max(float(size.max()) for size in sizes.values())
    directed = {name: size >= least for name, size in sizes.items()}
    del sizes  # as large as the weights, and no more needed
    return Trained(reference.tensors(model), losses, directed)

"""Do fifty updates follow torch's losses, with AdamW, SGD and Adafactor?"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from parity import reference, reference_curve, reference_training
from parity.check import Finding
from parity.packing import Directed, Documents, Tokens
from parity.places import held_tensors
from parity.plot import Plot
from parity.recipes import ACCUMULATION, RECIPES, UPDATES, Recipe
from parity.rounding import Deviation, deviation, judged
from parity.subject import Subject
from parity.training import asked, by_torch, loss_curve, undecayed_names

WINDOWS = 2
WHOLE = "adafactor"

Window = list[Documents | Directed]
Curves = dict[str, np.ndarray]


@dataclass(frozen=True)
class Asked:
    """The microbatches of each window, the weights that do not decay, and optimizers by name."""

    windows: list[Window]
    undecayed: list[str]
    names: list[str]

    @property
    def recipes(self) -> list[Recipe]:
        """How each run goes."""
        return [recipe for recipe in RECIPES if recipe.name in self.names]


@dataclass(frozen=True)
class Torch:
    """Torch's losses before each update by the optimizer's name, and its error of one token's."""

    single: Curves
    exact: Curves
    token_error: float


class LossCurve:
    """The loss before each update, two microbatches of unequal lengths to one.

    The rate warms up and falls, gradients are clipped, and only what is no bias and no scale of a
    norm decays. As in "loss and gradient", the error of a sum may be small by luck, and torch's is
    at least that of single tokens' losses. Adafactor is left out where torch holds several of dew's
    maps as one: it scales each tensor as a whole, so that there its steps are others.
    """

    name = "loss curve"
    tolerance = (
        f"{UPDATES} updates; error over the curve <= 2 x torch's float32 error + 1 ulp of scale, "
        "against float64 torch"
    )

    def inputs(self, subject: Subject, seed: int) -> Asked:
        """Return the microbatches of the windows, what does not decay, and the optimizers."""
        windows = [
            [
                _shortened(asked(subject, seed + ACCUMULATION * window + part), part)
                for part in range(ACCUMULATION)
            ]
            for window in range(WINDOWS)
        ]
        fused = not subject.traced and any(part.part for part in held_tensors(subject))
        names = [recipe.name for recipe in RECIPES if not (fused and recipe.name == WHOLE)]
        return Asked(windows, undecayed_names(subject), names)

    def ours(self, subject: Subject, inputs: Asked) -> Curves:
        """Return what the trainer's step makes of the loss under each recipe."""
        return {
            recipe.name: np.asarray(loss_curve(subject, inputs.windows, recipe))
            for recipe in inputs.recipes
        }

    def reference(self, subject: Subject, inputs: Asked) -> Torch:
        """Return what torch's optimizers make of it in float32 and in float64."""
        windows = [[by_torch(part) for part in window] for window in inputs.windows]
        token_error = _token_error(subject, windows[0][0])
        subject.checkpoint.release()
        single, exact = (
            {
                recipe.name: np.asarray(
                    reference_curve.loss_curve(
                        subject.checkpoint.fresh_model(precision),
                        windows,
                        recipe,
                        inputs.undecayed,
                    )
                )
                for recipe in inputs.recipes
            }
            for precision in (reference.SINGLE, reference.EXACT)
        )
        return Torch(single, exact, token_error)

    def compare(self, ours: Curves, reference: Torch) -> Finding:
        """Hold each curve to the rule."""
        found, plots = [], []
        for name, exact in reference.exact.items():
            part = deviation(
                name,
                ours[name],
                reference.single[name],
                exact,
                scale=float(np.abs(exact).max()),
            )
            own = max(part.torch, reference.token_error)
            found.append(
                Deviation(
                    name,
                    part.ours,
                    own,
                    part.scale,
                    part.ours_largest,
                    max(own, part.torch_largest),
                )
            )
            lines = {"dew": ours[name].tolist(), "torch": exact.tolist()}
            plots.append(Plot(f"Loss under {name}", "update", "loss", lines))
        last = {f"last_{name}": float(curve[-1]) for name, curve in ours.items()}
        finding = judged(found, **last)
        return dataclasses.replace(finding, plots=tuple(plots))


def _shortened(batch: Documents | Directed, part: int) -> Documents | Directed:
    """Return documents that are shorter in later parts, but for the longest, which gives shapes."""
    if isinstance(batch, Directed) or part == 0:
        return batch
    longest = max(map(len, batch.sequences))
    cut = tuple(
        ids if len(ids) == longest else ids[: max(2, len(ids) // 3)] for ids in batch.sequences
    )
    return Documents(cut, batch.length)


def _token_error(subject: Subject, batch: Tokens | Directed) -> float:
    if isinstance(batch, Directed):
        return 0.0
    single, exact = (
        reference_training.token_losses(subject.checkpoint.model(precision), batch)
        for precision in (reference.SINGLE, reference.EXACT)
    )
    return float(np.sqrt(np.mean(np.square(single.astype(np.float64) - exact))))

"""Do the hidden states agree with torch's layer by layer?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from parity import inputs as model_inputs
from parity.check import Finding
from parity.inputs import Inputs
from parity.inside import Seen, seen_inside
from parity.places import Held, layer_sites
from parity.plot import Plot
from parity.reference_inside import GIVEN
from parity.rounding import RULE, judged
from parity.steps import Step, TorchSide, numbered_layers, steps_between, tensors_of, torch_side
from parity.subject import Subject

LENGTH = 12


@dataclass(frozen=True)
class Asked:
    """What both sides run on, and which tensors tell one side's layers by the other's names."""

    inputs: Inputs
    held: list[Held]


class HiddenStates:
    """What goes into the first layer and what every layer gives, at the real positions.

    Where nothing is stacked it is what every map gives. An output may be right by luck of a later
    norm or of a sum; a layer's states may not.
    """

    name = "hidden states"
    tolerance = RULE

    def inputs(self, subject: Subject, seed: int) -> Asked:
        """Return a batch with padding."""
        length = min(LENGTH, subject.context)
        return Asked(model_inputs.batch(subject, length, seed), tensors_of(subject))

    def ours(self, subject: Subject, inputs: Asked) -> tuple[Inputs, Mapping[str, Seen]]:
        """Return what dew's modules gave."""
        return inputs.inputs, seen_inside(subject, inputs.inputs)

    def reference(self, subject: Subject, inputs: Asked) -> TorchSide:
        """Return what torch's layers gave in float32 and in float64."""
        chosen = numbered_layers if subject.traced else layer_sites
        return torch_side(subject, inputs.inputs, inputs.held, chosen)

    def compare(self, ours: tuple[Inputs, Mapping[str, Seen]], reference: TorchSide) -> Finding:
        """Hold each layer to the rule, and name the first that breaks it."""
        steps = [
            step
            for step in steps_between(ours[1], reference, ours[0])
            if step.side == GIVEN or step.site.layer == 0
        ]
        if not steps:
            return Finding(False, {}, "no layer of dew's was found in torch's model")
        layers = sum(step.side == GIVEN for step in steps)
        finding = judged([step.deviation for step in steps], layers=layers)
        first = next((step for step in steps if not step.deviation.excess <= 1), None)
        plot = Plot(
            "Error of each layer's states",
            "layer",
            "root mean square error against float64 torch",
            {
                "dew": [step.deviation.ours for step in steps],
                "torch": [step.deviation.torch for step in steps],
                "allowed": [step.deviation.allowed for step in steps],
            },
            [_shown(step) for step in steps],
            logarithmic=True,
        )
        return Finding(
            finding.passed,
            finding.figures,
            finding.reason,
            "" if first is None else _shown(first),
            plots=(plot,),
            rounding=finding.rounding,
        )


def _shown(step: Step) -> str:
    return step.site.theirs if step.side == GIVEN else f"what goes into {step.site.theirs}"

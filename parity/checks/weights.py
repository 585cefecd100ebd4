"""Did every tensor arrive as transformers reads it, and are all of them finite?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parity import reference
from parity.check import Finding
from parity.stored import told
from parity.subject import Subject


class Weights:
    """The parameters and the stored statistics by torch name, bit for bit."""

    name = "weights"
    tolerance = "every value equal, none NaN or infinite"

    def inputs(self, subject: Subject, seed: int) -> None:
        """Return nothing: the checkpoint is the input."""

    def ours(self, subject: Subject, inputs: None) -> dict[str, np.ndarray]:
        """Return the bundle's parameters and buffers under their torch names."""
        variables = subject.bundle.variables
        held = {name: np.asarray(value) for name, value in variables.get("buffers", {}).items()}
        return held | subject.by_torch_name(variables["params"])

    def reference(self, subject: Subject, inputs: None) -> dict[str, np.ndarray]:
        """Return the parameters and the stored buffers of the torch model."""
        model = subject.checkpoint.model(reference.SINGLE)
        return reference.tensors(model) | reference.buffers(model)

    def compare(
        self, ours: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
    ) -> Finding:
        """Name the tensors that are absent, differ or hold no number."""
        absent = [name for name in reference if name not in ours]
        unreal = [name for name in reference if not np.isfinite(reference[name]).all()]
        different = [
            name
            for name in reference
            if name in ours and not np.array_equal(ours[name], reference[name], equal_nan=True)
        ]
        figures = {
            "tensors": len(reference),
            "values": sum(int(value.size) for value in reference.values()),
        }
        problems = [
            *(f"{name} holds NaN or infinity" for name in unreal),
            *(f"{name} has no counterpart in dew" for name in absent),
            *(f"{name} differs" for name in different),
        ]
        return Finding(not problems, figures, told(problems))

"""Did every tensor arrive as transformers reads it, and are all of them finite?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parity import reference
from parity.check import Finding
from parity.subject import Subject

SHOWN = 4


class Weights:
    """The parameters by torch name, bit for bit."""

    name = "weights"
    tolerance = "every value equal, none NaN or infinite"

    def inputs(self, subject: Subject, seed: int) -> None:
        """Return nothing: the checkpoint is the input."""

    def ours(self, subject: Subject, inputs: None) -> dict[str, np.ndarray]:
        """Return the bundle's parameters under their torch names."""
        return subject.by_torch_name(subject.bundle.variables["params"])

    def reference(self, subject: Subject, inputs: None) -> dict[str, np.ndarray]:
        """Return the parameters of the torch model."""
        return reference.tensors(subject.checkpoint.model(reference.SINGLE))

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
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        return Finding(not problems, figures, "; ".join(problems[:SHOWN]) + more)

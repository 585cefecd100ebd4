"""Is KID the one of torch-fidelity, with the same subsets?"""

from __future__ import annotations

from typing import Any

from parity.check import METRIC, Finding
from parity.image_cases import FolderCase, folder_cases, numbers, written
from parity.scores import compare_scores
from parity.seeded_inception import (
    fidelity_metrics,
    seeded_encoder,
    torch_weights,
    weight_shapes,
)

RELATIVE, ABSOLUTE = 1e-5, 1e-7
SUBSETS, SUBSET_SIZE = 10, 8
FEATURES = 64
PARTS = ("mean", "deviation")


class Kid:
    """Mean and deviation over subsets that both sides draw from the same seed."""

    name = "kid"
    kind = METRIC
    needs = ("torch-fidelity>=0.4.0", "torch>=2.6", "torchvision>=0.21")
    tolerance = f"relative difference <= {RELATIVE:g}, or <= {ABSOLUTE:g}"

    def inputs(self, subject: None, seed: int) -> dict[str, Any]:
        """Return the seed of the weights, and the folders."""
        return {"seed": seed, "shapes": weight_shapes(), "cases": list(folder_cases(seed))}

    def ours(self, subject: None, inputs: dict[str, Any]) -> dict[str, float | str]:
        """Return the mean and the deviation of each case."""
        from dew.evaluation.image_folders import folder_features
        from dew.evaluation.kernel_distance import kernel_distance

        encoder = seeded_encoder(inputs["seed"], features=FEATURES, mode="torch-fidelity")

        def both(case: FolderCase) -> tuple[float, float]:
            with written(case.generated, case.real) as folders:
                sides = [folder_features(folder, encoder) for folder in folders]
            return kernel_distance(*sides, subsets=SUBSETS, subset_size=SUBSET_SIZE)

        return self._scores(inputs, both, ValueError)

    def reference(self, subject: None, inputs: dict[str, Any]) -> dict[str, float | str]:
        """Return torch-fidelity's mean and deviation of each case."""
        state = torch_weights(inputs["seed"], inputs["shapes"])

        def both(case: FolderCase) -> tuple[float, ...]:
            with written(case.generated, case.real) as folders:
                found = fidelity_metrics(
                    state,
                    case.batch,
                    input1=str(folders[0]),
                    input2=str(folders[1]),
                    kid=True,
                    kid_subsets=SUBSETS,
                    kid_subset_size=SUBSET_SIZE,
                    feature_layer_kid=str(FEATURES),
                )
            return tuple(found[f"kernel_inception_distance_{name}"] for name in ("mean", "std"))

        return self._scores(inputs, both, Exception)

    def compare(self, ours: dict[str, Any], reference: dict[str, Any]) -> Finding:
        """Ask for torch-fidelity's numbers."""
        return compare_scores(ours, reference, relative=RELATIVE, absolute=ABSOLUTE)

    def _scores(
        self, inputs: dict[str, Any], both: Any, refusals: type[Exception]
    ) -> dict[str, float | str]:
        scores: dict[str, float | str] = {}
        for case in inputs["cases"]:
            scores |= numbers(case.name, PARTS, lambda c=case: both(c), refusals=refusals)
        return scores

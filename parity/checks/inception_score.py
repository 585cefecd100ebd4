"""Is the inception score the one of torch-fidelity, with images in the same order?"""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.check import METRIC, Finding
from parity.image_cases import KINDS, SIZES, numbers, picture, png, written
from parity.scores import compare_scores
from parity.seeded_inception import (
    fidelity_metrics,
    seeded_encoder,
    torch_weights,
    weight_shapes,
)

RELATIVE = 1e-5
SPLITS = 3
PARTS = ("mean", "deviation")


class InceptionScore:
    """Mean and deviation over parts, with seeded weights up to the classes."""

    name = "inception score"
    kind = METRIC
    needs = ("torch-fidelity>=0.4.0", "torch>=2.6", "torchvision>=0.21")
    tolerance = f"relative difference <= {RELATIVE:g}"

    def inputs(self, subject: None, seed: int) -> dict[str, Any]:
        """Return the seed of the weights, and a folder for each case."""
        draw = np.random.default_rng(seed)
        cases = {"mixed kinds and sizes, uneven parts": 11, "no picture": 0}
        folders = {
            name: {
                f"{i:02}.png": png(picture(draw, *SIZES[i % len(SIZES)]), KINDS[i % len(KINDS)])
                for i in range(count)
            }
            for name, count in cases.items()
        }
        return {"seed": seed, "shapes": weight_shapes(), "folders": folders}

    def ours(self, subject: None, inputs: dict[str, Any]) -> dict[str, float | str]:
        """Return the mean and the deviation of each folder."""
        from dew.evaluation.image_folders import folder_features
        from dew.evaluation.inception_score import inception_score

        encoder = seeded_encoder(inputs["seed"], features=1008, mode="torch-fidelity")

        def both(folder: Any) -> tuple[float, ...]:
            return inception_score(folder_features(folder, encoder), splits=SPLITS)

        return self._scores(inputs, both, ValueError)

    def reference(self, subject: None, inputs: dict[str, Any]) -> dict[str, float | str]:
        """Return torch-fidelity's mean and deviation of each folder."""
        state = torch_weights(inputs["seed"], inputs["shapes"])

        def both(folder: Any) -> tuple[float, ...]:
            found = fidelity_metrics(state, 1, input1=str(folder), isc=True, isc_splits=SPLITS)
            return tuple(found[f"inception_score_{name}"] for name in ("mean", "std"))

        return self._scores(inputs, both, Exception)

    def compare(self, ours: dict[str, Any], reference: dict[str, Any]) -> Finding:
        """Ask for torch-fidelity's numbers."""
        return compare_scores(ours, reference, relative=RELATIVE, absolute=RELATIVE)

    def _scores(
        self, inputs: dict[str, Any], both: Any, refusals: type[Exception]
    ) -> dict[str, float | str]:
        scores: dict[str, float | str] = {}
        for name, files in inputs["folders"].items():
            with written(files) as (folder,):
                scores |= numbers(name, PARTS, lambda f=folder: both(f), refusals=refusals)
        return scores

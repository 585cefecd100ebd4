"""Is LPIPS the one of torchmetrics?"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parity.picture_pairs import PairedScores, Score

NET = "alex"


class Lpips(PairedScores):
    """AlexNet with seeded weights, and the trained heads that come with torchmetrics."""

    name = "lpips"
    needs = ("torchmetrics>=1.5", "torch>=2.6", "torchvision>=0.21")
    tools = ("torchmetrics",)
    relative, absolute = 1e-4, 1e-7
    tolerance = f"relative difference <= {relative:g}, or <= {absolute:g}"

    def inputs(self, subject: None, seed: int) -> dict[str, Any]:
        """Return the files, and the trunk's weights by torchvision's names."""
        return {**super().inputs(subject, seed), "trunk": _trunk(seed)}

    def metric(self, tool: str, inputs: dict[str, Any]) -> Any:
        """Return dew's metric with the seeded trunk."""
        from bridges.encoders.perceptual import load_perceptual
        from dew.evaluation.perceptual import PerceptualDistance

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trunk.npz"
            np.savez(path, **inputs["trunk"])
            return PerceptualDistance(load_perceptual(NET, path))

    def score(self, tool: str, inputs: dict[str, Any]) -> Score:
        """Return torchmetrics' distance of a pair, with the seeded trunk."""
        import torch
        import torchmetrics.functional.image.lpips as theirs
        import torchvision

        from parity.seeded_inception import replaced

        features = torchvision.models.alexnet(weights=None).features
        features.load_state_dict(
            {
                name.removeprefix("features."): torch.from_numpy(np.asarray(value))
                for name, value in inputs["trunk"].items()
            }
        )
        with replaced(theirs, "_get_tv_model_features", lambda *args: features):
            network = theirs._NoTrainLpips(net=NET).eval()

        def of_torchmetrics(made: np.ndarray, real: np.ndarray) -> float:
            sides = [torch.from_numpy(side).permute(2, 0, 1)[None] for side in (made, real)]
            with torch.no_grad():
                return float(network(*(side.float() / 127.5 - 1 for side in sides)))

        return of_torchmetrics


def _trunk(seed: int) -> dict[str, np.ndarray]:
    """Return seeded weights and biases of AlexNet's convolutions."""
    shapes = {
        0: (64, 3, 11),
        3: (192, 64, 5),
        6: (384, 192, 3),
        8: (256, 384, 3),
        10: (256, 256, 3),
    }
    draw = np.random.default_rng(seed)
    drawn = {}
    for place, (features, channels, side) in shapes.items():
        spread = np.float32(np.sqrt(2 / (channels * side * side)))
        kernel = draw.standard_normal((features, channels, side, side), np.float32)
        drawn[f"features.{place}.weight"] = kernel * spread
        drawn[f"features.{place}.bias"] = draw.uniform(-0.1, 0.1, features).astype(np.float32)
    return drawn

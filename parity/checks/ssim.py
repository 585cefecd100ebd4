"""Is SSIM the one of torchmetrics and of scikit-image?"""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.picture_pairs import PairedScores, Score


class Ssim(PairedScores):
    """scikit-image with the paper's window, which lies inside; torchmetrics' crosses the edge."""

    name = "ssim"
    needs = ("torchmetrics>=1.5", "torch>=2.6", "scikit-image>=0.24")
    tools = ("torchmetrics", "scikit-image")
    relative, absolute = 1e-6, 1e-6
    tolerance = f"difference <= {absolute:g}"

    def metric(self, tool: str, inputs: dict[str, Any]) -> Any:
        """Return dew's metric with the tool's border."""
        from dew.evaluation.image_quality import StructuralSimilarity

        return StructuralSimilarity("reflect" if tool == "torchmetrics" else "valid")

    def score(self, tool: str, inputs: dict[str, Any]) -> Score:
        """Return a tool's SSIM of a pair."""
        if tool == "scikit-image":
            return _of_scikit_image
        import torch
        from torchmetrics.functional.image import structural_similarity_index_measure as theirs

        def of_torchmetrics(made: np.ndarray, real: np.ndarray) -> float:
            first, second = (
                torch.from_numpy(side).double().permute(2, 0, 1)[None] for side in (made, real)
            )
            found: Any = theirs(first, second, data_range=255.0, sigma=1.5, kernel_size=11)
            return float(found)

        return of_torchmetrics


def _of_scikit_image(made: np.ndarray, real: np.ndarray) -> float:
    from skimage.metrics import structural_similarity

    found: Any = structural_similarity(
        made,
        real,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=255,
        channel_axis=-1,
    )
    return found

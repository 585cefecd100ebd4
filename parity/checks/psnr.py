"""Is PSNR the one of torchmetrics and of scikit-image?"""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.picture_pairs import PairedScores, Score


class Psnr(PairedScores):
    """The logarithm before the mean, the peak that of bytes."""

    name = "psnr"
    needs = ("torchmetrics>=1.5", "torch>=2.6", "scikit-image>=0.24")
    tools = ("torchmetrics", "scikit-image")
    relative, absolute = 1e-6, 1e-6
    tolerance = f"relative difference <= {relative:g}"

    def metric(self, tool: str, inputs: dict[str, Any]) -> Any:
        """Return dew's metric; both tools give its numbers."""
        from dew.evaluation.image_quality import SignalToNoise

        return SignalToNoise()

    def score(self, tool: str, inputs: dict[str, Any]) -> Score:
        """Return a tool's PSNR of a pair."""
        if tool == "scikit-image":
            from skimage.metrics import peak_signal_noise_ratio

            return lambda made, real: peak_signal_noise_ratio(real, made, data_range=255)
        import torch
        from torchmetrics.functional.image import peak_signal_noise_ratio as theirs

        def of_torchmetrics(made: np.ndarray, real: np.ndarray) -> float:
            wide = [torch.from_numpy(side).double() for side in (made, real)]
            return float(theirs(*wide, data_range=255.0))

        return of_torchmetrics

"""The checks of metrics, which are about no model: their names and where they live."""

from __future__ import annotations

from collections.abc import Mapping

METRICS: Mapping[str, str] = {
    "psnr": "parity.checks.psnr:Psnr",
    "ssim": "parity.checks.ssim:Ssim",
    "lpips": "parity.checks.lpips:Lpips",
    "clip score": "parity.checks.clip_score:ClipScore",
    "fid": "parity.checks.fid:Fid",
    "clean fid": "parity.checks.clean_fid:CleanFid",
    "torch-fidelity fid": "parity.checks.fidelity_fid:FidelityFid",
    "torchmetrics fid": "parity.checks.torchmetrics_fid:TorchmetricsFid",
    "kid": "parity.checks.kid:Kid",
    "inception score": "parity.checks.inception_score:InceptionScore",
}
"""Every check's name and where it lives, in the order that they run."""

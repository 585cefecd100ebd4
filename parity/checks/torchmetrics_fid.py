"""Is FID in mode `torchmetrics` the one of that tool, on pictures of every kind?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity.folder_distance import FolderDistance
from parity.seeded_inception import weights_file


class TorchmetricsFid(FolderDistance):
    """torchmetrics 1.9 with its defaults, given the bytes of the pictures."""

    name = "torchmetrics fid"
    mode = "torchmetrics"
    needs = ("torchmetrics>=1.9", "torch-fidelity>=0.4.0", "torch>=2.6", "torchvision>=0.21")

    def network(self, state: dict[str, Any], features: int) -> Any:
        """Return the tool's network, with the given weights and features."""
        from torchmetrics.image.fid import FrechetInceptionDistance

        with weights_file(state) as file:
            return FrechetInceptionDistance(features, feature_extractor_weights_path=str(file))

    def distance(self, folders: Sequence[Path], network: Any, batch: int) -> float:
        """Return the tool's distance of two folders."""
        network.reset()
        for folder, real in zip(folders, (False, True), strict=True):
            for images in _batches(folder, batch):
                network.update(images, real=real)
        return float(network.compute())

    def mean_features(self, folder: Path, network: Any) -> np.ndarray:
        """Return the tool's mean features [2048] of a folder's pictures."""
        encode = network.inception
        return np.mean([encode(images).numpy()[0] for images in _batches(folder, 1)], 0)


def _batches(folder: Path, batch: int) -> Iterator[Any]:
    """Yield the pictures of a folder as bytes [n, 3, H, W]."""
    import torch
    from PIL import Image

    files = sorted(folder.iterdir())
    for start in range(0, len(files), batch):
        images = [np.array(Image.open(f).convert("RGB")) for f in files[start : start + batch]]
        yield torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)

"""Is FID in mode `torch-fidelity` the one of that tool, on pictures of every kind?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity.folder_distance import FolderDistance
from parity.seeded_inception import fidelity_metrics, fidelity_options


class FidelityFid(FolderDistance):
    """torch-fidelity 0.4.0, through `calculate_metrics`."""

    name = "torch-fidelity fid"
    mode = "torch-fidelity"
    needs = ("torch-fidelity>=0.4.0", "torch>=2.6", "torchvision>=0.21")

    def network(self, state: dict[str, Any], features: int) -> Any:
        """Return the tool's network, with the given weights and features."""
        return state, features

    def distance(self, folders: Sequence[Path], network: Any, batch: int) -> float:
        """Return the tool's distance of two folders."""
        state, features = network
        first, second = map(str, folders)
        found = fidelity_metrics(
            state, batch, input1=first, input2=second, fid=True, feature_layer_fid=str(features)
        )
        return found["frechet_inception_distance"]

    def mean_features(self, folder: Path, network: Any) -> np.ndarray:
        """Return the tool's mean features [2048] of a folder's pictures."""
        from torch_fidelity.metric_fid import fid_input_id_to_statistics
        from torch_fidelity.utils import create_feature_extractor

        with fidelity_options(network[0], 1) as options:
            extractor = create_feature_extractor("inception-v3-compat", ["2048"], **options)
            found = fid_input_id_to_statistics(1, extractor, "2048", input1=str(folder), **options)
        return found["mu"]

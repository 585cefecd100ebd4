"""Is FID in mode `clean-fid` the one of that tool, on pictures of every kind?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity.folder_distance import FolderDistance
from parity.seeded_inception import replaced


class CleanFid(FolderDistance):
    """clean-fid 0.1.35 in its mode "clean", with its own class of the network."""

    name = "clean fid"
    mode = "clean-fid"
    needs = ("clean-fid>=0.1.35", "scipy<1.18", "torch>=2.6", "torchvision>=0.21")

    def network(self, state: dict[str, Any], features: int) -> Any:
        """Return the tool's network, with the given weights and features."""
        import cleanfid.inception_pytorch as theirs

        with replaced(theirs, "load_state_dict_from_url", lambda *args, **options: state):
            return theirs.InceptionV3(
                [theirs.InceptionV3.BLOCK_INDEX_BY_DIM[features]],
                resize_input=False,
                normalize_input=False,
            ).eval()

    def distance(self, folders: Sequence[Path], network: Any, batch: int) -> float:
        """Return the tool's distance of two folders."""
        from cleanfid.fid import fid_from_feats

        return fid_from_feats(*(_features(folder, network, batch) for folder in folders))

    def mean_features(self, folder: Path, network: Any) -> np.ndarray:
        """Return the tool's mean features [2048] of a folder's pictures."""
        return _features(folder, network, 1).mean(0)


def _features(folder: Path, network: Any, batch: int) -> np.ndarray:
    import torch
    from cleanfid.fid import get_folder_features

    def encode(pixels: Any) -> Any:
        # As its scripted network does, whose file is only to be had over the network.
        return network((pixels - 128) / 128)[0].mean((2, 3))

    return get_folder_features(
        str(folder),
        encode,
        num_workers=0,
        batch_size=batch,
        device=torch.device("cpu"),
        mode="clean",
        verbose=False,
    )

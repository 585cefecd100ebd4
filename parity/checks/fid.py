"""Is FID in mode `pytorch-fid` the one of that tool, on pictures of every kind?"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity.folder_distance import FolderDistance
from parity.seeded_inception import replaced


class Fid(FolderDistance):
    """pytorch-fid 0.3.0, through the functions behind its command."""

    name = "fid"
    mode = "pytorch-fid"
    needs = ("pytorch-fid==0.3.0", "scipy<1.18", "torch>=2.6", "torchvision>=0.21")

    def network(self, state: dict[str, Any], features: int) -> Any:
        """Return the tool's network, with the given weights and features."""
        import pytorch_fid.inception as theirs

        with replaced(theirs, "load_state_dict_from_url", lambda *args, **options: state):
            return theirs.InceptionV3([theirs.InceptionV3.BLOCK_INDEX_BY_DIM[features]])

    def distance(self, folders: Sequence[Path], network: Any, batch: int) -> float:
        """Return the tool's distance of two folders."""
        from pytorch_fid.fid_score import calculate_frechet_distance

        sides = [_statistics(folder, network, 64, batch) for folder in folders]
        return calculate_frechet_distance(*sides[0], *sides[1])

    def mean_features(self, folder: Path, network: Any) -> np.ndarray:
        """Return the tool's mean features [2048] of a folder's pictures."""
        return _statistics(folder, network, 2048, 1)[0]


def _statistics(
    folder: Path, network: Any, features: int, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    from pytorch_fid.fid_score import compute_statistics_of_path

    # Its progress bar has no switch.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return compute_statistics_of_path(str(folder), network, batch, features, "cpu", 0)

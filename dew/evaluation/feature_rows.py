"""Feature rows of a pass, kept as they came: the state of metrics that need every image's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dew.errors import InputRefused


@dataclass(frozen=True)
class FeatureRows:
    """Features in the order of their images, as parts of [n, D]."""

    parts: tuple[NDArray[np.floating], ...] = ()

    def __len__(self) -> int:
        """How many images."""
        return sum(map(len, self.parts))

    def __add__(self, other: FeatureRows) -> FeatureRows:
        """Return the rows of both, these first."""
        return FeatureRows(self.parts + other.parts)

    def array(self) -> NDArray[np.float64]:
        """Return all rows, [N, D]; there must be one."""
        return np.concatenate(self.parts).astype(np.float64)


def feature_rows(features: ArrayLike) -> FeatureRows:
    """Return rows [N, D] as a state; N may be 0.

    Raises:
        InputRefused: not a matrix.
    """
    rows = np.asarray(features)
    if rows.ndim != 2:
        raise InputRefused(f"features have shape {rows.shape}; expected [rows, features]")
    return FeatureRows((rows,) if len(rows) else ())

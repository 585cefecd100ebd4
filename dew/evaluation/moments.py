"""Count, mean and scatter of feature rows: all that a Gaussian fit needs, however many rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dew.errors import InputRefused


@dataclass(frozen=True)
class Moments:
    """Sums over N rows of D features, float64.

    Attributes:
        count: N.
        mean: [D].
        scatter: [D, D], the sum of (x - mean)(x - mean)ᵀ.
    """

    count: int
    mean: NDArray[np.float64]
    scatter: NDArray[np.float64]

    def covariance(self) -> NDArray[np.float64]:
        """Return the unbiased covariance [D, D], scatter / (N - 1).

        Raises:
            ValueError: fewer than two rows.
        """
        if self.count < 2:
            raise ValueError(f"a covariance needs at least two rows; found {self.count}")
        return self.scatter / (self.count - 1)

    def gaussian(self) -> Gaussian:
        """Return the normal distribution of this mean and covariance.

        Raises:
            ValueError: fewer than two rows.
        """
        return Gaussian(self.mean, self.covariance(), min(self.count - 1, len(self.mean)))


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution fitted to feature rows.

    Attributes:
        mean: float64 [D].
        covariance: float64 [D, D].
        rank: at most this many of the covariance's eigenvalues are above 0.
    """

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    rank: int


def moments(features: ArrayLike) -> Moments:
    """Return the moments of feature rows.

    Args:
        features: [N, D]; N may be 0.

    Raises:
        InputRefused: not a matrix.
    """
    rows = np.asarray(features, np.float64)
    if rows.ndim != 2:
        raise InputRefused(f"features have shape {rows.shape}; expected [rows, features]")
    mean = rows.mean(0) if len(rows) else np.zeros(rows.shape[1])
    centred = rows - mean
    return Moments(len(rows), mean, centred.T @ centred)


def merged(total: Moments, part: Moments) -> Moments:
    """Return the moments of both populations together; `total`'s scatter is added to in place.

    Source: Chan, Golub and LeVeque 1979, the pairwise update: no large numbers are subtracted, so
    that a mean far from zero costs no digits.
    """
    if not total.count or not part.count:
        return part if part.count else total
    count = total.count + part.count
    shift = part.mean - total.mean
    mean = total.mean + shift * (part.count / count)
    scatter = total.scatter
    scatter += part.scatter
    scatter += np.outer(shift * (total.count * part.count / count), shift)
    return replace(total, count=count, mean=mean, scatter=scatter)

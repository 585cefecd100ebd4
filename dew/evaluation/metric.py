"""The contract of a metric: sufficient statistics, merged, divided once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from dew.errors import InputRefused, listed

S = TypeVar("S")


class Metric(Protocol[S]):
    """One score of a whole pass, on the host, in float64.

    It keeps nothing between calls: a pass's sums are an `S` that goes in and comes out. So the
    score is the same however the pass was cut into batches.
    """

    @property
    def name(self) -> str:
        """Its name in the log, after the split's."""
        ...

    @property
    def reads(self) -> type:
        """The artifact class it scores."""
        ...

    def __call__(self, artifact: Any, batch: Mapping[str, np.ndarray], /) -> S:
        """Return one batch's statistics."""
        ...

    def merge(self, total: S, part: S) -> S:
        """Return the statistics of both; `total` may be changed in place."""
        ...

    def finalize(self, total: S) -> float:
        """Return the score of a pass."""
        ...


def check_names(metrics: Iterable[Metric[Any]]) -> tuple[Metric[Any], ...]:
    """Return the metrics, once it is sure that no two of them share a name.

    Raises:
        InputRefused: some do; all such names are listed.
    """
    chosen = tuple(metrics)
    names = [metric.name for metric in chosen]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputRefused(
            listed("each metric of a pass needs a name of its own; given more than once:", twice)
        )
    return chosen

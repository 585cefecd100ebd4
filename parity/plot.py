"""What a check wants drawn: some lines, or a bar for each of its tensors or layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LINES, BARS = "lines", "bars"


@dataclass(frozen=True)
class Plot:
    """One picture of a report.

    Args:
        title: of the picture.
        across: what lies on the horizontal axis: layers, updates, tensors.
        up: what lies on the vertical one, with its unit.
        lines: heights by the name of their line, all of one length, in order.
        places: what stands at each height, or nothing for 0, 1, 2...
        kind: `LINES` or `BARS`.
        logarithmic: whether heights are shown by their logarithm.
    """

    title: str
    across: str
    up: str
    lines: Mapping[str, Sequence[float]]
    places: Sequence[str] = ()
    kind: str = LINES
    logarithmic: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the plot as JSON takes it; a height that is infinite or undefined is None."""
        lines = {
            name: [float(value) if math.isfinite(value) else None for value in heights]
            for name, heights in self.lines.items()
        }
        return {**vars(self), "lines": lines, "places": list(self.places)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Plot:
        """Return the plot that `to_dict` gave, None as not a number."""
        lines = {
            name: [math.nan if value is None else value for value in heights]
            for name, heights in record["lines"].items()
        }
        return cls(**{**record, "lines": lines})

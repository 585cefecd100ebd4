"""What a batch has to hold: fields, their shapes, and the check of the first batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dew.errors import InputRefused, listed, nearest


@dataclass(frozen=True)
class Field:
    """One field of a batch.

    Args:
        key: its name in the batch.
        shape: its shape for one example, without the batch axis.
    """

    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class InputSpec:
    """The fields an objective reads.

    Args:
        sample: the field that is learned.
        mask: the field that says which of its parts are real, or None.
        others: what else a batch must hold.
    """

    sample: Field
    mask: Field | None = None
    others: tuple[Field, ...] = ()

    def check(self, batch: Mapping[str, Any]) -> None:
        """Refuse a batch that lacks a field or holds one of another shape.

        Raises:
            InputRefused: all differences at once, with the fields that are there.
        """
        problems = []
        for field in (self.sample, self.mask, *self.others):
            if field is None:
                continue
            if field.key not in batch:
                problems.append(
                    f"no field {field.key!r}{nearest(field.key, batch)}; the batch holds"
                    f" {', '.join(sorted(batch)) or 'nothing'}"
                )
            elif np.shape(batch[field.key])[1:] != field.shape:
                problems.append(
                    f"{field.key!r} is {np.shape(batch[field.key])}; expected"
                    f" (batch, {', '.join(map(str, field.shape))})"
                )
        if problems:
            raise InputRefused(listed("the first batch does not fit the objective:", problems))

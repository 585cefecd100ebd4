"""What a checkpoint calls the labels that its head tells apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.errors import InputRefused, shown


def label_names(config: Mapping[str, Any], count: int) -> list[str]:
    """Return the name of each label.

    Args:
        config: the checkpoint's config.json; without an `id2label` the names are LABEL_0, LABEL_1
            and so on, as in transformers.
        count: how many labels the head has.

    Raises:
        InputRefused: an `id2label` that is no map from each of the numbers to a name.
    """
    named = config.get("id2label")
    if named is None:
        return [f"LABEL_{number}" for number in range(count)]
    if not isinstance(named, Mapping):
        raise InputRefused(
            f"config.json: id2label is {shown(named)}; expected an object that names each label"
        )
    names = {str(number): name for number, name in named.items()}
    lacking = [number for number in range(count) if str(number) not in names]
    if lacking:
        raise InputRefused(
            f"config.json: id2label has no name for {len(lacking)} of the head's {count} labels "
            f"(the first is {lacking[0]}). Name them all, or take id2label out"
        )
    return [str(names[str(number)]) for number in range(count)]

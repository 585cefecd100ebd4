"""What the classes of a table are called, and the number of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bridges.labels import label_names
from dew.cli.command import Settings
from dew.errors import InputRefused, shown

MOST_LABELS = 10_000


def class_names(
    settings: Settings,
    named: Sequence[str] | None,
    given: Iterable[Any],
    *,
    fewest: int = 2,
) -> tuple[str, ...]:
    """Return the classes' names: the source's, the model's own where they are the same, or sorted.

    Args:
        settings: which name the model.
        named: what the source calls the numbers, or None.
        given: every label of the data, texts or numbers.
        fewest: how many classes there must be.

    Raises:
        InputRefused: one class alone, more than make sense, labels that are neither, a negative
            number.
    """
    from bridges.finetune.source_config import source_config

    found = set(given)
    kinds = {type(label) for label in found}
    if not found:
        raise InputRefused("data: no row has a label")
    if not (kinds <= {str} or kinds <= {int} or kinds <= {bool}):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputRefused(f"data: labels of {names}; expected texts or whole numbers")
    own = label_names(source_config(settings))  # a model made for these labels keeps its head
    if named is not None:
        names = tuple(named)
    elif len(own) > 1 and {str(label) for label in found} <= set(own):
        names = own
    elif kinds <= {int}:
        if min(found) < 0:
            raise InputRefused(
                f"data: label {min(found)}; expected classes from 0, or texts. Rows without a "
                "label leave the field empty."
            )
        most = max(found) + 1
        names = own if most <= len(own) else tuple(f"LABEL_{n}" for n in range(most))
    else:
        names = tuple(sorted(map(str, found)))
    names = own if set(own) == set(names) else names
    if not fewest <= len(names) <= MOST_LABELS:
        raise InputRefused(
            f"data: {len(names)} class{'es' * (len(names) > 1)} ({shown(names[:3])}); expected "
            f"{fewest} to {MOST_LABELS}. Numbers to predict are given with a decimal point."
        )
    return names


def class_number(label: Any, names: Sequence[str]) -> int:
    """Return the number of a label.

    Raises:
        InputRefused: it is none of the names.
    """
    if type(label) is int and 0 <= label < len(names):
        return label
    if type(label) is not int and str(label) in names:
        return names.index(str(label))
    raise InputRefused(
        f"data: label {shown(label)} of the validation data is none of the training data's: "
        f"{', '.join(map(shown, names[:10]))}"
    )


def check_names(bundle: Any, names: Sequence[str]) -> None:
    """Refuse data with other labels than a finished model's.

    Raises:
        InputRefused: they differ.
    """
    own = label_names(bundle.config)
    if own != tuple(names):
        raise InputRefused(
            f"data: labels {', '.join(map(shown, list(names)[:10]))}, and the model has "
            f"{', '.join(map(shown, own[:10]))}; give data of its own labels"
        )

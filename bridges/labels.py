"""The labels of a classifier: their names in a config, and a config with other ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dew.errors import InputRefused, shown

DEFAULT_COUNT = 2
REGRESSION, SINGLE, MULTIPLE = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
)
"""What transformers calls the three losses of a classifier, in `problem_type`."""


def label_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a config's labels in their order: `LABEL_0` and so on where it has none.

    Raises:
        InputRefused: an `id2label` whose numbers do not run from 0.
    """
    named = config.get("id2label")
    if not isinstance(named, Mapping) or not named:
        count = config.get("num_labels", DEFAULT_COUNT)
        return tuple(f"LABEL_{number}" for number in range(int(count)))
    by_number = {str(number): str(name) for number, name in named.items()}
    wanted = [str(number) for number in range(len(by_number))]
    if set(wanted) != set(by_number):
        raise InputRefused(
            f"config.json: id2label names {shown(sorted(by_number))}; expected the numbers from 0 "
            f"to {len(by_number) - 1}"
        )
    return tuple(by_number[number] for number in wanted)


def relabelled(
    config: Mapping[str, Any], labels: Sequence[str], *, problem: str | None = None
) -> dict[str, Any]:
    """Return a config whose classifier has these labels.

    Args:
        config: as it was read; it is not changed.
        labels: the names, each another, in the order of the head's outputs.
        problem: `problem_type`; None leaves the config's.

    Raises:
        InputRefused: no label, or one name twice.
    """
    names = [str(label) for label in labels]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        found = f"{', '.join(map(shown, twice))} more than once" if twice else "none"
        raise InputRefused(f"labels: found {found}; expected one name or more, each another")
    kept = {name: value for name, value in config.items() if name != "num_labels"}
    kept["id2label"] = {str(number): name for number, name in enumerate(names)}
    kept["label2id"] = {name: number for number, name in enumerate(names)}
    return kept if problem is None else {**kept, "problem_type": problem}

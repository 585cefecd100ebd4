"""The `data` section: the settings of a registered dataset, read from and written to a mapping."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dew.config.parts import known_fields, plain_section
from dew.config.values import arguments, built
from dew.errors import InputRefused, UnknownName, shown
from dew.registry import datasets


def name_of(settings: Any) -> str:
    """Return the name in `dew.datasets` of a dataset's settings.

    Raises:
        InputRefused: its class is not registered, or no dataclass.
    """
    for name in datasets:
        if datasets[name] is type(settings) and dataclasses.is_dataclass(settings):
            return name
    raise InputRefused(
        f"data is a {type(settings).__name__}; expected settings of a registered dataset "
        f"({', '.join(datasets)}) such as datasets['token_windows'](seq_len=8)"
    )


def data_to_dict(settings: Any) -> dict[str, Any] | None:
    """Return the settings with their dataset's name, in JSON's types."""
    return None if settings is None else {"name": name_of(settings), **plain_section(settings)}


def data_from_dict(value: Any, problems: list[str]) -> Any:
    """Return the settings that a mapping holds, or None with what is wrong in `problems`."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        problems.append(
            f"data is {shown(value)}; expected a mapping with the name of a dataset: "
            f"{', '.join(datasets)}"
        )
        return None
    try:
        cls = datasets[value["name"]]
    except UnknownName as error:
        problems.append(f"data.name: {error}")
        return None
    known, before = known_fields(cls), len(problems)
    rest = {name: part for name, part in value.items() if name != "name"}
    given = arguments(rest, known, "data", problems)
    missing = [name for name, each in known.items() if each.required and name not in rest]
    problems.extend(f"data.{name} is missing" for name in missing)
    if len(problems) > before:
        return None
    try:
        home = cls.__module__
        return cls(**{name: built(part, known[name].hint, home) for name, part in given.items()})
    except InputRefused as error:
        problems.append(f"data: {error}")
        return None

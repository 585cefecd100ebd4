"""Which columns of a table a task reads: those that were named, else those that people call so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dew.errors import InputRefused, nearest, shown

SHOWN_COLUMNS = 12


def chosen_columns(
    columns: Mapping[str, str],
    asked: Sequence[str],
    usual: Sequence[Sequence[str]],
    *,
    what: str,
    flag: str,
) -> tuple[str, ...]:
    """Return the names of a task's columns in a table.

    Args:
        columns: those of the table, by name.
        asked: names that were given; empty leaves the choice to `usual`.
        usual: sets of names in the order in which they are looked for.
        what: what the columns hold, for the message.
        flag: the setting that names them.

    Raises:
        InputRefused: a name that the table lacks, or none of the usual ones in it.
    """
    there = ", ".join(shown(name, 40) for name in list(columns)[:SHOWN_COLUMNS]) or "none"
    for name in asked:
        if name not in columns:
            raise InputRefused(
                f"data: no column {shown(name)}; there is {there}{nearest(name, columns)}"
            )
    if asked:
        return tuple(asked)
    lower = {name.lower(): name for name in columns}
    for names in usual:
        if all(name in lower for name in names):
            return tuple(lower[name] for name in names)
    raise InputRefused(f"data: no column with {what}; there is {there}. Name it with --{flag}.")

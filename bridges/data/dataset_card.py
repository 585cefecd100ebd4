"""The configurations that a dataset repository's README names: which files are which split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bridges.files.regular_file import contained, open_regular, shown_path
from dew.errors import InputRefused, UnknownName, nearest, shown

CARD = "README.md"
CARD_LIMIT = 1 << 20
FENCE = "---"


@dataclass(frozen=True)
class Configuration:
    """One table of a repository that holds several.

    Args:
        name: as the card has it.
        patterns: the files of each split, as patterns seen from the repository; None where the
            split is told by the files' names.
        folder: what the files lie in; None for anywhere.
        default: whether the card says that it is the one meant by no name.
    """

    name: str
    patterns: Mapping[str, Sequence[str]] | None = None
    folder: str | None = None
    default: bool = False

    def files(self, names: Sequence[str], split: str) -> list[str] | None:
        """Return the names of a split's files; None where their own names tell.

        Raises:
            UnknownName: no such split; the message says which there are.
        """
        if self.patterns is None:
            return None
        if split not in self.patterns:
            raise UnknownName(
                f"split: found {shown(split)}, but {shown(self.name)} has "
                f"{', '.join(map(shown, self.patterns))}{nearest(split, self.patterns)}"
            )
        wanted = self.patterns[split]
        return [name for name in names if any(fnmatchcase(name, p) for p in wanted)]

    def inside(self, names: Sequence[str]) -> list[str]:
        """Return those of the names that lie in the configuration's folder."""
        if self.folder is None:
            return list(names)
        start = self.folder.strip("/").removeprefix("./") + "/"
        return [name for name in names if name.startswith(start)]


def configuration(folder: Path, name: str | None) -> Configuration | None:
    """Return a folder's configuration of a name, or the one that is meant without a name.

    Args:
        folder: a dataset repository, or any other folder.
        name: which; None for the default.

    Returns:
        The configuration, or None where the folder's card names none.

    Raises:
        UnknownName: no such one. InputRefused: several, and none is meant without a name.
    """
    found = configurations(folder)
    names = [each.name for each in found]
    if name is not None:
        if name not in names:
            raise UnknownName(
                f"name: found {shown(name)}, but {shown_path(folder)} has "
                f"{', '.join(map(shown, names)) or 'no configurations'}{nearest(name, names)}"
            )
        return found[names.index(name)]
    if not found:
        return None
    meant = [each for each in found if each.default] or [e for e in found if e.name == "default"]
    meant = meant or (found if len(found) == 1 else [])
    if not meant:
        raise InputRefused(
            f"{shown_path(folder)}: it has the configurations {', '.join(map(shown, names))}. "
            "Expected one of these as name."
        )
    return meant[0]


def configurations(folder: Path) -> list[Configuration]:
    """Return the configurations in the head of a folder's README.md; none if it has none."""
    import yaml

    try:
        with open_regular(contained(folder, CARD)) as file:
            text = file.read(CARD_LIMIT).decode("utf-8", "replace")
    except InputRefused:
        return []
    lines = text.splitlines()
    if not lines or lines[0].strip() != FENCE or FENCE not in [s.strip() for s in lines[1:]]:
        return []
    end = [line.strip() for line in lines[1:]].index(FENCE)
    try:
        head = yaml.safe_load("\n".join(lines[1 : end + 1]))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []  # a card is prose first; one that cannot be read names nothing
    entries = head.get("configs") if isinstance(head, dict) else None
    return [
        _configuration(entry)
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("config_name"), str)
    ]


def _configuration(entry: Mapping[str, Any]) -> Configuration:
    given = entry.get("data_files")
    patterns: dict[str, list[str]] | None = None
    if isinstance(given, list) and given and all(isinstance(part, dict) for part in given):
        patterns = {str(part.get("split", "train")): _texts(part.get("path")) for part in given}
    elif given is not None:
        patterns = {"train": _texts(given)}
    folder = entry.get("data_dir")
    return Configuration(
        entry["config_name"],
        patterns,
        folder if isinstance(folder, str) and folder.strip("./") else None,
        entry.get("default") is True,
    )


def _texts(value: Any) -> list[str]:
    parts = value if isinstance(value, list) else [value]
    return [part.removeprefix("./") for part in parts if isinstance(part, str)]

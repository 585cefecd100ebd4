"""What a subcommand declares: its options as data, and where its function lives."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dew.errors import InputRefused, shown

NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True)
class Option:
    """One setting: a flag of the command line and a key of the configuration file.

    Args:
        name: the canonical name, with underscores as Hugging Face writes it.
        kind: one of "integer" (takes 32K and 1m), "number", "text", "switch", "texts" (also cut
            at commas), "pairs" (texts such as `a.b=1`; the flag may stand several times),
            "parts" (a list of mappings, as YAML or JSON on the command line).
        default: the value when neither a flag nor the file gives one.
        help: one line.
        aliases: further spellings, underscores too.
        choices: the only texts allowed, of parts the only keys; empty means any.
        low: the smallest value allowed, if any.
        high: the largest value allowed, if any.
        positional: whether the value may stand without its flag, in the order of declaration.
        required: whether a run without it is refused.
        implies: settings that follow when this one is given and they are not.
        pathless: whether the value is a name that becomes a file name: letters, digits, `._-`.
        section: the heading it stands under in the help.
    """

    name: str
    kind: str
    default: Any
    help: str
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    positional: bool = False
    required: bool = False
    implies: Mapping[str, Any] = field(default_factory=dict)
    pathless: bool = False
    section: str = "options"

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name the option goes by, the canonical one first."""
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class Former:
    """A name that transformers 5 removed and people still type.

    Args:
        name: the old name.
        use: the option that takes its value, or None if the value has no effect any more.
        note: what to say about it, one line.
    """

    name: str
    use: str | None
    note: str


@dataclass(frozen=True)
class Command:
    """A subcommand of `dew`, cheap to import: only data and the address of its function.

    Args:
        name: what is typed after `dew`.
        summary: one line for `dew --help`.
        options: its settings.
        run: "module:function"; the function takes `Settings` and returns an exit status or None.
            With `raw` it takes the untouched list of arguments instead.
        formers: removed names it still accepts.
        raw: whether the function reads its own arguments.
        translate: "module:function" that turns a configuration file's mapping, which may be
            another tool's, into one of this command's and lines worth telling; "" for none.
    """

    name: str
    summary: str
    options: tuple[Option, ...] = ()
    run: str = ""
    formers: tuple[Former, ...] = ()
    raw: bool = False
    translate: str = ""

    def function(self) -> Callable[[Any], int | None]:
        """Import and return the function behind the command."""
        return _imported(self.run)

    def translated(self, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return a configuration file's mapping as this command's, and lines worth telling."""
        return _imported(self.translate)(values) if self.translate else (values, ())


def _imported(place: str) -> Callable[..., Any]:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class Settings:
    """The merged configuration of one call.

    Args:
        command: the subcommand's name.
        values: every option's value by canonical name.
        origins: where each value came from: "flag", "default", the file's name, "implied by ...".
        notes: lines worth telling the user: renamed flags, keys of other commands.
        argv: the arguments as typed, without the program's name.
        objects: what a call from Python gave that no file can hold, by the text that stands for
            it among the values.
    """

    command: str
    values: Mapping[str, Any]
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    objects: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return the value of option `name`."""
        return self.values[name]

    def given(self, name: str) -> bool:
        """Whether a flag or the file set `name`."""
        return self.origins[name] != "default"

    def lines(self) -> Iterator[str]:
        """Yield the configuration as aligned lines: name, value, origin."""
        width = max((len(name) for name in self.values), default=0)
        shown_values = {name: shown(value, 60) for name, value in self.values.items()}
        column = max((len(text) for text in shown_values.values()), default=0)
        for name, text in shown_values.items():
            yield f"  {name:<{width}}  {text:<{column}}  {self.origins[name]}"


def check_name(name: str, what: str) -> str:
    """Return `name` if it is safe as the name of a file.

    Raises:
        InputRefused: other characters than letters, digits, `.`, `_` and `-`, a leading `.` or
            `-`, or more than 100 characters.
    """
    if not _NAME.fullmatch(name):
        raise InputRefused(
            f"{what} is {shown(name)}; expected 1 to 100 letters, digits, '.', '_' or '-', "
            "not starting with '.' or '-'"
        )
    return name

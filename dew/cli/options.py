"""Merging flags, a configuration file and defaults into one set of settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from dew.cli.command import Command, Option, Settings
from dew.cli.config_file import read_config
from dew.cli.values import file_value, typed_value
from dew.errors import InputRefused, listed, nearest, shown

CONFIG = Option(
    "config", "text", None, "a YAML or JSON file of these settings; flags win", section="general"
)
_SWITCH_WORDS = ("true", "false", "yes", "no", "on", "off", "0", "1")


@dataclass
class _Merge:
    """What has been read so far, and every problem met on the way."""

    values: dict[str, Any]
    origins: dict[str, str]
    problems: list[str]
    notes: list[str]

    def take(self, read: Callable[..., Any], option: Option, raw: Any, origin: str) -> None:
        try:
            self.values[option.name] = read(option, raw)
            self.origins[option.name] = origin
        except InputRefused as error:
            self.problems.append(f"{error} ({origin})")


def parse(command: Command, argv: Sequence[str], *, elsewhere: Iterable[str] = ()) -> Settings:
    """Return the merged settings of `command` for the arguments `argv`.

    Args:
        command: what is being run.
        argv: the arguments after the command's name.
        elsewhere: names that a configuration file may hold for other commands; they are noted
            and left out.

    Raises:
        InputRefused: one error that lists every unknown, missing or unfit flag and key.
    """
    options = {spelling: option for option in command.options for spelling in option.spellings}
    merge = _Merge({}, {}, [], [])
    typed, loose = _scan(command, options, list(argv), merge)
    if typed.get("config") and "config" not in options:
        _merge_file(command, options, typed["config"], frozenset(elsewhere), merge)
    _merge_typed(command, options, typed, loose, merge)
    return _settled(command, merge, tuple(argv))


def settings_from(command: Command, values: Mapping[str, Any], where: str) -> Settings:
    """Return the merged settings of `command` for values by name, as a file would hold them.

    Args:
        command: what is being run.
        values: None counts as not given.
        where: where they come from, for messages.

    Raises:
        InputRefused: as `parse`.
    """
    options = {spelling: option for option in command.options for spelling in option.spellings}
    merge = _Merge({}, {}, [], [])
    given = {name: value for name, value in values.items() if value is not None}
    _merge_values(command, options, given, where, frozenset(), merge)
    return _settled(command, merge, ())


def _settled(command: Command, merge: _Merge, argv: tuple[str, ...]) -> Settings:
    """Return what was read with what follows from it and the defaults.

    Raises:
        InputRefused: every problem met on the way.
    """
    _merge_implied(command, merge)
    for option in command.options:
        merge.values.setdefault(option.name, option.default)
        merge.origins.setdefault(option.name, "default")
        if option.required and merge.values[option.name] is None:
            flags = " or ".join("--" + name for name in option.spellings)
            merge.problems.append(f"{option.name} is missing: give {flags}")
    if merge.problems:
        heading = f"dew {command.name}: {len(merge.problems)} problem(s) in the settings:"
        raise InputRefused(listed(heading, merge.problems))
    order = [option.name for option in command.options]
    return Settings(
        command.name,
        {name: merge.values[name] for name in order},
        {name: merge.origins[name] for name in order},
        tuple(merge.notes),
        argv,
    )


class _Parser(argparse.ArgumentParser):
    """argparse without its exits: a wrong line becomes an `InputRefused`."""

    def error(self, message: str) -> NoReturn:
        raise InputRefused(message)


def _scan(
    command: Command, options: Mapping[str, Option], argv: list[str], merge: _Merge
) -> tuple[dict[str, Any], list[str]]:
    """Return the flags typed, by canonical name, and the arguments without a flag."""
    parser = _Parser(add_help=False, allow_abbrev=False, prog=f"dew {command.name}")
    # A command whose own `config` is no file of flags reads it itself.
    for option in (*command.options, *(() if "config" in options else (CONFIG,))):
        parser.add_argument(
            *(f"--{name}" for name in option.spellings),
            dest=option.name,
            default=None,
            action="extend" if option.kind == "pairs" else "store",
            nargs="+" if option.kind in ("texts", "pairs", "parts") else None,
        )
    for former in command.formers:
        parser.add_argument(f"--{former.name}", dest=f"former:{former.name}", default=None)
    switches = {name for name, option in options.items() if option.kind == "switch"}
    switches |= {former.name for former in command.formers if former.use is None}
    try:
        found, rest = parser.parse_known_args(_normal(argv, switches))
    except InputRefused as error:
        raise InputRefused(f"dew {command.name}: {error}") from error
    typed = {name: value for name, value in vars(found).items() if value is not None}
    known = [*options, "config", *(former.name for former in command.formers)]
    loose = []
    for word in rest:
        if word.startswith("--") and len(word) > 2:
            name = word[2:].partition("=")[0]
            merge.problems.append(f"unknown flag --{shown(name)[1:-1]}{_near_flag(name, known)}")
        elif word != "--":
            loose.append(word)
    return typed, loose


def _normal(argv: list[str], switches: set[str]) -> list[str]:
    """Return the arguments with underscores in flag names and a value joined to every switch."""
    out: list[str] = []
    words = iter(range(len(argv)))
    for at in words:
        word = argv[at]
        if word == "--":
            return [*out, *argv[at:]]
        if not word.startswith("--"):
            out.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if name.removeprefix("no_") in switches and name not in switches and not equals:
            out.append(f"--{name.removeprefix('no_')}=false")
        elif name in switches and not equals:
            follows = argv[at + 1].lower() if at + 1 < len(argv) else ""
            joined = follows in _SWITCH_WORDS
            if joined:
                next(words)
            out.append(f"--{name}={follows if joined else 'true'}")
        else:
            out.append(f"--{name}{equals}{value}")
    return out


def _merge_file(
    command: Command,
    options: Mapping[str, Option],
    path: str,
    elsewhere: frozenset[str],
    merge: _Merge,
) -> None:
    values, notes = command.translated(read_config(path))
    merge.notes += [f"{path}: {note}" for note in notes]
    _merge_values(command, options, values, path, elsewhere, merge)


def _merge_values(
    command: Command,
    options: Mapping[str, Option],
    values: Mapping[str, Any],
    path: str,
    elsewhere: frozenset[str],
    merge: _Merge,
) -> None:
    formers = {former.name: former for former in command.formers}
    skipped = []
    for key, value in values.items():
        name = key.replace("-", "_")
        meant = formers[name].use if name in formers else name
        option = options.get(meant or "")
        if option is not None and option.name in merge.values:
            merge.problems.append(f"{option.name} stands twice in {path}")
        if name in options:
            merge.take(file_value, options[name], value, path)
        elif name in formers:
            _take_former(formers[name], options, file_value, value, path, merge)
        elif name in elsewhere:
            skipped.append(name)
        else:
            merge.problems.append(f"unknown key {shown(key)} in {path}{nearest(name, options)}")
    if skipped:
        merge.notes.append(f"{path}: not used by dew {command.name}: {', '.join(skipped)}")


def _merge_typed(
    command: Command,
    options: Mapping[str, Option],
    typed: Mapping[str, Any],
    loose: list[str],
    merge: _Merge,
) -> None:
    formers = {f"former:{former.name}": former for former in command.formers}
    for name, raw in typed.items():
        if name in formers:
            _take_former(formers[name], options, typed_value, raw, "flag", merge)
        elif name in options:
            merge.take(typed_value, options[name], raw, "flag")
    places = [option for option in command.options if option.positional]
    for option in places:
        if loose and option.name not in typed:
            merge.take(typed_value, option, loose.pop(0), "flag")
    for word in loose:
        merge.problems.append(f"unexpected argument {shown(word)}")


def _take_former(
    former: Any,
    options: Mapping[str, Option],
    read: Callable[..., Any],
    raw: Any,
    origin: str,
    merge: _Merge,
) -> None:
    merge.notes.append(f"{former.name}: {former.note}")
    if former.use is not None:
        merge.take(read, options[former.use], raw, f"{origin} {former.name}")


def _merge_implied(command: Command, merge: _Merge) -> None:
    for option in command.options:
        if option.name in merge.origins and merge.values[option.name] is not None:
            for name, value in option.implies.items():
                if name not in merge.origins:
                    merge.values[name] = value
                    merge.origins[name] = f"implied by {option.name}"


def _near_flag(name: str, known: Iterable[str]) -> str:
    """Return the nearest flags, written as they are typed."""
    return nearest("--" + name.replace("-", "_"), ["--" + other for other in known])

"""`dew config`: the settings that a run would have and where each came from, or their schema."""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib.metadata import entry_points

from dew.cli.command import Command, Option, Settings
from dew.cli.help import help_asked
from dew.cli.options import parse
from dew.cli.schema import json_schema
from dew.errors import UnknownName, nearest, shown

FINETUNE = "finetune"
OWN = (
    Option("command", "text", FINETUNE, "the command whose settings are meant", section="config"),
    Option(
        "schema",
        "switch",
        False,
        "print the JSON schema of the file that --config reads, and nothing else",
        section="config",
    ),
)
COMMAND = Command(
    "config",
    "show the merged settings of a run and where each came from, or their JSON schema",
    OWN,
    run="dew.cli.config:run",
    raw=True,
)


def run(words: list[str]) -> int:
    """Print the settings that `words` give to a command, or the schema of its file; return 0.

    A setting that the command needs and does not have is named on stderr; nothing is run.

    Args:
        words: `--command NAME`, `--schema`, and the flags of the command, by default finetune.

    Raises:
        InputRefused: no such command, or settings that it would refuse.
    """
    others = _others()
    chosen = others[_named(words, others)]
    optional = tuple(dataclasses.replace(option, required=False) for option in chosen.options)
    whole = dataclasses.replace(COMMAND, options=(*OWN, *optional), formers=chosen.formers)
    if (text := help_asked(whole, words)) is not None:
        print(text)
        return 0
    elsewhere = sorted(
        spelling
        for command in others.values()
        if command.name != chosen.name
        for option in command.options
        for spelling in option.spellings
    )
    # Messages are about the command that will read these settings.
    settings = parse(dataclasses.replace(whole, name=chosen.name), words, elsewhere=elsewhere)
    if settings["schema"]:
        print(json.dumps(json_schema(chosen, elsewhere), indent=2))
        return 0
    _show(settings, chosen)
    return 0


def _show(settings: Settings, chosen: Command) -> None:
    names = [option.name for option in chosen.options]
    shown_settings = dataclasses.replace(
        settings,
        values={name: settings.values[name] for name in names},
        origins={name: settings.origins[name] for name in names},
    )
    print("\n".join([f"settings of dew {chosen.name}", *shown_settings.lines()]))
    for note in settings.notes:
        print(note, file=sys.stderr)
    for option in chosen.options:
        if option.required and settings[option.name] is None:
            flags = " or ".join(f"--{name}" for name in option.spellings)
            print(f"{option.name} is missing: give {flags}", file=sys.stderr)


def _others() -> dict[str, Command]:
    """Return every other command that takes settings and whose package imports here."""
    from dew.cli.main import GROUP, usable_commands

    found = {point.name: point for point in entry_points(group=GROUP)}
    commands = usable_commands(found)
    return {
        name: command
        for name, command in commands.items()
        if command is not None and command.options and name != COMMAND.name
    }


def _named(words: list[str], others: dict[str, Command]) -> str:
    """Return the name after `--command`, which decides what the other flags mean."""
    name = FINETUNE
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag == "--command":
            name = value if equals else next(iter(words[at + 1 :]), "")
    if name not in others:
        raise UnknownName(
            f"command is {shown(name)}; expected one of {', '.join(sorted(others))}"
            f"{nearest(name, others)}"
        )
    return name

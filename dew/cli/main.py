"""The `dew` program: finds the subcommand, merges its settings, turns errors into statuses."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points, version

from dew.cli.command import Command
from dew.cli.help import commands_help, help_asked
from dew.cli.leaving import leave_pool
from dew.cli.memory import memory_note
from dew.cli.options import parse
from dew.errors import InputRefused, UnknownName, nearest, shown

GROUP = "dew.commands"
FINE, FAILED, WRONG_USE, BY_CTRL_C = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dew` with `argv`, or the process's own arguments, and return its exit status.

    Returns:
        0 all well, 1 a run or a check failed, 2 wrong use or a refused input, 130 after Ctrl-C,
        143 after SIGTERM.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # What follows a bare `--` belongs to another program.
    ours = words[: words.index("--")] if "--" in words else words
    debug = "--debug" in ours
    words = [word for word in ours if word != "--debug"] + words[len(ours) :]
    shape, warnings.formatwarning = warnings.formatwarning, _warning_line
    try:
        return _dispatch(words)
    except BrokenPipeError:
        # The reader of our output left; Python would complain once more while closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except BaseException as error:
        if debug and not isinstance(error, SystemExit):
            import traceback

            traceback.print_exc()
        status = _status(error)
        leave_pool(error, f"dew {' '.join(words[:1])}", status)
        return status
    finally:
        warnings.formatwarning = shape


def _warning_line(message: object, *_: object, **__: object) -> str:
    """Return a warning as people read it: where in dew's code it arose is nothing to them."""
    return f"dew: warning: {message}\n"


def _status(error: BaseException) -> int:
    """Say on stderr what went wrong, in one message, and return the exit status for it."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, KeyboardInterrupt):
        print(str(error) or "dew: interrupted", file=sys.stderr)
        return getattr(error, "exit_status", BY_CTRL_C)
    if isinstance(error, InputRefused):
        print(f"dew: {error}", file=sys.stderr)
        return WRONG_USE
    status = getattr(error, "exit_status", FAILED)
    kind = type(error).__name__
    text = str(error).strip() or "no message"
    print(f"dew: {kind}: {text}", file=sys.stderr)
    for note in filter(None, [memory_note(error), *getattr(error, "__notes__", ())]):
        print(f"  {note}", file=sys.stderr)
    if status == FAILED:
        print("dew: add --debug to see the traceback", file=sys.stderr)
    return status


def _dispatch(words: list[str]) -> int:
    found = {point.name: point for point in entry_points(group=GROUP)}
    if words[:1] == ["--version"]:
        print(f"dew {version('dew')}")
        return FINE
    if not words or words[0] in ("--help", "-h", "help"):
        print(commands_help(_summaries(found), " ".join(words[1:])))
        return FINE if words else WRONG_USE
    name = words[0]
    if name not in found:
        raise UnknownName(
            f"no command {shown(name)}{nearest(name, found)} dew --help lists the commands"
        )
    command: Command = found[name].load()
    if command.raw:
        return command.function()(words[1:]) or FINE
    if (text := help_asked(command, words[1:])) is not None:
        print(text)
        return FINE
    settings = parse(command, words[1:], elsewhere=_names_elsewhere(found, name, words))
    for note in settings.notes:
        print(note, file=sys.stderr)
    return command.function()(settings) or FINE


def usable_commands(found: Mapping[str, EntryPoint]) -> dict[str, Command | None]:
    """Return every command; one whose package does not import is None, not an error here."""
    commands: dict[str, Command | None] = {}
    for name, point in found.items():
        try:
            commands[name] = point.load()
        except (ImportError, AttributeError):
            commands[name] = None
    return commands


def _summaries(found: Mapping[str, EntryPoint]) -> dict[str, str]:
    return {
        name: command.summary if command else "(not usable here: its package does not import)"
        for name, command in usable_commands(found).items()
    }


def _names_elsewhere(found: Mapping[str, EntryPoint], name: str, words: list[str]) -> list[str]:
    """Return what the other commands call their options, if a configuration file is read."""
    if not any(word.partition("=")[0] == "--config" for word in words):
        return []
    others = [command for key, command in usable_commands(found).items() if command and key != name]
    return [
        spelling
        for command in others
        for option in command.options
        for spelling in option.spellings
    ]


if __name__ == "__main__":
    sys.exit(main())

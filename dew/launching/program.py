"""From the words after `--` to the command of one rank."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

from dew.errors import InputRefused, shown

RUNNER = "dew.cli.runner"
_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?")
_TAKE_A_VALUE = ("-W", "-X")


def command(words: Sequence[str], *, join: bool) -> tuple[str, ...]:
    """Return the command that runs `words` as a rank.

    Python programs run in `dew.cli.runner`, which joins the pool and leaves it when they fail:
    `dew ...`, `python [options] script.py ...`, `python -m module ...`, `script.py ...` and
    `-m module ...`. Anything else runs as it is.

    Args:
        words: the program and its arguments, at least one word.
        join: whether the runner joins the pool before the program starts.

    Raises:
        InputRefused: nothing to start, or a script that is not there.
    """
    if not words:
        raise InputRefused(
            "what to start is missing; it stands after --, as in dew launch --processes 2 -- "
            "dew finetune --config run.yaml"
        )
    first, rest = words[0], list(words[1:])
    if os.path.basename(first) == "dew":
        return _runner([sys.executable], ["-m", "dew.cli.main", *rest], join)
    if first in ("-m", "-c") or first.endswith(".py"):
        return _runner([sys.executable], list(words), join)
    if _PYTHON.fullmatch(first):
        flags, program = _split(rest)
        if program:
            return _runner([first, *flags], program, join)
    if shutil.which(first) is None:
        raise InputRefused(f"{shown(first)} is no program on PATH, no .py file and no dew command")
    return (sys.executable, "-m", RUNNER, "--command", "--", *words)


def _runner(python: list[str], program: list[str], join: bool) -> tuple[str, ...]:
    if program[0] in ("-m", "-c"):
        if len(program) < 2:
            raise InputRefused(f"{program[0]} stands at the end; expected something after it")
    elif not os.path.isfile(program[0]):
        raise InputRefused(f"there is no file {shown(program[0])} to start")
    return (*python, "-m", RUNNER, *(["--join"] if join else []), "--", *program)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return Python's own flags, and the program; no program where Python reads its input."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("-m", "-c") or not word.startswith("-"):
            return words[:at], words[at:]
        if word == "-":
            return words, []
        at += 2 if word in _TAKE_A_VALUE else 1
    return words, []

"""The texts of `dew --help` and `dew COMMAND --help [WORD]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dew.cli.command import Command, Option
from dew.cli.options import CONFIG

_METAVARS = {
    "integer": "N",
    "number": "X",
    "text": "TEXT",
    "texts": "TEXT...",
    "pairs": "A.B=X",
    "parts": "[{...}]",
    "switch": "",
}


def commands_help(summaries: Mapping[str, str], word: str = "") -> str:
    """Return one line for each command whose name or summary holds `word`."""
    chosen = {
        name: summary
        for name, summary in sorted(summaries.items())
        if word.lower() in f"{name} {summary}".lower()
    }
    width = max((len(name) for name in chosen), default=0)
    lines = ["usage: dew COMMAND [settings]", ""]
    lines += [f"  {name:<{width}}  {summary}" for name, summary in chosen.items()]
    if not chosen:
        lines.append(f"  no command mentions {word!r}")
    lines += ["", "dew COMMAND --help [WORD] lists its settings, or those that mention WORD;"]
    lines += ["--debug shows the traceback of an error. dew --version prints the version."]
    return "\n".join(lines)


def help_asked(command: Command, words: Sequence[str]) -> str | None:
    """Return the help that `--help` or `-h` among `words` asks for, or None without them."""
    for at, word in enumerate(words):
        flag, _, topic = word.partition("=")
        if flag in ("--help", "-h"):
            following = words[at + 1] if at + 1 < len(words) else ""
            return command_help(command, topic or following.strip("-"))
    return None


def command_help(command: Command, word: str = "") -> str:
    """Return the help of one command, or only the settings that mention `word`."""
    places = [f"[{option.name.upper()}]" for option in command.options if option.positional]
    lines = [" ".join(["usage: dew", command.name, *places, "[settings]"]), "", command.summary]
    sections: dict[str, list[Option]] = {}
    own = any(option.name == CONFIG.name for option in command.options)
    for option in (*command.options, *(() if own else (CONFIG,))):
        if word.lower() in " ".join((*option.spellings, option.help)).lower():
            sections.setdefault(option.section, []).append(option)
    for section, options in sections.items():
        lines += ["", f"{section}:"]
        lines += [line for option in options for line in _option_lines(option)]
    if not sections:
        lines += ["", f"no setting mentions {word!r}"]
    lines += ["", "Dashes and underscores are alike. Flags win over --config, --config over"]
    lines += ["defaults. Whole numbers take suffixes: 32K is 32768, 1m is 1000000."]
    return "\n".join(lines)


def _option_lines(option: Option) -> list[str]:
    flags = ", ".join(f"--{name}" for name in option.spellings)
    chosen = option.choices if option.kind != "parts" else ()
    value = "|".join(chosen) if chosen else _METAVARS[option.kind]
    default = "" if option.default in (None, ()) else f" (default: {option.default})"
    if option.required:
        default = " (required)"
    return [f"  {flags} {value}".rstrip(), f"      {option.help}{default}"]

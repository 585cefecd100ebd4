"""A command's options as a JSON schema of the file that `--config` reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from dew.cli.command import NAME_PATTERN, Command, Option

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SUFFIXED_PATTERN = r"^[-+]?[0-9][0-9_]*[kKmMgG]$"


def json_schema(command: Command, elsewhere: Iterable[str] = ()) -> dict[str, Any]:
    """Return the JSON schema, draft 2020-12, of a command's configuration file.

    What it accepts is read, but for the bounds of a number with a suffix (`32K`), and for what
    only model and data can tell. Names are spelled with underscores; dashes are read too.

    Args:
        command: whose options they are.
        elsewhere: names of other commands' settings, which the file may hold and nobody reads.
    """
    properties: dict[str, Any] = {}
    for option in command.options:
        properties[option.name] = _described(option)
        for alias in option.aliases:
            properties[alias] = {"$ref": f"#/properties/{option.name}"}
    for former in command.formers:
        known = {"$ref": f"#/properties/{former.use}"} if former.use else {}
        properties[former.name] = {**known, "description": former.note, "deprecated": True}
    for name in elsewhere:
        properties.setdefault(name, {"description": f"not used by dew {command.name}"})
    return {
        "$schema": DRAFT,
        "title": f"dew {command.name}",
        "description": f"{command.summary}; the file that dew {command.name} --config reads",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **_once(command),
    }


def _described(option: Option) -> dict[str, Any]:
    """Return the schema of one option's value."""
    value = _kind(option)
    default = list(option.default) if isinstance(option.default, tuple) else option.default
    if option.default is None:
        value = {"anyOf": [*value.get("anyOf", [value]), {"type": "null"}]}
    return {"description": option.help, "default": default, **value}


def _kind(option: Option) -> dict[str, Any]:
    if option.choices and option.kind == "text":
        return {"enum": list(option.choices)}
    bounds = {
        name: bound
        for name, bound in (("minimum", option.low), ("maximum", option.high))
        if bound is not None
    }
    if option.kind == "integer":
        suffixed = {"type": "string", "pattern": SUFFIXED_PATTERN}
        return {"anyOf": [{"type": "integer", **bounds}, suffixed]}
    if option.kind == "number":
        return {"type": "number", **bounds}
    if option.kind == "switch":
        return {"type": "boolean"}
    if option.kind == "text":
        if option.pathless:
            named = {"type": "string", "pattern": f"^(?:{NAME_PATTERN})$"}
            # Within these bounds a number's text is a name; beyond them it has a sign.
            return {"anyOf": [named, {"type": "number", "minimum": 0, "maximum": 1e15}]}
        return {"anyOf": [{"type": "string"}, {"type": "number"}]}
    if option.kind == "parts":
        keys = {key: {} for key in option.choices}
        part = {"type": "object", "properties": keys, "additionalProperties": not keys}
        return {"type": "array", "items": part}
    return {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}


def _once(command: Command) -> dict[str, Any]:
    """Return the rule that a setting stands under one of its spellings only."""
    pairs = [
        {"not": {"required": list(pair)}}
        for option in command.options
        for pair in itertools.combinations(
            (*option.spellings, *(f.name for f in command.formers if f.use == option.name)), 2
        )
    ]
    return {"allOf": pairs} if pairs else {}

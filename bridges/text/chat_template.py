"""Chat templates of a checkpoint: where they lie, and their rendering."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bridges.files.json_file import read_json
from bridges.files.regular_file import contained, open_regular, optional, shown_path
from bridges.text.template_budget import Budget
from dew.errors import InputRefused, listed, nearest, shown

DEFAULT = "default"
TOOLS = "tool_use"
FOLDER = "additional_chat_templates"
SIZE_LIMIT = 1 << 20
COUNT_LIMIT = 100
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
        text: the prompt.
        assistant: characters `[start, end)` of each `{% generation %}` block.
    """

    text: str
    assistant: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of one checkpoint by name; `default` is the usual one.

    Attributes:
        texts: name to template.
        where: the folder or file they come from, for messages.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    where: str = ""

    @property
    def default(self) -> str | None:
        """The text of the default template, or None."""
        return self.texts.get(DEFAULT)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template: str | None = None,
        **variables: Any,
    ) -> Rendered:
        """Render a conversation.

        Args:
            messages: each a mapping with `role` and `content`; never changed.
            template: a template's name, or None: `tool_use` where there is one and `tools` are
                given, else `default`.
            variables: what else the template reads (`tools`, `add_generation_prompt`,
                `bos_token`, ...).

        Returns:
            The text and where in it the assistant's parts stand.

        Raises:
            InputRefused: no such template, or one that fails, refuses the conversation, does what
                a template may not do, or uses too much time, memory or output.
        """
        name = template or self._usual(variables.get("tools"))
        if name not in self.texts:
            raise InputRefused(self._missing(name))
        compiled = self._compiled(name)
        given = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        given = {key: _plain(value) for key, value in given.items()}
        given["messages"] = [_message(message) for message in messages]
        environment: Any = self._environment
        try:
            with environment.rendering(Budget(given)):
                pieces = []
                for piece in compiled.generate(**given):
                    environment.advance(piece)
                    pieces.append(piece)
                return Rendered("".join(pieces), tuple(environment.spans))
        except Exception as error:  # a template may raise whatever Python can
            raise self._refusal(name, error) from None

    def legacy(self) -> str | list[dict[str, str]] | None:
        """Return the templates as tokenizer_config.json holds them, or None without any."""
        if set(self.texts) == {DEFAULT}:
            return self.texts[DEFAULT]
        return [{"name": name, "template": text} for name, text in self.texts.items()] or None

    def files(self) -> dict[str, bytes]:
        """Return the templates' files: name, possibly with a folder part, to bytes.

        Raises:
            InputRefused: a name that is no plain file name.
        """
        check_names(self.texts, self.where)
        return {
            "chat_template.jinja" if name == DEFAULT else f"{FOLDER}/{name}.jinja": text.encode()
            for name, text in self.texts.items()
        }

    @cached_property
    def _environment(self) -> Any:
        from bridges.text.template_sandbox import (
            TemplateEnvironment,  # jinja2, only when one renders
        )

        return TemplateEnvironment()

    @cached_property
    def _cache(self) -> dict[str, Any]:
        return {}

    def _compiled(self, name: str) -> Any:
        """Return the compiled template, or refuse what Jinja or Python cannot read."""
        if name not in self._cache:
            try:
                self._cache[name] = self._environment.from_string(self.texts[name])
            except Exception as error:  # nesting, for example, ends in Python's own SyntaxError
                raise self._refusal(name, error) from None
        return self._cache[name]

    def _usual(self, tools: Any) -> str:
        return TOOLS if tools and TOOLS in self.texts else DEFAULT

    def _missing(self, name: str) -> str:
        if not self.texts:
            return (
                f"{self.where}: no chat template, so a conversation has no agreed form. Give the "
                "prompt as text, or put a chat_template.jinja into the folder."
            )
        return (
            f"{self.where}: no chat template {shown(name)}{nearest(name, self.texts)} "
            f"Expected one of {', '.join(map(repr, sorted(self.texts)))}."
        )

    def _refusal(self, name: str, error: Exception) -> InputRefused:
        """Return what a failing template says on one line."""
        line = getattr(error, "lineno", None)
        kind = "" if isinstance(error, InputRefused) else f"{type(error).__name__}: "
        what = shown(" ".join(str(error).split()), 500)[1:-1].rstrip(".") or "it failed"
        return InputRefused(
            f"{self.where}: the chat template {shown(name)}{f' line {line}' if line else ''}: "
            f"{kind}{what}. Check the messages against the template, or use another one."
        )


def read_templates(folder: Path, settings: Mapping[str, Any]) -> ChatTemplates:
    """Read the chat templates of a checkpoint folder.

    The newest place that has any counts alone: chat_template.jinja with
    additional_chat_templates/*.jinja, then chat_template.json, then tokenizer_config.json.

    Args:
        folder: the checkpoint.
        settings: its tokenizer_config.json.

    Raises:
        InputRefused: a template that is no text or too long, or a name that is no plain name.
    """
    where = shown_path(folder)
    texts: dict[str, str] = {}
    if optional(folder, "chat_template.jinja"):
        texts[DEFAULT] = _read_text(folder, "chat_template.jinja")
    if further := optional(folder, FOLDER):
        found = sorted(path.name for path in further.glob("*.jinja"))
        if len(found) > COUNT_LIMIT:
            raise InputRefused(f"{where}/{FOLDER}: {len(found)} templates; at most {COUNT_LIMIT}.")
        for name in found:
            texts[name.removesuffix(".jinja")] = _read_text(further, name)
    if not texts and (legacy := optional(folder, "chat_template.json")):
        value = read_json(legacy).get("chat_template")
        texts = named_templates(value, f"{where}/chat_template.json")
    if not texts:
        texts = named_templates(settings.get("chat_template"), f"{where}/tokenizer_config.json")
    check_names(texts, where)
    return ChatTemplates(texts, where)


def named_templates(value: Any, where: str) -> dict[str, str]:
    """Return the templates that a `chat_template` key holds.

    Args:
        value: None, one text, a list of `{"name", "template"}`, or a mapping of name to text.
        where: the file's name for messages.

    Raises:
        InputRefused: anything else, a template longer than 1 MiB, or a name that is no plain name.
    """
    if isinstance(value, str):
        value = {DEFAULT: value}
    elif isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
        value = {entry.get("name"): entry.get("template") for entry in value}
    elif value is None:
        value = {}
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(text, str) for name, text in value.items()
    ):
        raise InputRefused(
            f"{where}: chat_template is {shown(value)}. Expected a text, or a list of objects "
            "with `name` and `template`."
        )
    for name, text in value.items():
        if len(text) > SIZE_LIMIT:
            raise InputRefused(
                f"{where}: the chat template {shown(name)} has {len(text)} characters. Expected "
                f"at most {SIZE_LIMIT}."
            )
    check_names(value, where)
    return dict(value)


def check_names(names: Mapping[str, str], where: str) -> None:
    """Refuse template names that would not be plain file names.

    Args:
        names: the templates by name.
        where: the file's name for messages.

    Raises:
        InputRefused: naming each such name.
    """
    wrong = [shown(name) for name in names if not PLAIN_NAME.fullmatch(name) or ".." in name]
    if wrong:
        heading = (
            f"{where}: chat template names that are no plain names (letters, digits, `_`, `-` "
            "and `.`); rename them:"
        )
        raise InputRefused(listed(heading, wrong))


def _read_text(folder: Path, name: str) -> str:
    """Return the text of one template file."""
    path = contained(folder, name)
    with open_regular(path) as file:
        data = file.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise InputRefused(f"{shown_path(path)}: larger than {SIZE_LIMIT} bytes, the most read.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputRefused(
            f"{shown_path(path)}:{line}: not UTF-8. Save the template in that encoding."
        ) from None


def _message(message: Any) -> dict[str, Any]:
    """Return a copy of one message out of plain values; keys that hold None are left out."""
    if not isinstance(message, Mapping):
        raise InputRefused(
            f"chat messages: found {shown(message)}. Expected an object with `role` and `content`."
        )
    return {str(key): _plain(value) for key, value in message.items() if value is not None}


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a deep copy out of JSON's types: a template can call methods of anything else."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > 50:
        raise InputRefused("chat messages: nested deeper than 50. Expected flat messages.")
    if isinstance(value, Mapping):
        return {_plain(key, depth + 1): _plain(v, depth + 1) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, depth + 1) for part in value]
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise InputRefused(
        f"chat messages: found a {type(value).__name__}. Expected texts, numbers, lists and "
        "objects, as JSON has them."
    )

"""Rows of a table as conversations or as prompts with completions, whatever they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dew.errors import InputRefused, shown

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}
"""What ShareGPT calls who speaks; any other name stays."""
MESSAGES, SHAREGPT, PAIRS, ALPACA = "messages", "conversations", "prompt+completion", "instruction"
Messages = list[dict[str, Any]]


def conversation_kind(columns: Mapping[str, str]) -> str:
    """Return how a table holds its conversations.

    Raises:
        InputRefused: none of the ways that are known.
    """
    if "messages" in columns:
        return MESSAGES
    if "conversations" in columns:
        return SHAREGPT
    if "prompt" in columns and "completion" in columns:
        return PAIRS
    if "instruction" in columns and ("output" in columns or "response" in columns):
        return ALPACA
    there = ", ".join(shown(name, 40) for name in list(columns)[:12]) or "none"
    raise InputRefused(
        f"data: no column with conversations; there is {there}. Expected messages (role, content), "
        "conversations (from, value), prompt and completion, or instruction and output."
    )


def conversation(row: Mapping[str, Any], kind: str) -> Messages | tuple[str, str]:
    """Return a row as messages, or as prompt and completion where both are plain text.

    Args:
        row: a row of the table.
        kind: what `conversation_kind` gave.

    Raises:
        InputRefused: a row that is not of its kind; the message does not say where it stands.
    """
    if kind == MESSAGES:
        return _messages(row["messages"], "role", "content")
    if kind == SHAREGPT:
        return _messages(row["conversations"], "from", "value")
    if kind == ALPACA:
        asked, more = row["instruction"], row.get("input")
        said = row["output"] if "output" in row else row["response"]
        return [
            {"role": "user", "content": f"{asked}\n\n{more}" if more else _text(asked)},
            {"role": "assistant", "content": _text(said)},
        ]
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return prompt, completion
    return [
        *_messages(prompt, "role", "content"),
        *_messages(completion, "role", "content"),
    ]


def _messages(found: Any, role: str, content: str) -> Messages:
    if not isinstance(found, list) or not found:
        raise InputRefused(f"holds {shown(found, 60)}; expected a list of messages")
    out = []
    for message in found:
        if not isinstance(message, Mapping) or not isinstance(message.get(role), str):
            raise InputRefused(
                f"holds {shown(message, 60)}; expected an object with {role} and {content}"
            )
        who = ROLES.get(message[role].lower(), message[role])
        rest = {n: v for n, v in message.items() if n not in (role, content) and v is not None}
        out.append({"role": who, "content": message.get(content), **rest})
    return out


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InputRefused(f"holds {shown(value, 60)}; expected a text")
    return value

"""Rewards that come with dew: the right answer, and the right form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dew.errors import InputRefused

ANSWERS = ("answer", "solution")
"""The columns that hold what is right; the first that is there counts."""
THOUGHT = r"^<think>(?!.*<think>)(.*?)</think>.*$"


def accuracy(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """Return 1 where a completion ends in the right answer, else 0; None where none is known.

    What counts of a text is its `final_answer`, of the right one too; they must be equal.

    Args:
        completions: texts, or messages.
        columns: `answer` or `solution`, one a completion.

    Raises:
        InputRefused: neither column.
    """
    column = next((name for name in ANSWERS if name in columns), None)
    if column is None:
        raise InputRefused(
            f"reward accuracy: the data has no column {' nor '.join(ANSWERS)}; it holds what is "
            "right for each prompt"
        )
    pairs = zip(completions, columns[column], strict=True)
    return [
        None
        if right is None
        else float(final_answer(completion_text(completion)) == final_answer(str(right)))
        for completion, right in pairs
    ]


def think_format(completions: Sequence[Any], **columns: Any) -> list[float]:
    """Return 1 where a completion thinks within one `<think>...</think>` first, else 0.

    Args:
        completions: texts, or messages.
        columns: not read.

    Source: trl 1.16's think_format_reward.
    """
    return matching(completions, THOUGHT)


def matching(completions: Sequence[Any], pattern: str) -> list[float]:
    """Return 1 where a regular expression matches from a completion's first letter on, else 0.

    Args:
        completions: texts, or messages.
        pattern: its dot stands for line ends too.
    """
    found = re.compile(pattern, re.DOTALL | re.MULTILINE)
    return [float(found.match(completion_text(each)) is not None) for each in completions]


def final_answer(text: str) -> str:
    r"""Return what a text gives as its answer, spaces evened out.

    That is its last `\boxed{...}`, else its last `<answer>...</answer>`, else what stands behind
    its last `####`, else all of it.
    """
    found = _boxed(text)
    if found is None and (tagged := re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)):
        found = tagged[-1]
    if found is None and "####" in text:
        found = text.rpartition("####")[2]
    return " ".join((text if found is None else found).split())


def completion_text(completion: Any) -> str:
    """Return the text of a completion, which may be messages."""
    return completion if isinstance(completion, str) else completion[0]["content"]


def _boxed(text: str) -> str | None:
    """Return what the last box holds, other braces within it included."""
    _, mark, rest = text.rpartition(r"\boxed{")
    if not mark:
        return None
    depth = 1
    for place, letter in enumerate(rest):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return rest[:place]
    return None

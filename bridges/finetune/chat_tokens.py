"""Conversations as token ids, with the tokens that the assistant wrote as the targets."""

from __future__ import annotations

from typing import Any

from bridges.finetune.conversations import Messages
from dew.errors import InputRefused

ASSISTANT = "assistant"


def chat_tokens(
    processor: Any, messages: Messages, *, assistant_only: bool
) -> tuple[list[int], list[float]]:
    """Return a conversation's ids and the weight of each as a target.

    A template with `{% generation %}` blocks says itself what the assistant wrote. Of others each
    answer is what a rendering with it has beyond the rendering that asks for it, its end token
    included and the line end behind that not: so training and inference read the same prompts.

    Args:
        processor: the tokenizer, with a chat template.
        messages: the conversation.
        assistant_only: whether the other tokens have the weight 0.

    Raises:
        InputRefused: no template, or one that changes what stands before an answer when the
            answer comes.
    """
    ids, written = processor.encode_chat(messages)
    if not assistant_only:
        return ids, [1.0] * len(ids)
    if any(written):
        return ids, [float(counts) for counts in written]
    text = processor.apply_chat_template(messages)
    ids, offsets = processor.encode_with_offsets(text)
    spans = answer_spans(processor, messages, text)
    inside = [any(start <= first < end for start, end in spans) for first, _ in offsets]
    return ids, [float(counts) for counts in inside]


def answer_spans(processor: Any, messages: Messages, text: str) -> list[tuple[int, int]]:
    """Return the characters `[start, end)` of each answer in a rendered conversation.

    Raises:
        InputRefused: see `chat_tokens`.
    """
    spans = []
    for number, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        asked = processor.apply_chat_template(messages[:number], add_generation_prompt=True)
        told = processor.apply_chat_template(messages[: number + 1])
        if not text.startswith(told) or not told.startswith(asked):
            raise InputRefused(
                "the chat template writes what stands before an answer otherwise once the answer "
                "is there, so its tokens cannot be told apart. Put the answer into {% generation "
                "%} ... {% endgeneration %} in the template, or train on every token with "
                "--no-assistant_only_loss"
            )
        spans.append((len(asked), len(told.rstrip())))
    return spans


def end_token(processor: Any) -> int | None:
    """Return the id that the tokenizer ends a text with, else the checkpoint's first end id."""
    own = processor.special_tokens.get("eos_token")
    found = None if own is None else processor.token_id(own)
    return next(iter(processor.eos_token_ids), None) if found is None else found


def pair_tokens(
    processor: Any, prompt: str, completion: str, *, completion_only: bool
) -> tuple[list[int], list[float]]:
    """Return the ids of a prompt and its completion, joined as text, and the targets' weights.

    An end token closes the completion unless it ends in one.

    Args:
        processor: the tokenizer.
        prompt: what is given.
        completion: what is learnt.
        completion_only: whether the prompt's tokens have the weight 0. A token that holds parts of
            both counts as the prompt's.
    """
    ids, offsets = processor.encode_with_offsets(prompt + completion, add_special_tokens=True)
    end = end_token(processor)
    if end is not None and (not ids or ids[-1] != end):
        ids, offsets = [*ids, end], [*offsets, (len(prompt + completion), 0)]
    if not completion_only:
        return ids, [1.0] * len(ids)
    return ids, [float(first >= len(prompt)) for first, _ in offsets]

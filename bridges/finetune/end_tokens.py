"""Which ids end what a run teaches, so that the finished model is told to stop there."""

from __future__ import annotations

from typing import Any

from bridges.finetune.chat_tokens import chat_tokens
from dew.errors import InputRefused

EXCHANGE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def with_template_end(bundle: Any) -> Any:
    """Return a bundle whose end ids hold the token that its chat template ends an answer with.

    They are written into generation_config.json. A template may end answers with a token that
    neither that file nor the tokenizer names; what is trained on such answers would never stop.

    Args:
        bundle: native or traced, with or without a tokenizer and a template.
    """
    from bridges.exporting import generation_config

    processor = bundle.tokenizer
    if processor is None:
        return bundle
    end = template_end(processor)
    if end is None:
        return bundle
    options = dict(bundle.generation_config) or generation_config(bundle)
    named = options.get("eos_token_id", bundle.config.get("eos_token_id"))
    known = [named] if isinstance(named, int) else list(named or ())
    if end in known:
        return bundle
    print(
        f"end tokens: {processor.decode([end], skip_special_tokens=False)!r} ({end}), with which "
        "the chat template ends an answer, goes into generation_config.json",
        flush=True,
    )
    ends = list(dict.fromkeys((*known, *processor.eos_token_ids, end)))
    return bundle.replace(
        generation_config={**options, "eos_token_id": ends},
        processor=processor.ending_in(ends),
    )


def template_end(processor: Any) -> int | None:
    """Return the special token that closes an answer in the chat template; None for none.

    Args:
        processor: the tokenizer.
    """
    try:
        ids, weights = chat_tokens(processor, EXCHANGE, assistant_only=True)
    except InputRefused:  # no template, or one that does not tell where an answer ends
        return None
    learnt = [token for token, weight in zip(ids, weights, strict=True) if weight]
    for token in reversed(learnt):
        if processor.decode([token], skip_special_tokens=False).strip():
            return token if not processor.decode([token], skip_special_tokens=True) else None
    return None

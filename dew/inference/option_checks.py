"""What the values of generation's options must be, and what does not go together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dew.errors import shown
from dew.inference.narrow import STORED

ID_LISTS = ("suppress_tokens", "begin_suppress_tokens")
MAY_BE_NONE = ("top_k", "top_p")
UNCHECKED = ("eos_token_id", "pad_token_id", "negative_prompt_ids")
WITHOUT_BEAMS: dict[str, Any] = {
    "do_sample": False,
    "stop_strings": (),
    "guidance_scale": 1.0,
    "prefix_allowed_tokens_fn": None,
    "json_schema": None,
    "regex": None,
    "response_format": None,
    "assistant_model": None,
    "prompt_lookup_num_tokens": None,
    "max_time": None,
}
"""What beam search is not computed with, and how to switch each off."""
WITHOUT_GUESSES: dict[str, Any] = {
    "stop_strings": (),
    "guidance_scale": 1.0,
    "prefix_allowed_tokens_fn": None,
    "json_schema": None,
    "regex": None,
    "response_format": None,
}
"""What guessing ahead is not computed with."""


def option_problems(vocab_size: int, fields: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with options, a sentence each.

    Args:
        vocab_size: of the model.
        fields: values by the names of `GenerationOptions`.
    """
    problems = [problem for name, value in fields.items() if (problem := _problem(name, value))]
    problems += _outside(vocab_size, fields)
    problems += _beam_problems(fields)
    guessing = [n for n in ("assistant_model", "prompt_lookup_num_tokens") if fields.get(n)]
    if guessing:
        problems += _apart(guessing[0], fields, WITHOUT_GUESSES)
    fitting = [n for n in ("json_schema", "regex", "response_format") if fields.get(n) is not None]
    if len(fitting) > 1:
        problems.append(f"{' and '.join(fitting)} were given; leave out all but one")
    return problems


def _apart(reason: str, fields: Mapping[str, Any], idle: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is {shown(fields[name])}: not computed with {reason}; pass {name}={off!r}"
        for name, off in idle.items()
        if fields.get(name) and fields[name] != off
    ]


def _beam_problems(fields: Mapping[str, Any]) -> list[str]:
    """Name what does not go with beam search."""
    beams, wanted = fields.get("num_beams", 1), fields.get("num_return_sequences", 1)
    if not _is_integer(beams) or beams < 2:
        return []
    problems = _apart(f"num_beams {beams}", fields, WITHOUT_BEAMS)
    if _is_integer(wanted) and wanted > beams:
        problems.append(
            f"num_return_sequences is {wanted}, above num_beams {beams}: there are no more texts"
        )
    return problems


def _outside(size: int, fields: Mapping[str, Any]) -> list[str]:
    """Name the ids that the vocabulary does not have."""
    named: dict[str, Any] = {name: fields[name] for name in ("eos_token_id", "pad_token_id")}
    for name in (*ID_LISTS, "forced_bos_token_id", "forced_eos_token_id"):
        value = fields.get(name)
        if value is not None and (isinstance(value, list | tuple) or _is_integer(value)):
            named[name] = value
    for name, runs in (
        ("bad_words_ids", fields.get("bad_words_ids")),
        ("sequence_bias", [pair[0] for pair in _pairs(fields.get("sequence_bias"))]),
    ):
        if isinstance(runs, list | tuple):
            named[name] = [one for run in runs if isinstance(run, list | tuple) for one in run]
    return [
        f"{name} is {shown(value)}, outside the vocabulary [0, {size})"
        for name, values in named.items()
        for value in (values if isinstance(values, list | tuple) else (values,))
        if not _is_integer(value) or not 0 <= value < size
    ]


def _problem(name: str, value: Any) -> str | None:
    """Return what is wrong with one option's value, or None."""
    if name in UNCHECKED or name.startswith("negative_prompt"):
        return None
    if value is None and (name in MAY_BE_NONE or name in _OPTIONAL):
        return None
    expected, test = (_OPTIONAL | _RANGES)[name]
    return None if test(value) else f"{name} is {shown(value)}, expected {expected}"


def _pairs(value: Any) -> list[Any]:
    """Return what of `sequence_bias` are pairs."""
    if not isinstance(value, list | tuple):
        return []
    return [pair for pair in value if isinstance(pair, list | tuple) and len(pair) == 2]


def _is_biases(value: Any) -> bool:
    pairs = _pairs(value)
    return len(pairs) == len(value) and all(
        _is_ids(ids) and ids and _number(lambda _: True)(bias) for ids, bias in pairs
    )


def _is_ids(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(_is_integer(one) for one in value)


def _is_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(_is_ids(word) and word for word in value)


def _is_texts(value: Any) -> bool:
    return not value or (
        isinstance(value, list | tuple) and all(isinstance(t, str) and t for t in value)
    )


def _is_decay(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and _is_integer(value[0])


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _count(least: int, most: int = 2**31 - 1) -> Callable[[Any], bool]:
    return lambda value: _is_integer(value) and least <= value <= most


def _number(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        return real and math.isfinite(value) and test(value)

    return check


_SEED = _count(0, 2**32 - 1)
_SHARE = ("a number in (0, 1]", _number(lambda v: 0 < v <= 1))
_CUTOFF = ("a number in [0, 1)", _number(lambda v: 0 <= v < 1))
_POSITIVE = ("a number above 0", _number(lambda v: v > 0))
_SWITCH = ("true or false", _is_switch)
_SIZE = ("an integer of at least 0", _count(0))
_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "max_new_tokens": _SIZE,
    "max_length": ("an integer of at least 1", _count(1)),
    "min_new_tokens": _SIZE,
    "min_length": _SIZE,
    "do_sample": _SWITCH,
    "temperature": (
        "a number above 0 (for the likeliest token: do_sample=False)",
        _number(lambda v: v > 0),
    ),
    "top_k": ("an integer of at least 1, or 0 to keep all", _count(0)),
    "top_p": _SHARE,
    "epsilon_cutoff": _CUTOFF,
    "eta_cutoff": _CUTOFF,
    "repetition_penalty": _POSITIVE,
    "encoder_repetition_penalty": _POSITIVE,
    "no_repeat_ngram_size": _SIZE,
    "encoder_no_repeat_ngram_size": _SIZE,
    "remove_invalid_values": _SWITCH,
    "renormalize_logits": _SWITCH,
    "guidance_scale": ("a number", _number(lambda _: True)),
    "num_beams": ("an integer of at least 1", _count(1)),
    "length_penalty": ("a number", _number(lambda _: True)),
    "early_stopping": (
        'true, false or "never"',
        lambda v: isinstance(v, bool) or (isinstance(v, str) and v == "never"),
    ),
    "num_return_sequences": ("an integer of at least 1", _count(1)),
    "num_assistant_tokens": ("an integer of at least 1", _count(1)),
    "max_matching_ngram_size": ("an integer of at least 1", _count(1)),
    "seed": ("an integer in [0, 2**32)", _SEED),
}
_OPTIONAL: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "min_p": ("a number in [0, 1]", _number(lambda v: 0 <= v <= 1)),
    "top_h": _SHARE,
    "typical_p": _SHARE,
    "bad_words_ids": ("lists of ids, none empty", _is_words),
    "suppress_tokens": ("a list of ids", lambda v: isinstance(v, list | tuple)),
    "begin_suppress_tokens": ("a list of ids", lambda v: isinstance(v, list | tuple)),
    "stop_strings": ("texts that are not empty", _is_texts),
    "sequence_bias": ("a dict of id tuples and numbers, or such pairs", _is_biases),
    "exponential_decay_length_penalty": (
        "how many ids, an integer, and a number",
        lambda v: _is_decay(v) and _number(lambda _: True)(v[1]),
    ),
    "forced_bos_token_id": ("an id", _is_integer),
    "forced_eos_token_id": ("an id", _is_integer),
    "prefix_allowed_tokens_fn": ("a function of an index and ids", callable),
    "json_schema": ("a dict, or its JSON", lambda v: isinstance(v, str | Mapping)),
    "regex": ("a pattern", lambda v: isinstance(v, str)),
    "response_format": (
        "a dict with a type",
        lambda v: isinstance(v, Mapping) and isinstance(v.get("type"), str),
    ),
    "max_time": ("seconds above 0", _number(lambda v: v > 0)),
    "assistant_model": ("a bundle", lambda v: hasattr(v, "variables")),
    "prompt_lookup_num_tokens": ("an integer of at least 1", _count(1)),
    "seeds": (
        "integers in [0, 2**32), one a prompt",
        lambda v: isinstance(v, list | tuple) and all(_SEED(one) for one in v),
    ),
    "weights": (
        f"one of {', '.join(STORED)}",
        lambda v: isinstance(v, str) and v in STORED,
    ),
}

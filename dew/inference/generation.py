"""The options of `generate`: transformers' names and defaults, checked, over the checkpoint's."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from dew.errors import InputRefused, UnknownName, listed, nearest, shown
from dew.inference.bundle import Bundle

DEFAULT_NEW_TOKENS = 20

NOT_COMPUTED: dict[str, tuple[Any, ...]] = {
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0, 0.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "diversity_penalty": (None, 0.0),
    "typical_p": (None, 1.0),
    "top_h": (None,),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "force_words_ids": (None,),
    "constraints": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "remove_invalid_values": (None, False),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None,),
    "token_healing": (None, False),
    "guidance_scale": (None, 1, 1.0),
    "watermarking_config": (None,),
    "max_time": (None,),
    "prompt_lookup_num_tokens": (None,),
    "renormalize_logits": (None, False),
    "return_dict_in_generate": (None, False),
    "output_scores": (None, False),
    "output_logits": (None, False),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
}
"""transformers' options that ask for work not done here, with the values that ask for none."""

HARMLESS = frozenset(
    (
        "bos_token_id",
        "decoder_start_token_id",
        "use_cache",
        "cache_implementation",
        "cache_config",
        "transformers_version",
        "low_memory",
        "is_assistant",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_lookbehind",
        "target_lookbehind",
        "max_matching_ngram_size",
        "compile_config",
        "disable_compile",
        "max_cache_len",
        "use_mtp",
        "return_legacy_cache",
        "speculation_type",
        "assistant_ensemble_weight",
        "trust_remote_code",
    )
)
"""Keys of generation_config.json that change no token here; so does every `_key`."""


@dataclasses.dataclass(frozen=True)
class GenerationOptions:
    """How to continue prompts.

    Attributes:
        max_new_tokens: at most this many new ids; 0 returns the prompt. Absent: `max_length`, and
            without it 20, or fewer where the model's context ends.
        max_length: the same, counted with the padded prompt, which it must exceed.
        min_new_tokens, min_length: no end id before that many new ids (ids in all).
        do_sample: draw from the distribution; otherwise take the likeliest id, the lowest of
            equals, after the repetition penalty alone.
        temperature: above 0.
        top_k: keep the k likeliest ids and their equals; 0 keeps all.
        top_p: in (0, 1].
        min_p: in [0, 1], or None.
        repetition_penalty: above 0; reads the prompt and what was generated.
        eos_token_id: ids that end a row; an int, a list, or None for no end.
        pad_token_id: what follows an end; the first end id if absent.
        bad_words_ids: lists of one id each, which are never chosen, ends aside.
        suppress_tokens: ids that are never chosen.
        begin_suppress_tokens: ids that are not chosen first.
        stop_strings: texts that end a row with the token that completes one; they stay in it.
        num_beams: texts that are followed at a time, for the likeliest in the end (beam search);
            without `do_sample` and `stop_strings`.
        length_penalty: a beam's score is divided by its length to this power.
        early_stopping: end when there are `num_beams` whole texts (true), when no better one is
            likely (false), or when none is possible ("never").
        num_return_sequences: rows a prompt, side by side; at most `num_beams` where it is above 1.
        seed: of the draws; a row's draws depend on the seed and its index alone.
        assumed_new_tokens: what an absent `max_new_tokens` stands for; no option of a call.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float | None = 1.0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_return_sequences: int = 1
    seed: int = 0
    assumed_new_tokens: int = DEFAULT_NEW_TOKENS

    def new_tokens(self, width: int, longest: int, limit: int | None) -> int:
        """Return how many ids to generate at most.

        Args:
            width: of the padded prompts.
            longest: real ids of the longest prompt.
            limit: positions of the model, or None.

        Raises:
            InputRefused: `max_length` within the prompt, or the result past the limit.
        """
        if self.max_new_tokens is not None:
            wanted = self.max_new_tokens
        elif self.max_length is not None:
            wanted = self.max_length - width
            if wanted <= 0:
                raise InputRefused(
                    f"max_length is {self.max_length} and the prompt has {width} tokens, which it "
                    "counts too; raise it, or pass max_new_tokens"
                )
        else:
            room = self.assumed_new_tokens if limit is None else limit - longest
            wanted = max(min(self.assumed_new_tokens, room), 1)
        if limit is not None and longest + wanted > limit:
            raise InputRefused(
                f"{longest} prompt tokens and {wanted} new ones make {longest + wanted}, the model "
                f"has {limit} positions (max_seq_len); shorten the prompt or max_new_tokens"
            )
        return wanted

    @property
    def banned(self) -> tuple[int, ...]:
        """The ids that are never chosen."""
        words = (word[0] for word in self.bad_words_ids if word[0] not in self.eos_token_id)
        return tuple({*words, *self.suppress_tokens})

    @property
    def copies(self) -> int:
        """How many rows begin from each prompt: beams part by themselves."""
        return 1 if self.num_beams > 1 else self.num_return_sequences

    def minimum(self, width: int) -> int:
        """Return how many ids come before an end id may."""
        if self.min_new_tokens is not None:
            return self.min_new_tokens
        return max(self.min_length - width, 0)


BANS = ("suppress_tokens", "begin_suppress_tokens")

FIELDS = tuple(
    field.name
    for field in dataclasses.fields(GenerationOptions)
    if field.name != "assumed_new_tokens"
)


def generation_options(bundle: Bundle, given: Mapping[str, Any]) -> GenerationOptions:
    """Return `given` over the checkpoint's generation_config over transformers' defaults.

    Args:
        bundle: whose `generation_config`, `config` and tokenizer give what `given` does not.
        given: by transformers' names.

    Raises:
        UnknownName: a name that transformers does not have either.
        InputRefused: values out of range, or options that ask for what is not computed here.
    """
    for name in given:
        if name not in FIELDS and name not in NOT_COMPUTED and name not in HARMLESS:
            raise UnknownName(f"unknown generation option {shown(name)}{nearest(name, FIELDS)}")
    stored = dict(bundle.generation_config)
    _warn_unknown(stored)
    merged = {**{k: v for k, v in stored.items() if v is not None}, **_known(given)}
    if "max_length" in given and "max_new_tokens" not in given:
        merged.pop("max_new_tokens", None)
    problems = [
        f"{name} is {shown(merged[name])}: not computed here; pass {name}={idle[-1]!r}"
        for name, idle in NOT_COMPUTED.items()
        if name in merged and merged[name] not in idle
    ]
    fields = {name: merged[name] for name in FIELDS if name in merged}
    fields["eos_token_id"] = _end_ids(bundle, merged, given)
    fields["pad_token_id"] = _pad_id(bundle, merged, fields["eos_token_id"])
    if isinstance(fields.get("stop_strings"), str):
        fields["stop_strings"] = (fields["stop_strings"],)
    problems += [problem for name, value in fields.items() if (problem := _problem(name, value))]
    problems += _outside(bundle, fields)
    problems += _beam_problems(fields)
    if problems:
        raise InputRefused(listed("generation options refused:", problems))
    fields["stop_strings"] = tuple(fields.get("stop_strings") or ())
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        fields[name] = tuple(fields.get(name) or ())
    fields["bad_words_ids"] = tuple(tuple(word) for word in fields.get("bad_words_ids") or ())
    return GenerationOptions(**fields)


def _beam_problems(fields: Mapping[str, Any]) -> list[str]:
    """Name what does not go with beam search."""
    beams, wanted = fields.get("num_beams", 1), fields.get("num_return_sequences", 1)
    if not _is_integer(beams) or beams < 2:
        return []
    idle = {"do_sample": False, "stop_strings": ()}
    problems = [
        f"{name} is {shown(fields[name])}: not computed with num_beams {beams}; pass {name}={off!r}"
        for name, off in idle.items()
        if fields.get(name)
    ]
    if _is_integer(wanted) and wanted > beams:
        problems.append(
            f"num_return_sequences is {wanted}, above num_beams {beams}: there are no more texts"
        )
    return problems


def _known(given: Mapping[str, Any]) -> dict[str, Any]:
    # None means "not given" to transformers too, except where it switches a rule off.
    switches = ("eos_token_id", "top_k", "top_p", "min_p", "stop_strings")
    off = {*switches, *NOT_COMPUTED}
    return {name: value for name, value in given.items() if value is not None or name in off}


def _warn_unknown(stored: Mapping[str, Any]) -> None:
    unknown = [
        name
        for name in stored
        if name not in FIELDS
        and name not in NOT_COMPUTED
        and name not in HARMLESS
        and not name.startswith("_")
    ]
    if unknown:
        warnings.warn(
            f"generation_config keys that generate does not read: {', '.join(map(shown, unknown))}",
            stacklevel=4,
        )


def _end_ids(bundle: Bundle, merged: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    ids = merged.get("eos_token_id")
    if ids is None and "eos_token_id" not in given:
        ids = bundle.config.get("eos_token_id")
        if ids is None and bundle.tokenizer is not None:
            ids = tuple(bundle.tokenizer.eos_token_ids)
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, Sequence) and not isinstance(ids, str) else (ids,)


def _pad_id(bundle: Bundle, merged: Mapping[str, Any], ends: tuple[Any, ...]) -> Any:
    for value in (merged.get("pad_token_id"), bundle.config.get("pad_token_id")):
        if value is not None and value != -1:
            return value
    return ends[0] if ends else 0


def _outside(bundle: Bundle, fields: Mapping[str, Any]) -> list[str]:
    """Name the ids that the vocabulary does not have."""
    size = bundle.model.vocab_size
    named = {name: fields[name] for name in ("eos_token_id", "pad_token_id")}
    named |= {name: fields[name] for name in BANS if isinstance(fields.get(name), list | tuple)}
    return [
        f"{name} is {shown(value)}, outside the vocabulary [0, {size})"
        for name, values in named.items()
        for value in (values if isinstance(values, list | tuple) else (values,))
        if not _is_integer(value) or not 0 <= value < size
    ]


def _problem(name: str, value: Any) -> str | None:
    """Return what is wrong with one option's value, or None."""
    if name in ("eos_token_id", "pad_token_id"):
        return None
    if name in BANS:
        return None if value is None or isinstance(value, list | tuple) else _not_ids(name, value)
    if name == "bad_words_ids":
        good = value is None or (
            isinstance(value, list | tuple)
            and all(isinstance(word, list | tuple) and len(word) == 1 for word in value)
            and all(_is_integer(word[0]) for word in value)
        )
        return (
            None
            if good
            else f"bad_words_ids is {shown(value)}: only words of one id each are computed here"
        )
    if name == "stop_strings":
        good = not value or all(isinstance(text, str) and text for text in value)
        return (
            None if good else f"stop_strings is {shown(value)}, expected texts that are not empty"
        )
    if name == "early_stopping":
        good = isinstance(value, bool) or value == "never"
        return (
            None if good else f'early_stopping is {shown(value)}, expected true, false or "never"'
        )
    if name == "do_sample":
        good = isinstance(value, bool)
        return None if good else f"do_sample is {shown(value)}, expected true or false"
    expected, test = _RANGES[name]
    if value is None and name in ("top_k", "top_p", "min_p"):
        return None
    return None if test(value) else f"{name} is {shown(value)}, expected {expected}"


def _not_ids(name: str, value: Any) -> str:
    return f"{name} is {shown(value)}, expected a list of ids"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(least: int, most: int = 2**31 - 1):
    return lambda value: _is_integer(value) and least <= value <= most


def _number(test):
    def check(value: Any) -> bool:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        return real and math.isfinite(value) and test(value)

    return check


_RANGES = {
    "max_new_tokens": ("an integer of at least 0", _count(0)),
    "max_length": ("an integer of at least 1", _count(1)),
    "min_new_tokens": ("an integer of at least 0", _count(0)),
    "min_length": ("an integer of at least 0", _count(0)),
    "temperature": (
        "a number above 0 (for the likeliest token: do_sample=False)",
        _number(lambda v: v > 0),
    ),
    "top_k": ("an integer of at least 1, or 0 to keep all", _count(0)),
    "top_p": ("a number in (0, 1]", _number(lambda v: 0 < v <= 1)),
    "min_p": ("a number in [0, 1]", _number(lambda v: 0 <= v <= 1)),
    "repetition_penalty": ("a number above 0", _number(lambda v: v > 0)),
    "num_beams": ("an integer of at least 1", _count(1)),
    "length_penalty": ("a number", _number(lambda v: True)),
    "num_return_sequences": ("an integer of at least 1", _count(1)),
    "seed": ("an integer in [0, 2**32)", _count(0, 2**32 - 1)),
}

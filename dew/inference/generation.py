"""The options of `generate`: transformers' names and defaults, checked, over the checkpoint's."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dew.errors import InputRefused, UnknownName, listed, nearest, shown
from dew.inference.bundle import Bundle
from dew.inference.narrow import STORED
from dew.inference.option_checks import ID_LISTS, MAY_BE_NONE, option_problems

DEFAULT_NEW_TOKENS = 20

NOT_COMPUTED: dict[str, tuple[Any, ...]] = {
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0, 0.0),
    "diversity_penalty": (None, 0.0),
    "force_words_ids": (None,),
    "dola_layers": (None,),
    "constraints": (None,),
    "watermarking_config": (None,),
    "token_healing": (None, False),
    "logits_processor": (None, [], ()),
    "stopping_criteria": (None, [], ()),
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
        "prefill_chunk_size",
        "is_assistant",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_lookbehind",
        "target_lookbehind",
        "compile_config",
        "continuous_batching_config",
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
        top_p, top_h, typical_p: in (0, 1], or None.
        min_p: in [0, 1], or None.
        epsilon_cutoff, eta_cutoff: in [0, 1), 0 for none.
        repetition_penalty: above 0; reads the prompt and what was generated.
        encoder_repetition_penalty: above 0; above 1 favours the prompt's ids.
        no_repeat_ngram_size, encoder_no_repeat_ngram_size: no run of so many ids comes twice, or
            comes from the prompt; 0 for none.
        sequence_bias: lists of ids, each with what is added to the logit of its last id where
            the others have just come: a dict of tuples, or pairs.
        exponential_decay_length_penalty: after how many new ids the ends' logits begin to rise,
            and by which factor an id.
        guidance_scale: how much more the prompt counts than a negative one, which is
            `negative_prompt_ids` [N, Q] with `negative_prompt_attention_mask`, or the prompt's
            last id.
        remove_invalid_values: NaN and infinite logits become numbers.
        renormalize_logits: logits are log probabilities before beams sum them up.
        prefix_allowed_tokens_fn: gives, for a prompt's index and a row's ids so far (an int32
            array), the ids that may follow.
        json_schema, regex: what a text must fit: a schema (a dict, or its JSON) or a pattern. A
            row may end only where its text is whole. `response_format` is the same as servers
            write it: `{"type": "json_schema", "json_schema": {"schema": ...}}`, or
            `{"type": "json_object"}`.
        eos_token_id: ids that end a row; an int, a list, or None for no end.
        pad_token_id: what follows an end; the first end id if absent.
        bad_words_ids: lists of ids that never come after one another, an end alone aside.
        suppress_tokens: ids that are never chosen.
        begin_suppress_tokens: ids that are not chosen first.
        forced_bos_token_id: what comes first after a prompt of one id.
        forced_eos_token_id: what comes last where nothing ended a row before.
        max_time: seconds after which no more ids are begun; they are looked at every few ids.
        stop_strings: texts that end a row with the token that completes one; they stay in it.
        num_beams: texts that are followed at a time, for the likeliest in the end (beam search);
            without `do_sample` and `stop_strings`.
        length_penalty: a beam's score is divided by its length to this power.
        early_stopping: end when there are `num_beams` whole texts (true), when no better one is
            likely (false), or when none is possible ("never").
        num_return_sequences: rows a prompt, side by side; at most `num_beams` where it is above 1.
        weights: how the weights that generation streams are stored, beside the model's own:
            "int8", a scale an output; "bfloat16"; None for the model's dtype.
        assistant_model: a smaller bundle with the same vocabulary whose guesses are tried; no id
            changes. `num_assistant_tokens` is how many it guesses at a time.
        prompt_lookup_num_tokens: as many ids are guessed from what follows the newest ones, at
            most `max_matching_ngram_size` of them, where they came before; no id changes.
        seed: of the draws; a row's draws depend on the seed and its index alone.
        seeds: one a prompt instead, whose draws then depend on it alone.
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
    weights: str | None = None
    typical_p: float | None = None
    top_h: float | None = None
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    encoder_repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    exponential_decay_length_penalty: tuple[int, float] | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    remove_invalid_values: bool = False
    renormalize_logits: bool = False
    guidance_scale: float = 1.0
    negative_prompt_ids: Any = None
    negative_prompt_attention_mask: Any = None
    prefix_allowed_tokens_fn: Callable[[int, Any], Sequence[int]] | None = None
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    response_format: Mapping[str, Any] | None = None
    max_time: float | None = None
    assistant_model: Any = None
    num_assistant_tokens: int = 5
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int = 2
    seed: int = 0
    seeds: tuple[int, ...] | None = None
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
    def bad_words(self) -> tuple[tuple[int, ...], ...]:
        """The runs of ids that may not come, ends alone left out."""
        ends = {(end,) for end in self.eos_token_id}
        return tuple(word for word in self.bad_words_ids if word not in ends)

    @property
    def guesses(self) -> bool:
        """Whether ids are guessed ahead."""
        return self.assistant_model is not None or self.prompt_lookup_num_tokens is not None

    @property
    def copies(self) -> int:
        """How many rows begin from each prompt: beams part by themselves."""
        return 1 if self.num_beams > 1 else self.num_return_sequences

    def minimum(self, width: int) -> int:
        """Return how many ids come before an end id may."""
        if self.min_new_tokens is not None:
            return self.min_new_tokens
        return max(self.min_length - width, 0)


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
    if isinstance(fields.get("sequence_bias"), Mapping):
        fields["sequence_bias"] = list(fields["sequence_bias"].items())
    problems += option_problems(bundle.model.vocab_size, fields)
    if problems:
        raise InputRefused(listed("generation options refused:", problems))
    return GenerationOptions(**_settled(fields))


def _settled(fields: dict[str, Any]) -> dict[str, Any]:
    """Return checked fields with lists as tuples, and None as what it stands for."""
    for name in ("stop_strings", *ID_LISTS):
        fields[name] = tuple(fields.get(name) or ())
    fields["bad_words_ids"] = tuple(tuple(word) for word in fields.get("bad_words_ids") or ())
    fields["sequence_bias"] = tuple(
        (tuple(ids), float(bias)) for ids, bias in fields.get("sequence_bias") or ()
    )
    fields["weights"] = STORED.get(fields.get("weights") or "")
    decay, seeds = fields.get("exponential_decay_length_penalty"), fields.get("seeds")
    fields["exponential_decay_length_penalty"] = None if decay is None else tuple(decay)
    fields["seeds"] = None if seeds is None else tuple(seeds)
    for field in dataclasses.fields(GenerationOptions):
        if fields.get(field.name, field.default) is None and field.name not in MAY_BE_NONE:
            fields[field.name] = field.default
    return fields


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

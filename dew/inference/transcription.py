"""Whisper's generation: one window of sound a row, and the ids of what was said in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused, listed, shown
from dew.inference.answering import AnsweringEngine, encoded, forced_options, start_id
from dew.inference.bundle import Bundle
from dew.inference.decode import Streamer, continued
from dew.inference.generation import GenerationOptions
from dew.inference.model_inputs import checked_inputs
from dew.inference.speech_prompts import read_prompt

PROMPTING = ("language", "task", "is_multilingual", "prompt_ids")
"""The options that bear on what the decoder is given to begin with."""
LONG_FORM: dict[str, tuple[Any, ...]] = {
    "return_timestamps": (None, False),
    "return_token_timestamps": (None, False),
    "return_segments": (None, False),
    "condition_on_prev_tokens": (None, False),
    "prompt_condition_type": (None, "first-segment"),
    "compression_ratio_threshold": (None,),
    "logprob_threshold": (None,),
    "no_speech_threshold": (None,),
    "num_segment_frames": (None,),
    "force_unique_generate_call": (None, False),
}
"""transformers' options that ask for times, or for a sound longer than a window, with the values
that ask for neither."""
UNREAD = """
alignment_heads max_initial_timestamp_index prev_sot_token_id median_filter_width
forced_decoder_ids lang_to_id task_to_id no_timestamps_token_id
"""
"""Keys of a checkpoint's generation config beside the options."""
OLD_PLACE = ("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "max_length")
"""Options that a checkpoint without generation_config.json has in its config."""


class HearingEngine(AnsweringEngine):
    """The engine of a `SpeechToText`; its source are the encoder's states."""

    def memory(self, bundle: Bundle, source: Any) -> tuple[Any, np.ndarray]:
        """Return the states [N, P, D] themselves, all of them real."""
        del bundle
        return source, np.ones(source.shape[:2], np.int32)


def transcribed(
    bundle: Bundle,
    input_features: Any,
    attention_mask: Any = None,
    *,
    streamer: Streamer | None = None,
    **options: Any,
) -> np.ndarray:
    """Write down what is said in each window of sound.

    Args:
        bundle: of a `SpeechToText`.
        input_features: spectrograms [N, M, F] of one window each; fewer frames than it has are
            followed by zeros.
        attention_mask: not read, as in transformers, where only longer sounds need it.
        streamer: told of the prompts and of each step's ids as they come.
        **options: the fields of `GenerationOptions`; `language` (a name, a code or a token, or one
            for each sound), `task` ("transcribe" or "translate"), `is_multilingual` and
            `prompt_ids` (of a text that came before, see transformers' `get_prompt_ids`). What is
            not given comes from the checkpoint; a language that neither names is heard.
            `temperature` above 0 draws, and nothing else does.

    Returns:
        int32 [N * num_return_sequences, T]: the new ids alone, without the end, padded.

    Raises:
        InputRefused: as `Bundle.generate`; more frames than a window has, an option that asks for
            times or for what only longer sounds need, a language or a task without an id.

    Source: transformers 5.24's WhisperForConditionalGeneration.generate for at most 30 seconds.
    """
    del attention_mask
    features = _window(bundle, input_features)
    stored = _stored(bundle)
    given = {name: value for name, value in options.items() if name not in (*PROMPTING, *LONG_FORM)}
    _refuse_long_form({**{k: stored[k] for k in LONG_FORM if k in stored}, **options})
    asked = {name: options.get(name) for name in PROMPTING}
    prompt = read_prompt(stored, asked, start_id(bundle, given), bundle.model.vocab_size)
    kept = {*PROMPTING, *LONG_FORM, *UNREAD.split()}
    plain = {name: value for name, value in stored.items() if name not in kept}
    settings, forced = forced_options(
        bundle.replace(generation_config=plain), {**given, **_drawing(given)}
    )

    memory = encoded(bundle.model, bundle.variables, features)
    prompts = prompt.ids(len(features), lambda: _heard(bundle, memory, prompt.start, stored))
    if prompts.shape[1] > 1:
        forced = forced._replace(first=None)  # it would stand right behind the start
    copies = settings.num_return_sequences
    settings = _limited(settings, prompts.shape[1], bundle.model.position_limit)
    rows, source = (np.repeat(part, copies, axis=0) for part in (prompts, np.asarray(memory)))
    ids, _ = continued(
        bundle,
        settings,
        rows,
        np.ones_like(rows),
        streamer=streamer,
        source=source,
        forced=forced,
    )
    return _without_ends(ids[:, rows.shape[1] :], settings)


def _window(bundle: Bundle, input_features: Any) -> np.ndarray:
    """Return checked spectrograms of a whole window."""
    if "automatic-speech-recognition" not in bundle.tasks:
        raise InputRefused(
            "the model was loaded without its head; load it with "
            "task='automatic-speech-recognition'"
        )
    start = np.zeros((1, 1), np.int32)
    given = {"input_features": input_features, "decoder_input_ids": start}
    features = np.asarray(checked_inputs(bundle.model, given)["input_features"])
    frames, found = bundle.model.frames, features.shape[2]
    if found > frames:
        raise InputRefused(
            f"input_features has {found} frames, the model hears {frames} at a time: cut the sound "
            "into windows"
        )
    return np.pad(features, ((0, 0), (0, 0), (0, frames - found)))


def _stored(bundle: Bundle) -> dict[str, Any]:
    """Return the checkpoint's generation config, or what an older one has in its config."""
    if bundle.generation_config:
        stored = dict(bundle.generation_config)
        # transformers looks for these in the config too.
        stored.setdefault("forced_decoder_ids", bundle.config.get("forced_decoder_ids"))
        return stored
    return {name: bundle.config[name] for name in OLD_PLACE if name in bundle.config}


def _refuse_long_form(options: Mapping[str, Any]) -> None:
    problems = [
        f"{name} is {shown(options[name])}: not computed here; pass {name}={idle[-1]!r}"
        for name, idle in LONG_FORM.items()
        if name in options and options[name] not in idle
    ]
    if isinstance(options.get("temperature"), list | tuple):
        problems.append(
            f"temperature is {shown(options['temperature'])}: several are tried on longer sounds "
            "only; pass one"
        )
    if problems:
        raise InputRefused(listed("transcription options refused:", problems))


def _drawing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the temperature decides, as in transformers."""
    temperature = options.get("temperature")
    drawn = isinstance(temperature, int | float) and temperature > 0
    if drawn:
        return {"do_sample": True, "num_beams": 1}
    return {"do_sample": False, "temperature": 1.0 if temperature in (None, 0) else temperature}


def _limited(settings: GenerationOptions, width: int, limit: int) -> GenerationOptions:
    """Return the settings of a call whose `max_length` does not count its prompts."""
    changes: dict[str, Any] = {"num_return_sequences": 1}
    if settings.max_new_tokens is None and settings.max_length is not None:
        counted = min(limit // 2 - 1, width)
        changes["max_length"] = min(settings.max_length + counted, limit)
    return dataclasses.replace(settings, **changes)


def _heard(bundle: Bundle, memory: jax.Array, start: int, stored: Mapping[str, Any]) -> np.ndarray:
    """Return the id of each sound's likeliest language, int [N]."""
    ids = np.array(sorted(stored["lang_to_id"].values()))
    logits = np.asarray(_first_logits(bundle.model, bundle.variables, memory, jnp.int32(start)))
    return ids[np.argmax(logits[:, ids], axis=-1)]


@partial(jax.jit, static_argnums=0)
def _first_logits(model: Any, variables: Any, memory: jax.Array, start: jax.Array) -> jax.Array:
    """Return logits [N, V] behind the start id."""
    tokens = jnp.broadcast_to(start, (memory.shape[0], 1))
    hidden = model.apply(variables, tokens, None, memory, None, method="decoded")
    return model.apply(variables, hidden[:, -1], method="logits")


def _without_ends(ids: np.ndarray, settings: GenerationOptions) -> np.ndarray:
    """Return new ids [N, T] without each row's end, padded anew.

    What counts as padding is what transformers takes off: as many ids as there are padding ids.
    """
    ends, pad = settings.eos_token_id, settings.pad_token_id
    rows = []
    for row in ids:
        if len(row) and row[-1] == pad:
            extra = int((row == pad).sum()) - (pad in ends)
            row = row[: len(row) - extra]
        rows.append(row[:-1] if len(row) and row[-1] in ends else row)
    found = np.full((len(rows), max(map(len, rows))), pad, np.int32)
    for place, row in zip(found, rows, strict=True):
        place[: len(row)] = row
    return found

"""Whisper's generation: sounds in, the ids of what was said in them out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused, listed, shown
from dew.inference.answering import AnsweringEngine, encoded, forced_options, start_id
from dew.inference.bundle import Bundle
from dew.inference.decode import Forced, Streamer
from dew.inference.generation import GenerationOptions
from dew.inference.model_inputs import checked_inputs
from dew.inference.speech_prompts import read_prompt
from dew.inference.speech_segments import Conditions, Hearing, Segment
from dew.sampling.times import Times

PROMPTING = ("language", "task", "is_multilingual", "prompt_ids")
"""The options that bear on what the decoder is given to begin with."""
LASTING = ("return_timestamps", "condition_on_prev_tokens", "prompt_condition_type")
"""The options that bear on times, and on what a window's text goes on from."""
LONG_FORM: dict[str, tuple[Any, ...]] = {
    "return_token_timestamps": (None, False),
    "return_segments": (None, False),
    "compression_ratio_threshold": (None,),
    "logprob_threshold": (None,),
    "no_speech_threshold": (None,),
    "num_segment_frames": (None,),
    "force_unique_generate_call": (None, False),
}
"""transformers' options that ask for more than ids, or for another try at a window, with the
values that ask for neither."""
UNREAD = """
alignment_heads max_initial_timestamp_index prev_sot_token_id median_filter_width
forced_decoder_ids lang_to_id task_to_id no_timestamps_token_id
"""
"""Keys of a checkpoint's generation config beside the options."""
CONDITIONS = ("first-segment", "all-segments")
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
    """Write down what is said in each sound.

    Args:
        bundle: of a `SpeechToText`.
        input_features: spectrograms [N, M, F]. Fewer frames than a window has are followed by
            zeros; more are heard a window at a time, each from the last time of the one before.
        attention_mask: [N, F], 1 where a frame is no padding; read of several sounds longer than
            a window.
        streamer: told of the prompts and of each step's ids as they come.
        **options: the fields of `GenerationOptions`; `language` (a name, a code or a token, or one
            for each sound), `task` ("transcribe" or "translate"), `is_multilingual` and
            `prompt_ids` (of a text that came before, see transformers' `get_prompt_ids`);
            `return_timestamps` (ids of times among the others; always of longer sounds),
            `condition_on_prev_tokens` and `prompt_condition_type`. What is not given comes from
            the checkpoint; a language that neither names is heard. `temperature` above 0 draws,
            and nothing else does.

    Returns:
        int32 [N * num_return_sequences, T]: the new ids alone, without the end, padded.

    Raises:
        InputRefused: as `Bundle.generate`; `return_timestamps=False` of longer sounds, an option
            that is not followed, a language or a task without an id.

    Source: transformers 5.24's WhisperForConditionalGeneration.generate.
    """
    features = _spectrograms(bundle, input_features)
    parts: list[Any] = list(features)
    several = len(features) > 1 and features.shape[2] > bundle.model.frames
    if attention_mask is not None and several:
        lengths = np.asarray(attention_mask).sum(axis=1)
        parts = [part[:, : int(length)] for part, length in zip(parts, lengths, strict=True)]
    found = spoken_segments(bundle, parts, streamer=streamer, **options)
    rows = [[one for segment in segments for one in segment.ids] for segments in found.segments]
    ids = np.full((len(rows), max(map(len, rows))), found.pad, np.int32)
    for place, row in zip(ids, rows, strict=True):
        place[: len(row)] = row
    return ids


class Spoken(NamedTuple):
    """What was said in sounds: the segments of each, and what pads their ids.

    `language` holds the id of each sound's language, None where there is none.
    """

    segments: list[list[Segment]]
    pad: int
    languages: list[int | None]


def spoken_segments(
    bundle: Bundle,
    features: Sequence[np.ndarray],
    *,
    streamer: Streamer | None = None,
    **options: Any,
) -> Spoken:
    """Return what is said in sounds, stretch by stretch.

    Args:
        bundle: of a `SpeechToText`.
        features: spectrograms [M, F] of any number of frames, at least one.
        streamer: as for `transcribed`.
        **options: as for `transcribed`.

    Raises:
        InputRefused: as `transcribed`.
    """
    stored, model = _stored(bundle), bundle.model
    _refuse_long_form({**{k: stored[k] for k in LONG_FORM if k in stored}, **options})
    lasting = {name: _first(options.get(name), stored.get(name)) for name in LASTING}
    timed = _timed(lasting["return_timestamps"], stored, features, model.frames)
    settings, forced = _settings(bundle, stored, options)
    asked = {name: options.get(name) for name in PROMPTING}
    prompt = read_prompt(stored, asked, start_id(bundle, options), model.vocab_size, timed=timed)
    if timed:
        forced = forced._replace(times=_times(stored, settings.eos_token_id))

    features = [part for part in features for _ in range(settings.num_return_sequences)]
    hearing = Hearing(
        bundle,
        dataclasses.replace(settings, num_return_sequences=1),
        forced,
        stored.get("no_timestamps_token_id", model.vocab_size) + 1,
        conditions=_conditions(lasting, prompt.before, stored),
        before=prompt.before,
        streamer=streamer,
    )
    memory = encoded(model, bundle.variables, hearing.windows([(part, 0) for part in features]))
    prompts = prompt.ids(len(features), lambda: _heard(bundle, memory, prompt.start, stored))
    if prompts.shape[1] > 1 or prompt.before:
        # It would stand right behind the start.
        hearing.forced = forced._replace(first=None)
    known = set((stored.get("lang_to_id") or {}).values())
    languages = [next((int(one) for one in row if one in known), None) for row in prompts]
    segments = hearing.segments(features, prompts, np.asarray(memory))
    return Spoken(segments, settings.pad_token_id, languages)


def _settings(
    bundle: Bundle, stored: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[GenerationOptions, Forced]:
    """Return the options of `generate` among those of a call, and the forced ids."""
    apart = {*PROMPTING, *LASTING, *LONG_FORM}
    given = {name: value for name, value in options.items() if name not in apart}
    plain = {k: value for k, value in stored.items() if k not in {*apart, *UNREAD.split()}}
    bundle = bundle.replace(generation_config=plain)
    return forced_options(bundle, {**given, **_drawing(given)})


def _spectrograms(bundle: Bundle, input_features: Any) -> np.ndarray:
    """Return checked spectrograms [N, M, F]."""
    if "automatic-speech-recognition" not in bundle.tasks:
        raise InputRefused(
            "the model was loaded without its head; load it with "
            "task='automatic-speech-recognition'"
        )
    start = np.zeros((1, 1), np.int32)
    given = {"input_features": input_features, "decoder_input_ids": start}
    features = np.asarray(checked_inputs(bundle.model, given)["input_features"])
    if features.shape[1] != bundle.model.bands:
        raise InputRefused(
            f"input_features has {features.shape[1]} mel bands, the model reads "
            f"{bundle.model.bands}; prepare the sound with the checkpoint's processor"
        )
    return features


def _timed(
    asked: Any, stored: Mapping[str, Any], features: Sequence[np.ndarray], frames: int
) -> bool:
    """Return whether the text is to hold times."""
    longest = max(part.shape[1] for part in features)
    if longest > frames and asked is False:
        raise InputRefused(
            f"input_features has {longest} frames, the model hears {frames} at a time, and goes "
            "on where the last time of a window is: pass return_timestamps=True, or cut the sound "
            "into windows"
        )
    timed = bool(asked) or longest > frames
    if timed and stored.get("no_timestamps_token_id") is None:
        raise InputRefused(
            "the checkpoint's generation_config.json has no no_timestamps_token_id, so times "
            "cannot be asked for; take the file of a newer revision"
        )
    return timed


def _times(stored: Mapping[str, Any], ends: Sequence[int]) -> Times:
    off = stored["no_timestamps_token_id"]
    end = ends[0] if ends else stored["bos_token_id"]
    return Times(off + 1, end, off, stored.get("max_initial_timestamp_index"))


def _conditions(
    lasting: Mapping[str, Any], before: tuple[int, ...], stored: Mapping[str, Any]
) -> Conditions:
    """Return what windows go on from."""
    kind, on = lasting["prompt_condition_type"], bool(lasting["condition_on_prev_tokens"])
    if kind not in (None, *CONDITIONS):
        raise InputRefused(
            f"prompt_condition_type is {shown(kind)}; expected {' or '.join(CONDITIONS)}"
        )
    if kind == CONDITIONS[1] and not on:
        raise InputRefused(
            f"prompt_condition_type is {shown(kind)}, which needs condition_on_prev_tokens=True"
        )
    mark = stored.get("prev_sot_token_id")
    suppressed = stored.get("suppress_tokens") or ()
    if mark is None and len(suppressed) >= 2:
        mark = suppressed[-2]
    return Conditions(on, mark, before if kind == CONDITIONS[1] else ())


def _first(value: Any, other: Any) -> Any:
    return other if value is None else value


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

"""Speech recognition: sounds in, what was said in them out, with its times where asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.pipelines.letter_recognition import LetterRecognition
from dew.inference.pipelines.sound_pieces import pieces_of
from dew.inference.pipelines.sounds import sound_of
from dew.inference.pipelines.task import Options, Task
from dew.inference.pipelines.whisper_recognition import WhisperRecognition

TIMES = (None, False, True, "char", "word")


class SpeechRecognition(Task):
    """Writes down what is said in sounds.

    Options of a call:

    - `chunk_length_s`: seconds of the pieces that a long sound is cut into; 0 for none. Without it
      Whisper hears a long sound window by window.
    - `stride_length_s`: seconds that a piece shares with those before and behind it; a number or
      two; a sixth of the piece by default.
    - `return_timestamps`: "char" or "word" of letters (wav2vec 2.0); true (for each stretch) or
      "word" of Whisper.
    - `return_language`: name the language of each stretch; Whisper's only.
    - `ignore_warning`: for old calls; nothing is warned of.
    - `generate_kwargs`, or any option of `bundle.generate`: Whisper's only. As in transformers a
      text comes of 5 beams and has at most 256 ids, unless the checkpoint states other numbers.

    A result is `{"text": ...}`, with times `chunks` beside it, each `{"text": ..., "timestamp":
    (begin, end)}` in seconds.

    Source: transformers 5.24's AutomaticSpeechRecognitionPipeline.
    """

    name = "automatic-speech-recognition"
    fits = ("automatic-speech-recognition",)
    needs = "sounds"
    reads = (
        "a sound: a path, an address, a file's bytes, float samples at the model's rate, or a dict "
        "of raw (or array) and sampling_rate"
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "chunk_length_s": None,
        "stride_length_s": None,
        "return_timestamps": None,
        "return_language": None,
        "ignore_warning": None,
        "decoder_kwargs": None,
        "generate_kwargs": None,
    }

    def __init__(self, bundle: Bundle, *, batch_size: int | None = None, **options: Any):
        writes = "input_features" in getattr(bundle.model, "input_names", ())
        kind: Any = WhisperRecognition if writes else LetterRecognition
        self._recognition: Any = None
        self._kind = kind
        super().__init__(bundle, batch_size=batch_size, **options)

    def merged(self, given: Mapping[str, Any]) -> Options:
        """Return all options: those given, over the task's own; see `Task.merged`."""
        own = {name: value for name, value in given.items() if name in self.defaults}
        more = {name: value for name, value in given.items() if name not in self.defaults}
        more = {**(own.pop("generate_kwargs", None) or {}), **more}
        return {**super().merged(own), "generate": {**self._options.get("generate", {}), **more}}

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        if self._recognition is None:
            self._recognition = self._kind(self.bundle, self.processor, self.name)
        _check_times(options["return_timestamps"])
        return self._recognition.checked(options)

    def is_one(self, inputs: Any) -> bool:
        """Tell whether `inputs` is one sound."""
        if isinstance(inputs, np.ndarray):
            return True
        return isinstance(inputs, str | bytes | bytearray | Mapping | os.PathLike)

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return what was said in each sound."""
        sounds, pieces = [], []
        for place, item in enumerate(items):
            try:
                sound = sound_of(item, self.processor)
                own = pieces_of(sound, place, options, self._recognition.step, self.processor.rate)
            except InputRefused as error:
                if len(items) == 1:
                    raise
                raise InputRefused(f"sound {place} of {len(items)}: {error}") from None
            sounds.append(sound)
            pieces += own
        heard = self._recognition.heard(pieces, options, batch_size=batch_size)
        results = []
        for place, sound in enumerate(sounds):
            mine = [one for piece, one in zip(pieces, heard, strict=True) if piece.sound == place]
            found = self._recognition.result(mine, options)
            # What a dict held beside the sound goes along, once a piece as in transformers.
            beside = {name: [value] * len(mine) for name, value in sound.beside.items()}
            results.append({**found, **beside})
        return results


def _check_times(value: Any) -> None:
    if not any(value is one or value == one for one in TIMES):
        raise InputRefused(f"return_timestamps is {shown(value)}; expected True, 'char' or 'word'")

"""Speech recognition by a model that writes: Whisper, window by window or piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.inference.pipelines.sound_pieces import Piece
from dew.inference.pipelines.task import Options
from dew.inference.speech_segments import Segment
from dew.inference.spoken_text import Heard, Meanings, spoken_text
from dew.inference.transcription import spoken_segments
from dew.inference.word_times import id_times

BEAMS, NEW_TOKENS = 5, 256
"""What transformers' pipeline takes where neither the call nor the checkpoint says otherwise."""
FEATURES = "input_features"


class WhisperRecognition:
    """Hears sounds and writes their texts.

    Args:
        bundle: of a `SpeechToText`.
        sounds: its feature extractor.
        name: the task's, for messages.

    Attributes:
        step: samples that pieces are multiples of.

    Raises:
        InputRefused: the checkpoint has no tokenizer.
    """

    step = 1

    def __init__(self, bundle: Bundle, sounds: Any, name: str):
        self._bundle, self._sounds, self._name = bundle, sounds, name
        if bundle.tokenizer is None:
            raise InputRefused(
                f"{name} needs a tokenizer and the checkpoint has none; put tokenizer.json beside "
                "the weights"
            )
        self._meanings = Meanings(bundle.tokenizer)

    def checked(self, options: Options) -> Options:
        """Return usable options.

        Raises:
            InputRefused: times that only letters have.
        """
        if options["return_timestamps"] == "char":
            raise InputRefused(
                "return_timestamps is 'char'; Whisper has times by 'word' or, with True, of each "
                "stretch: pass one of them"
            )
        if options["decoder_kwargs"]:
            raise InputRefused("decoder_kwargs: Whisper reads no language model; leave it out")
        stored = self._bundle.generation_config
        times = options["return_timestamps"] or stored.get("return_timestamps") or None
        given = {name: value for name, value in stored.items() if value is not None}
        given |= options["generate"]
        added: dict[str, Any] = {"num_beams": BEAMS, "max_new_tokens": NEW_TOKENS}
        if "max_length" in given:
            del added["max_new_tokens"]
        added = {name: value for name, value in added.items() if name not in given}
        asked = {**added, **options["generate"]}
        if times:
            asked["return_timestamps"] = True
        return {**options, "return_timestamps": times, "asked": asked}

    def heard(self, pieces: Sequence[Piece], options: Options, *, batch_size: int) -> list[Heard]:
        """Return what was written of each piece."""
        results = []
        for first in range(0, len(pieces), batch_size):
            batch = pieces[first : first + batch_size]
            found = spoken_segments(
                self._bundle, [self._features(piece) for piece in batch], **options["asked"]
            )
            for piece, segments, language in zip(
                batch, found.segments, found.languages, strict=True
            ):
                ids = [one for segment in segments for one in segment.ids]
                if options["return_language"] and language is not None:
                    # The prompt holds it, and is no part of the text.
                    ids = [language, *ids]
                times = self._times(piece, segments, options)
                results.append(Heard(ids, self._stride(piece), times))
        return results

    def result(self, heard: Sequence[Heard], options: Options) -> dict[str, Any]:
        """Return what was said in a sound, of what was written of its pieces."""
        return spoken_text(
            heard,
            self._meanings,
            place_seconds=self._sounds.seconds / self._bundle.model.source_positions,
            timestamps=options["return_timestamps"],
            languages=options["return_language"],
        )

    def _features(self, piece: Piece) -> NDArray[np.float32]:
        """Return a piece's spectrogram [M, F]: whole where the sound was not cut."""
        features = self._sounds(
            [piece.samples], sampling_rate=self._sounds.rate, whole=piece.stride is None
        )
        return features[FEATURES][0]

    def _times(
        self, piece: Piece, segments: Sequence[Segment], options: Options
    ) -> list[float] | None:
        """Return when each id of a piece was said, where words are to have times."""
        if options["return_timestamps"] != "word":
            return None
        window, samples = self._bundle.model.frames, len(piece.samples)
        frames = samples // self._sounds.hop
        if frames < window or piece.stride is not None:
            # A frame that begins within the sound counts.
            frames = min(-(-samples // self._sounds.hop), window)
        heads = self._bundle.generation_config.get("alignment_heads")
        return id_times(self._bundle, segments, heads, frames)

    def _stride(self, piece: Piece) -> tuple[float, float, float] | None:
        if piece.stride is None:
            return None
        length, left, right = (samples / self._sounds.rate for samples in piece.stride)
        return length, left, right

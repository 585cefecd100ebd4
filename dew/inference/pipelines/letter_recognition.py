"""Speech recognition by letters: what a wav2vec 2.0 hears, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dew.errors import InputRefused, UnknownName, shown
from dew.inference.bundle import Bundle
from dew.inference.ctc import likeliest, word_places
from dew.inference.pipelines.sound_pieces import Piece
from dew.inference.pipelines.task import Options
from dew.inference.row_outputs import padded_length

VALUES, MASK = "input_values", "attention_mask"


class LetterRecognition:
    """Hears sounds letter by letter.

    Args:
        bundle: a model that names a letter for each place of a sound.
        sounds: its feature extractor.
        name: the task's, for messages.

    Attributes:
        step: samples from one place to the next.

    Raises:
        InputRefused: the checkpoint has no letters that are read.
    """

    def __init__(self, bundle: Bundle, sounds: Any, name: str):
        self._bundle, self._sounds, self._name = bundle, sounds, name
        self._letters: Any = getattr(bundle.processor, "tokenizer", None)
        if not hasattr(self._letters, "places"):
            raise InputRefused(
                f"{name} needs the letters of the checkpoint, and it has no vocab.json of them; "
                "put the tokenizer's files beside the weights"
            )
        strides = bundle.config.get("conv_stride") or (5, 2, 2, 2, 2, 2, 2)
        self.step = int(np.prod(strides))

    def checked(self, options: Options) -> Options:
        """Return usable options.

        Raises:
            InputRefused: times that letters do not have, or options of a model that writes.
        """
        if options["return_timestamps"] is True:
            raise InputRefused(
                "return_timestamps is True; letters have times by 'char' or by 'word': pass one of "
                "them"
            )
        if options["return_language"] is not None:
            raise InputRefused(
                "return_language: the model names letters, not languages; leave it out"
            )
        if options["decoder_kwargs"]:
            raise InputRefused(
                "decoder_kwargs: no language model is read beside the letters; leave it out"
            )
        if options["generate"]:
            name = next(iter(options["generate"]))
            raise UnknownName(f"{self._name} has no option {shown(name)} for a model of letters")
        return options

    def heard(
        self, pieces: Sequence[Piece], options: Options, *, batch_size: int
    ) -> list[list[int]]:
        """Return the likeliest letter of each place of each piece, without its strides."""
        del options
        results: list[list[int]] = [[] for _ in pieces]
        by_length: dict[int, list[int]] = {}
        for place, piece in enumerate(pieces):
            by_length.setdefault(self._length(len(piece.samples)), []).append(place)
        for length, places in by_length.items():
            for first in range(0, len(places), batch_size):
                batch = places[first : first + batch_size]
                for place, row in zip(batch, self._batch(pieces, batch, length), strict=True):
                    results[place] = _between(row, pieces[place].stride, self.step)
        return results

    def result(self, heard: Sequence[list[int]], options: Options) -> dict[str, Any]:
        """Return what was said in a sound, of the letters of its pieces."""
        ids = [one for part in heard for one in part]
        found: dict[str, Any] = {"text": self._letters.decode(ids)}
        kind = options["return_timestamps"]
        if kind:
            places = self._letters.places(ids)
            if kind == "word":
                places = word_places(places, self._letters.gap)
            found["chunks"] = [
                {"text": text, "timestamp": (self._seconds(start), self._seconds(end))}
                for text, start, end in places
            ]
        return found

    def _seconds(self, place: int) -> float:
        return place * self.step / self._sounds.rate

    def _length(self, samples: int) -> int:
        """Return the length that so many samples are padded to, the same for many lengths.

        A model whose norms look over all of the time minds padding; it gets none.
        """
        masked = getattr(self._bundle.model, "convolution_norm", None) == "layer"
        return padded_length(samples) if masked else samples

    def _batch(self, pieces: Sequence[Piece], batch: Sequence[int], length: int) -> list[list[int]]:
        """Return the letters of a batch of pieces, each padded to `length`."""
        inputs = self._sounds(
            [pieces[place].samples for place in batch],
            sampling_rate=self._sounds.rate,
            return_attention_mask=True,
        )
        room = ((0, 0), (0, length - inputs[VALUES].shape[1]))
        values = np.pad(inputs[VALUES], room, constant_values=self._sounds.padding_value)
        mask, model = np.pad(inputs[MASK], room), self._bundle.model
        short, fewest = int(mask.sum(axis=1).min()), getattr(model, "fewest_samples", 0)
        if short < fewest:
            raise InputRefused(
                f"a sound of {short} samples; the model looks at {fewest} for one letter. Expected "
                "a longer sound"
            )
        given: Any = {VALUES: values, MASK: mask}
        taken = getattr(self._bundle, "taken", None)
        if taken is not None:  # a traced model may read no mask
            given = taken(**given)
        logits = self._bundle(**given)["logits"]
        places = model.places_of(mask.sum(axis=1)) if hasattr(model, "places_of") else None
        return likeliest(logits, places)


def _between(row: list[int], stride: tuple[int, int, int] | None, step: int) -> list[int]:
    """Return the letters of a piece that are its own, not its neighbours'."""
    if stride is None:
        return row
    samples, left, right = stride
    places = round(samples * (1 / step))
    first, behind = (round(side / samples * places) for side in (left, right))
    return row[first : places - behind]

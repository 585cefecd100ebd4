"""Whisper on sounds of any length: windows one after another, each begun where the last ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dew.inference.answering import encoded
from dew.inference.bundle import Bundle
from dew.inference.choice import Forced
from dew.inference.decode import Streamer, continued
from dew.inference.generation import GenerationOptions

STRIDE = 2
"""Frames of a spectrogram to a place of the encoder, and so to a step of the ids of times."""


@dataclass(frozen=True)
class Conditions:
    """What a window's text may go on from.

    Attributes:
        on: whether it goes on from the text of the windows before it.
        mark: the id that stands before an earlier text, or None.
        each: ids that stand there in place of `mark` and of what was said before, for every
            window; empty for none.
    """

    on: bool = False
    mark: int | None = None
    each: tuple[int, ...] = ()


class Written(NamedTuple):
    """What was written of one window: its ids without the end, and all ids with the prompt."""

    ids: list[int]
    whole: list[int]
    prompt: int


@dataclass(frozen=True)
class Segment:
    """A stretch of a sound and what was said in it.

    Attributes:
        ids: the ids, those of times among them.
        frame: the frame that its window begins at.
        first: place of its first id among those of its window.
        window: what was written of the whole window.
        features: the window's spectrogram [M, F].
        frames: how many of them are no padding.
    """

    ids: list[int]
    frame: int = 0
    first: int = 0
    window: Written | None = None
    features: Any = None
    frames: int = 0


@dataclass
class _Sound:
    """A sound that is being heard: its frames, how far it is heard, and what was said.

    `longest` is the `max_length` of its windows, which grows with each one's prompt as in
    transformers.
    """

    features: np.ndarray
    prompt: list[int]
    frames: int
    longest: int | None = None
    seek: int = 0
    said: list[Segment] = field(default_factory=list)


@dataclass
class Hearing:
    """One call on sounds.

    Args:
        bundle: of a `SpeechToText`.
        settings: the options; those of one row a prompt.
        forced: ids that the logits do not choose, and the rule of times.
        begin: the id of the time 0; beyond the vocabulary where there is none.
        conditions: what windows go on from.
        before: ids of a text that came before the sound.
        streamer: told of the ids of the first window.
    """

    bundle: Bundle
    settings: GenerationOptions
    forced: Forced
    begin: int
    conditions: Conditions = Conditions()
    before: Sequence[int] = ()
    streamer: Streamer | None = None

    def segments(
        self, features: Sequence[np.ndarray], prompts: np.ndarray, memory: Any = None
    ) -> list[list[Segment]]:
        """Return what is said in each sound.

        Args:
            features: spectrograms [M, F] of any number of frames.
            prompts: int32 [N, W], the ids that each one's windows begin with.
            memory: the encoder's states [N, P, D] of the first windows, where they are known.
        """
        earlier = [Segment(list(self._plain(self.before)))] if len(self.before) else []
        sounds = [
            _Sound(each, row.tolist(), each.shape[1], self.settings.max_length, said=list(earlier))
            for each, row in zip(features, prompts, strict=True)
        ]
        while waiting := [sound for sound in sounds if sound.seek < sound.frames]:
            groups = [[one] for one in waiting] if self.conditions.on else [waiting]
            for place, group in enumerate(groups):
                known = memory
                if self.conditions.on and memory is not None:
                    known = memory[place : place + 1]
                found = self._window(group, len(sounds), known)
                for sound, written in zip(group, found, strict=True):
                    self._split(sound, written)
            memory = None
        return [sound.said[len(earlier) :] for sound in sounds]

    def _window(self, sounds: Sequence[_Sound], rows: int, memory: Any) -> list[Written]:
        """Return what is written of each sound's next window."""
        prompts = [self._prompt(sound) for sound in sounds]
        # Sounds that ended are followed by copies of the last one: a smaller batch would be
        # compiled once more.
        count = len(sounds) if self.conditions.on else rows
        index = [min(place, len(sounds) - 1) for place in range(count)]
        starts = np.array([prompts[place] for place in index], np.int32)
        if memory is None:
            windows = self.windows(
                [(sounds[place].features, sounds[place].seek) for place in index]
            )
            memory = encoded(self.bundle.model, self.bundle.variables, windows)
        ids, lengths = continued(
            self.bundle,
            self._limited(sounds, starts.shape[1]),
            starts,
            np.ones_like(starts),
            streamer=self.streamer,
            source=np.asarray(memory),
            forced=self.forced,
        )
        width = starts.shape[1]
        return [
            Written(self._own(row[width:]), row[: width + length].tolist(), width)
            for row, length in zip(ids[: len(sounds)], lengths, strict=False)
        ]

    def windows(self, places: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
        """Return a window [N, M, frames] of each spectrogram from a frame on, zeros behind it."""
        model = self.bundle.model
        found = np.zeros((len(places), model.bands, model.frames), np.float32)
        for window, (features, seek) in zip(found, places, strict=True):
            part = features[:, seek : seek + model.frames]
            window[:, : part.shape[1]] = part
        return found

    def _prompt(self, sound: _Sound) -> list[int]:
        """Return the ids that a sound's next window begins with."""
        if not self.conditions.on or not sound.said:
            return [*self.before, *sound.prompt]
        earlier = [
            one
            for segment in sound.said
            for one in (segment.ids[:-1] if self._ends_twice(segment.ids) else segment.ids)
        ]
        room = self.bundle.model.position_limit // 2 - 1
        mark = [] if self.conditions.mark is None else [self.conditions.mark]
        return [*(self.conditions.each or mark), *earlier[-room:], *sound.prompt]

    def _ends_twice(self, ids: Sequence[int]) -> bool:
        return len(ids) > 2 and ids[-2] >= self.begin

    def _plain(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[1:] if ids[0] == self.conditions.mark else ids

    def _limited(self, sounds: Sequence[_Sound], width: int) -> GenerationOptions:
        """Return the options of a window, whose `max_length` does not count its prompt."""
        settings, longest = self.settings, sounds[0].longest
        if settings.max_new_tokens is not None or longest is None:
            return settings
        limit = self.bundle.model.position_limit
        longest = min(longest + min(limit // 2 - 1, width), limit)
        for sound in sounds:
            sound.longest = longest
        return dataclasses.replace(settings, max_length=longest)

    def _own(self, row: np.ndarray) -> list[int]:
        """Return new ids [T] without the end, and without what transformers takes for padding."""
        ends, pad = self.settings.eos_token_id, self.settings.pad_token_id
        if len(row) and row[-1] == pad:
            extra = int((row == pad).sum()) - (pad in ends)
            row = row[: len(row) - extra]
        row = row[:-1] if len(row) and row[-1] in ends else row
        return row.tolist()

    def _split(self, sound: _Sound, written: Written) -> None:
        """Cut a window's text where two times stand together, and move on to the last of them."""
        ids, left = written.ids, min(sound.frames - sound.seek, self.bundle.model.frames)
        times = [one >= self.begin for one in ids]
        cuts = [place for place in range(1, len(ids)) if times[place - 1] and times[place]]
        alone = times[-2:] == [False, True]
        moved = left
        if not cuts:
            cuts = [len(ids)]
        elif alone:
            cuts.append(len(ids))
        else:
            # The second of the last two times stays, to tell this end from a lone one.
            cuts[-1] += 1
            # Without the rule of times the last one may be 0, which would go nowhere.
            moved = (ids[cuts[-1] - 2] - self.begin) * STRIDE or left
        first = 0
        for cut in cuts:
            sound.said.append(
                Segment(ids[first:cut], sound.seek, first, written, sound.features, sound.frames)
            )
            first = cut
        sound.seek += moved

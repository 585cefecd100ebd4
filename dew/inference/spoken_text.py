"""From the ids that Whisper wrote of a sound, in one piece or several, to text and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dew.inference.languages import LANGUAGE_CODES
from dew.inference.overlaps import merged
from dew.inference.spoken_words import words_of

PLACES = 1500
"""Places of a window that is taken to have been heard whole, whatever the model's size."""
DIGITS = 2


@dataclass(frozen=True)
class Heard:
    """What was written of one piece of a sound.

    Attributes:
        ids: the ids.
        stride: seconds of the piece, and how many of them on its left and right belong to its
            neighbours; None where the sound was not cut.
        times: when each id was said, in seconds; None where nobody asked.
    """

    ids: Sequence[int]
    stride: tuple[float, float, float] | None = None
    times: Sequence[float] | None = None


class Meanings:
    """What the ids of a Whisper tokenizer mean.

    Args:
        processor: the checkpoint's tokenizer.
    """

    def __init__(self, processor: Any):
        self._processor = processor
        off = processor.token_id("<|notimestamps|>")
        self.begin = processor.vocab_size if off is None else off + 1
        self.start = processor.token_id("<|startoftranscript|>")
        self.previous = processor.token_id("<|startofprev|>")
        self.special = frozenset(processor.special_ids)
        self.end = processor.token_id(processor.special_tokens["eos_token"])
        self._names = {}
        for name, code in LANGUAGE_CODES.items():
            self._names.setdefault(code, name)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self._processor.decode(list(ids), skip_special_tokens=False)

    def language(self, number: int) -> str | None:
        """Return the name of the language that a special id stands for, or None."""
        return self._names.get(self.text([number])[2:-2])

    def own(self, ids: Sequence[int]) -> list[int]:
        """Return ids without a prompt of an earlier text before them."""
        ids = [int(one) for one in ids]
        if not ids or ids[0] != self.previous or self.previous is None:
            return ids
        return ids[ids.index(self.start) :] if self.start in ids else []


@dataclass
class _Open:
    """The chunk that is being written, and what its pieces hold so far."""

    language: str | None
    begin: float | None = None
    ids: list[list[int]] = field(default_factory=list)
    times: list[list[tuple[float, float]]] = field(default_factory=list)


def spoken_text(
    parts: Sequence[Heard],
    meanings: Meanings,
    *,
    place_seconds: float,
    timestamps: bool | str | None = None,
    languages: bool | None = None,
) -> dict[str, Any]:
    """Return what was said in a sound.

    Args:
        parts: what was written of its pieces, in their order.
        meanings: of the ids.
        place_seconds: what one step of the ids of times stands for.
        timestamps: true for a chunk between each two times, "word" for one a word.
        languages: name each chunk's language.

    Returns:
        `{"text": ...}`, with times or languages also `chunks`, each a dict of `language` (where
        asked for), `timestamp` (begin and end in seconds) and `text`.

    Source: transformers 5.24's Whisper tokenizer, whose chunks these are.
    """
    reader = _Reader(meanings, place_seconds, timestamps, languages)
    for part in parts:
        reader.read(part)
    chunks = reader.finished()
    text = "".join(chunk["text"] for chunk in chunks)
    if not timestamps and not languages:
        return {"text": text}
    if timestamps == "word":
        return {"text": text, "chunks": [word for chunk in chunks for word in chunk["words"]]}
    kept = ("language",) * bool(languages) + ("timestamp",) * bool(timestamps) + ("text",)
    return {"text": text, "chunks": [{name: chunk[name] for name in kept} for chunk in chunks]}


class _Reader:
    """Reads pieces id by id; chunks end at times that no neighbour repeats."""

    def __init__(self, meanings: Meanings, step: float, timestamps: Any, languages: Any):
        self._meanings, self._step = meanings, step
        self._by_word, self._timed, self._named = timestamps == "word", bool(timestamps), languages
        self._chunks: list[dict[str, Any]] = []
        self._language: str | None = None
        self._open = _Open(None)
        self._offset = 0.0
        self._skips = False

    def read(self, part: Heard) -> None:
        """Read one piece."""
        ids, means = self._meanings.own(part.ids), self._meanings
        length, left, right = part.stride or (0.0, 0.0, 0.0)
        self._offset -= left
        first = left / self._step + means.begin if left else means.begin
        last = self._edge(ids, length - right) if right else None
        clock = _Clock(self._step)
        now: list[int] = []
        times: list[tuple[float, float]] = []
        for place, number in enumerate(ids):
            if number in means.special:
                now = self._heard_language(means.language(number), now)
            elif number >= means.begin:
                shift = clock.shift(ids, place, means.begin)
                time = (number - means.begin) * self._step + self._offset + shift
                if self._at_time(number, round(time, DIGITS), first, last, now, times):
                    now, times = [], []
            else:
                now.append(number)
                if self._by_word:
                    times.append(self._span(part.times or (), place))
        if part.stride is not None:
            self._offset += length - right
        self._leave(now, times)

    def finished(self) -> list[dict[str, Any]]:
        """Return the chunks, what is still open among them."""
        if self._open.ids:
            self._close(None)
        return self._chunks

    def _edge(self, ids: Sequence[int], end: float) -> int | None:
        """Return the first time of those at the right that the next piece repeats."""
        begin, last = self._meanings.begin, None
        for number in reversed(ids):
            if number >= begin:
                # The last one of all is repeated, wherever it is.
                if last is not None and (number - begin) * self._step < end:
                    break
                last = number
        return last

    def _heard_language(self, language: str | None, now: list[int]) -> list[int]:
        """Take note of a language; without times another one begins a chunk."""
        if language is None:
            return now
        if self._language and language != self._language and not self._timed:
            self._open.ids.append(now)
            self._close(None)
            now = []
        self._open.language = self._language = language
        return now

    def _at_time(
        self,
        number: int,
        time: float,
        first: float,
        last: int | None,
        now: list[int],
        times: list[tuple[float, float]],
    ) -> bool:
        """Open or close a chunk at a time; return whether one was closed."""
        if last and number >= last:
            # The next piece heard this too, and times come in pairs.
            self._skips = True
        elif self._skips or (self._open.ids and number < first):
            self._skips = False
        elif self._open.begin is None:
            self._open.begin = time
        elif time != self._open.begin:
            self._open.ids.append(now)
            if self._by_word:
                self._open.times.append(times)
            self._close(time)
            return True
        return False

    def _span(self, times: Sequence[float], place: int) -> tuple[float, float]:
        """Return when the id at a place begins and ends."""
        begin, end = times[place - 1] if place else 0.0, times[min(place, len(times) - 1)]
        return round(begin + self._offset, DIGITS), round(end + self._offset, DIGITS)

    def _leave(self, now: list[int], times: list[tuple[float, float]]) -> None:
        """Keep what a piece left behind, for the next one to go on with."""
        if now:
            self._open.ids.append(now)
            if self._by_word:
                self._open.times.append(times)
        elif not any(self._open.ids):
            self._open = _Open(self._language)

    def _close(self, end: float | None) -> None:
        """Write the open chunk, and open another."""
        ids, times = merged(self._open.ids, self._open.times)
        chunk: dict[str, Any] = {
            "language": self._open.language,
            "timestamp": (self._open.begin, end),
            "text": self._meanings.text(ids),
        }
        if self._by_word:
            chunk["words"] = self._words(ids, times)
        self._chunks.append(chunk)
        self._open = _Open(self._language)

    def _words(self, ids: Sequence[int], times: Sequence[tuple[float, float]]) -> list[dict]:
        named = {"language": self._language} if self._named else {}
        words = words_of(
            ids, self._meanings.text, language=self._language, first_special=self._meanings.end
        )
        return [
            {
                "text": word.text,
                "timestamp": (times[word.places[0]][0], times[word.places[-1]][1]),
                **named,
            }
            for word in words
        ]


class _Clock:
    """Follows times that begin anew where one window of a long sound ends."""

    def __init__(self, step: float):
        self._step = step
        self._heard = self._latest = self._earlier = 0.0

    def shift(self, ids: Sequence[int], place: int, begin: int) -> float:
        """Return the seconds of the windows before the one that the time at `place` is of."""
        time = float((ids[place] - begin) * self._step)
        if time < self._latest:
            alone = place >= 2 and not (ids[place - 1] >= begin and ids[place - 2] >= begin)
            if alone:
                # A window that ends in one time was heard to its end.
                self._heard += self._step * PLACES
            else:
                self._latest = self._earlier
                self._heard += self._earlier
        self._earlier, self._latest = self._latest, time
        return self._heard

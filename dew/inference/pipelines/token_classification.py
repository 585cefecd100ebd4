"""Token classification: texts in, their labelled tokens or entities out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.pipelines.class_scores import class_scores
from dew.inference.pipelines.entities import (
    STRATEGIES,
    Entity,
    Tagged,
    found_entities,
    merged_windows,
)
from dew.inference.pipelines.label_names import label_names
from dew.inference.pipelines.task import Options
from dew.inference.pipelines.text_task import TextTask
from dew.typing import Cutting


@dataclass(frozen=True)
class _Sentence:
    """A text; where each of its words starts, for one that came in words; offsets of its own."""

    text: str
    starts: Sequence[int] | None = None
    offsets: Sequence[tuple[int, int]] | None = None


class TokenClassification(TextTask):
    """Labels tokens, as named entities and parts of speech have it.

    Options of a call:

    - `aggregation_strategy`: "none" for tokens; "simple", "first", "average" or "max" for spans
      of one tag; see `found_entities`.
    - `ignore_labels`: labels to leave out; ["O"].
    - `stride`: read a long text in windows that share so many tokens, instead of its beginning.
    - `is_split_into_words`: a text is a list of words; `delimiter` is between them.
    - `offset_mapping`: the characters that each token covers, in place of the tokenizer's.

    A result is a list of `{"entity", "score", "index", "word", "start", "end"}`, or of
    `{"entity_group", "score", "word", "start", "end"}`.
    """

    name = "token-classification"
    fits = ("token-classification",)
    remedy = "pass stride= (with an aggregation_strategy) to read it in windows, or shorten it"
    defaults: ClassVar[Mapping[str, Any]] = {
        "aggregation_strategy": "none",
        "ignore_labels": None,
        "stride": None,
        "is_split_into_words": False,
        "delimiter": None,
        "offset_mapping": None,
    }

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Label; see `Task`."""
        words = options.get("is_split_into_words", self._options["is_split_into_words"])
        alone = isinstance(inputs, list) and all(isinstance(word, str) for word in inputs)
        return super().__call__([inputs] if words and alone and inputs else inputs, **options)

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        given = options["aggregation_strategy"]
        strategy = "none" if given is None else str(getattr(given, "value", given)).lower()
        if strategy not in STRATEGIES:
            raise InputRefused(
                f"aggregation_strategy is {shown(given)}; expected one of {', '.join(STRATEGIES)}"
            )
        stride, limit = options["stride"], self.longest
        if stride is not None:
            if strategy == "none":
                raise InputRefused(
                    "stride was given without aggregation_strategy; its windows are put together "
                    "by spans: choose one of simple, first, average, max"
                )
            if limit is None or type(stride) is not int or not 0 <= stride < limit:
                raise InputRefused(
                    f"stride is {shown(stride)}; expected a whole number below the {limit} tokens "
                    "that the model takes"
                )
        ignored = ("O",) if options["ignore_labels"] is None else options["ignore_labels"]
        between = " " if options["delimiter"] is None else options["delimiter"]
        return {
            **options,
            "aggregation_strategy": strategy,
            "ignore_labels": frozenset(ignored),
            "delimiter": between,
        }

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each text's tokens or entities."""
        words = bool(options["is_split_into_words"])
        sentences = [self._sentence(item, options) for item in items]
        texts = list(items) if words else [sentence.text for sentence in sentences]
        encodings = self.encoded(texts, self._cutting(options), words=words)
        windows = [
            [one, *one.overflowing] if options["stride"] is not None else [one] for one in encodings
        ]
        rows = [
            self.row(part, text=sentence.text)
            for sentence, parts in zip(sentences, windows, strict=True)
            for part in parts
        ]
        logits = [one["logits"] for one in self.outputs(rows, batch_size)]
        found, first = [], 0
        for sentence, parts in zip(sentences, windows, strict=True):
            entities = [
                entity
                for part, row in zip(parts, logits[first : first + len(parts)], strict=True)
                for entity in self._entities(sentence, part, row, options)
            ]
            first += len(parts)
            kept = merged_windows(entities) if len(parts) > 1 else entities
            found.append([_told(entity) for entity in kept])
        return found

    def _sentence(self, item: Any, options: Options) -> _Sentence:
        offsets = options["offset_mapping"]
        offsets = offsets[0] if offsets and isinstance(offsets[0], list) else offsets
        if not options["is_split_into_words"]:
            return _Sentence(self.text(item), offsets=offsets)
        if not isinstance(item, list | tuple) or not all(isinstance(word, str) for word in item):
            raise InputRefused(
                f"{self.name}: an input is {shown(item)}; with is_split_into_words=True a list of "
                "words is expected"
            )
        steps = [0, *(len(word) + len(options["delimiter"]) for word in item)]
        starts = np.cumsum(steps)[:-1].tolist()
        return _Sentence(options["delimiter"].join(item), starts, offsets)

    def _cutting(self, options: Options) -> Cutting | None:
        stated = getattr(self.processor, "model_max_length", None)
        if options["stride"] is not None and self.longest is not None:
            return Cutting(self.longest, stride=options["stride"])
        return None if stated is None else Cutting(stated)

    def _entities(
        self, sentence: _Sentence, encoding: Any, logits: np.ndarray, options: Options
    ) -> list[Entity]:
        names = label_names(self.bundle.config, logits.shape[-1])
        scores = class_scores(logits, "softmax")
        special = encoding.special_tokens_mask
        places = [at for at in range(len(scores)) if not special[at]]
        tokens = [self._tagged(sentence, encoding, scores[at], at) for at in places]
        strategy, ignored = options["aggregation_strategy"], options["ignore_labels"]
        entities = found_entities(tokens, strategy, names, self._joined)
        return [entity for entity in entities if entity.label not in ignored]

    def _tagged(self, sentence: _Sentence, encoding: Any, scores: np.ndarray, at: int) -> Tagged:
        backend, number = self.processor.tokenizer, encoding.ids[at]
        start, end = (sentence.offsets or encoding.offsets)[at]
        word = encoding.word_ids[at] if sentence.starts is not None else None
        if sentence.starts is not None and word is not None:
            start, end = start + sentence.starts[word], end + sentence.starts[word]
        spelling, covered = backend.id_to_token(number), sentence.text[start:end]
        if getattr(backend.model, "continuing_subword_prefix", None):
            inside = len(spelling) != len(covered)
        else:
            # Without words of the tokenizer's own: no space stands before the token.
            inside = start > 0 and " " not in sentence.text[start - 1 : start + 1]
        if number == self.processor.unk_token_id:
            spelling, inside = covered, False
        return Tagged(spelling, scores, start, end, at, inside)

    def _joined(self, spellings: list[str]) -> str:
        decoder = self.processor.tokenizer.decoder
        return " ".join(spellings) if decoder is None else decoder.decode(spellings)


def _told(entity: Entity) -> dict[str, Any]:
    name = "entity_group" if entity.index is None else "entity"
    told: dict[str, Any] = {name: entity.label, "score": float(entity.score)}
    if entity.index is not None:
        told["index"] = entity.index
    return {**told, "word": entity.word, "start": entity.start, "end": entity.end}

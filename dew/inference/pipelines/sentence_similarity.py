"""Sentence similarity: how near sentences are to one, by the vectors of a sentence encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dew.artifacts import Representations
from dew.errors import InputRefused, shown
from dew.inference.embedding import VECTOR, representations, sentence_embeddings
from dew.inference.pipelines.task import Options
from dew.inference.pipelines.text_task import TextTask, checked_count
from dew.nn.heads import SentencePooling

SOURCE, OTHERS = "source_sentence", "sentences"


class SentenceSimilarity(TextTask):
    """Gives the cosine of a sentence's vector with those of others.

    Options of a call:

    - `pooling`: how vectors are made; None for what the checkpoint says.
    - `max_tokens`: longer texts are cut to so many; None for what the checkpoint says.

    An input is `{"source_sentence": ..., "sentences": [...]}`, its result a list of numbers in
    [-1, 1]. The vectors themselves are `representations(texts)`.
    """

    name = "sentence-similarity"
    fits = ("feature-extraction",)
    loads = "feature-extraction"
    gives = (VECTOR,)
    reads = '{"source_sentence": a text, "sentences": a list of texts}'
    defaults: ClassVar[Mapping[str, Any]] = {"pooling": None, "max_tokens": None}

    def __call__(
        self, inputs: Any = None, sentences: Sequence[str] | None = None, **options: Any
    ) -> Any:
        """Compare; see `Task`.

        Args:
            inputs: as for every task; or the sentence that `sentences` are compared with, also
                called `source_sentence`.
            sentences: the others.
            **options: as for every task.
        """
        source = options.pop(SOURCE, inputs)
        if sentences is not None:
            source = {SOURCE: source, OTHERS: sentences}
        return super().__call__(source, **options)

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        pooling = options["pooling"]
        if pooling is not None and not isinstance(pooling, SentencePooling):
            raise InputRefused(f"pooling is {shown(pooling)}; expected a SentencePooling or None")
        if options["max_tokens"] is not None:
            checked_count("max_tokens", options["max_tokens"])
        return options

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each input's cosines."""
        asked = [self._asked(item) for item in items]
        texts = [text for source, others in asked for text in (source, *others)]
        vectors = self.vectors(texts, options, batch_size=batch_size)
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        found, first = [], 0
        for _, others in asked:
            source, rest = vectors[first], vectors[first + 1 : first + 1 + len(others)]
            found.append((rest @ source).tolist())
            first += 1 + len(others)
        return found

    def representations(
        self, texts: str | Sequence[str], *, batch_size: int | None = None, **options: Any
    ) -> Representations:
        """Return the texts' vectors, [N, D] in their order.

        Args:
            texts: one or several.
            batch_size: texts a batch.
            **options: as for a call.
        """
        settled = self.checked(self.merged(options))
        given = [texts] if isinstance(texts, str) else list(texts)
        return representations(self.vectors(given, settled, batch_size=self.size(batch_size)))

    def typed(self, inputs: Any, **options: Any) -> Representations:
        """Return `representations` of texts."""
        return self.representations(inputs, **options)

    def vectors(self, texts: Sequence[Any], options: Options, *, batch_size: int) -> np.ndarray:
        """Return one vector a text, float32 [N, D]."""
        return sentence_embeddings(
            self.bundle,
            [self.text(text) for text in texts],
            pooling=options["pooling"],
            batch_size=batch_size,
            max_tokens=options["max_tokens"],
        )

    def _asked(self, item: Any) -> tuple[str, list[str]]:
        if not isinstance(item, Mapping) or set(item) != {SOURCE, OTHERS}:
            raise InputRefused(f"{self.name}: an input is {shown(item)}; expected {self.reads}")
        others = item[OTHERS]
        if isinstance(others, str) or not isinstance(others, Sequence):
            raise InputRefused(
                f"{self.name}: sentences is {shown(others)}; expected a list of texts"
            )
        return item[SOURCE], list(others)

"""Text classification: texts or pairs of texts in, their likeliest labels out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused, shown
from dew.inference.pipelines.class_scores import checked_function, class_scores, score_function
from dew.inference.pipelines.label_names import label_names
from dew.inference.pipelines.task import Options
from dew.inference.pipelines.text_task import CUTTING_DEFAULTS, TextTask, checked_count

BEST = ""
"""The default of `top_k`, as in transformers: the likeliest label, not in a list of its own."""
PAIR = ("text", "text_pair")


class TextClassification(TextTask):
    """Names what texts are; a pair is `{"text": ..., "text_pair": ...}`.

    Options of a call:

    - `top_k`: how many labels a text, the likeliest first; None for all. Absent, the likeliest.
    - `function_to_apply`: "softmax", "sigmoid" or "none"; by default what the checkpoint's
      `problem_type` and number of labels ask for.
    - `truncation`, `max_length`: how long texts are cut; by default they are refused.

    A result is `{"label": ..., "score": ...}`, with `top_k` a list of those. As in transformers a
    text that stands alone has its result in a list where `top_k` is not given.
    """

    name = "text-classification"
    fits = ("text-classification",)
    reads = 'a text, or {"text": ..., "text_pair": ...}'
    remedy = "pass truncation=True to cut it, or shorten it"
    defaults: ClassVar[Mapping[str, Any]] = {
        "top_k": BEST,
        "function_to_apply": None,
        **CUTTING_DEFAULTS,
    }

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Classify; see `Task`."""
        result = super().__call__(inputs, **options)
        return [result] if isinstance(inputs, str) and "top_k" not in options else result

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        if options["top_k"] not in (BEST, None):
            checked_count("top_k", options["top_k"])
        options["function_to_apply"] = checked_function(options["function_to_apply"])
        return {**options, "cutting": self.cutting(options)}

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each text's label or labels."""
        rows = self.logits(items, options, batch_size=batch_size)
        return [self._labelled(row, options) for row in rows]

    def typed(self, inputs: Any, *, batch_size: int | None = None, **options: Any) -> Predictions:
        """Return the logits, `Predictions` of `{"logits": [N, C]}`; see `Task.typed`."""
        settled = self.checked(self.merged(options))
        rows = self.logits(self.all_items(inputs), settled, batch_size=self.size(batch_size))
        logits = np.stack(rows) if rows else np.zeros((0, 0), np.float32)
        return Predictions({"logits": logits}, np.ones(len(rows), np.float32))

    def logits(
        self, items: Sequence[Any], options: Options, *, batch_size: int
    ) -> list[np.ndarray]:
        """Return the logits [C] of each text or pair of texts."""
        texts = [self._text_or_pair(item) for item in items]
        encodings = self.encoded(texts, options["cutting"])
        rows = [self.row(one, text=text) for one, text in zip(encodings, texts, strict=True)]
        return [one["logits"] for one in self.outputs(rows, batch_size)]

    def _text_or_pair(self, item: Any) -> str | tuple[str, str]:
        if isinstance(item, Mapping):
            unknown = [key for key in item if key not in PAIR]
            if unknown or "text" not in item:
                raise InputRefused(
                    f"{self.name}: an input has the keys {shown(sorted(map(str, item)))}; expected "
                    "text, and text_pair for a pair; of a data set pass its column"
                )
            text, pair = self.text(item["text"]), item.get("text_pair")
            return text if pair is None else (text, self.text(pair))
        if isinstance(item, list | tuple):
            inner = item[0] if len(item) == 1 else None
            if isinstance(inner, list | tuple) and len(inner) == 2:
                return self.text(inner[0]), self.text(inner[1])
            raise InputRefused(
                f"{self.name}: an input is {shown(item)}; give a pair of texts as "
                '{"text": ..., "text_pair": ...}'
            )
        return self.text(item)

    def _labelled(self, logits: np.ndarray, options: Options) -> Any:
        names = label_names(self.bundle.config, len(logits))
        function = options["function_to_apply"] or score_function(self.bundle.config, len(logits))
        scores = class_scores(logits, function)
        if options["top_k"] == BEST:
            best = int(scores.argmax())
            return {"label": names[best], "score": float(scores[best])}
        order = np.argsort(-scores, kind="stable")[: options["top_k"]]
        return [{"label": names[at], "score": float(scores[at])} for at in order]

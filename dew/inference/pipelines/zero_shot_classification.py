"""Zero-shot classification: which labels fit a text, by a model that judges hypotheses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dew.artifacts import Predictions
from dew.errors import InputRefused, shown
from dew.inference.pipelines.class_scores import class_scores
from dew.inference.pipelines.label_names import label_names
from dew.inference.pipelines.task import Options
from dew.inference.pipelines.text_task import TextTask
from dew.typing import Cutting

ENTAILMENT = "entail"


class ZeroShotClassification(TextTask):
    """Says how well labels fit a text, each put as a hypothesis about it.

    Options of a call:

    - `candidate_labels`: the labels, a list or one text with commas.
    - `hypothesis_template`: a text with `{}` where the label goes.
    - `multi_label`: whether several labels may fit: each has a score of its own.

    A result is `{"sequence": ..., "labels": [...], "scores": [...]}`, the likeliest first. A text
    that is too long for a hypothesis beside it is cut.
    """

    name = "zero-shot-classification"
    fits = ("text-classification",)
    remedy = "shorten the label or the template"
    defaults: ClassVar[Mapping[str, Any]] = {
        "candidate_labels": None,
        "hypothesis_template": "This example is {}.",
        "multi_label": False,
    }

    def __call__(self, sequences: Any, candidate_labels: Any = None, **options: Any) -> Any:
        """Classify; see `Task`.

        Args:
            sequences: one or several texts.
            candidate_labels: as the option.
            **options: as for every task.
        """
        if candidate_labels is not None:
            options["candidate_labels"] = candidate_labels
        return super().__call__(sequences, **options)

    def checked(self, options: Options) -> Options:
        """Return usable options, with the number of the label of entailment as `entailment`."""
        template, labels = options["hypothesis_template"], options["candidate_labels"]
        if isinstance(labels, str):
            labels = [label.strip() for label in labels.split(",") if label.strip()]
        if labels is not None and (
            not isinstance(labels, Sequence)
            or not labels
            or not all(isinstance(label, str) for label in labels)
        ):
            raise InputRefused(
                f"candidate_labels is {shown(labels)}; expected at least one label: a list of "
                "texts, or one text with commas between them"
            )
        try:
            formatted = str(template).format("x") != template
        except (IndexError, KeyError, ValueError):
            formatted = False
        if not formatted or not isinstance(template, str):
            raise InputRefused(
                f"hypothesis_template is {shown(template)}; expected a text with {{}} where the "
                "label goes"
            )
        kept = None if labels is None else list(labels)
        return {**options, "candidate_labels": kept, "entailment": self._entailment()}

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each text's labels and their scores."""
        judged = self.logits(items, options, batch_size=batch_size)
        return [
            self._labelled(text, logits, options)
            for text, logits in zip(items, judged, strict=True)
        ]

    def typed(self, inputs: Any, *, batch_size: int | None = None, **options: Any) -> Predictions:
        """Return the logits, `Predictions` of `{"logits": [N, K, C]}`; see `Task.typed`."""
        settled = self.checked(self.merged(options))
        found = self.logits(self.all_items(inputs), settled, batch_size=self.size(batch_size))
        return Predictions({"logits": np.stack(found)}, np.ones(len(found), np.float32))

    def logits(
        self, items: Sequence[Any], options: Options, *, batch_size: int
    ) -> list[np.ndarray]:
        """Return each text's logits [K, C] with every hypothesis."""
        labels, template = options["candidate_labels"], options["hypothesis_template"]
        if labels is None:
            raise InputRefused(f"{self.name}: pass candidate_labels, the labels to choose from")
        texts = [self.text(item) for item in items]
        if "" in texts:
            raise InputRefused(f"{self.name}: a text is empty; expected {self.reads}")
        pairs = [(text, template.format(label)) for text in texts for label in labels]
        encodings = self._encodings(pairs)
        rows = [self.row(one, text=pair) for one, pair in zip(encodings, pairs, strict=True)]
        size = max(batch_size, min(len(labels), 8))
        found = [one["logits"] for one in self.outputs(rows, size)]
        count = len(labels)
        return [np.stack(found[at : at + count]) for at in range(0, len(found), count)]

    def _encodings(self, pairs: Sequence[tuple[str, str]]) -> list[Any]:
        """Return the pairs' encodings: texts are cut, or left whole where that is no use."""
        if self.longest is None:
            return self.encoded(pairs)
        cutting = Cutting(self.longest, "only_first")
        try:
            return self.encoded(pairs, cutting)
        except InputRefused:
            if len(pairs) == 1:
                return self.encoded(pairs)
            return [one for pair in pairs for one in self._encodings([pair])]

    def _labelled(self, text: str, logits: np.ndarray, options: Options) -> dict[str, Any]:
        labels, entailment = options["candidate_labels"], options["entailment"]
        if options["multi_label"] or len(labels) == 1:
            other = -1 if entailment == 0 else 0
            scores = class_scores(logits[:, [other, entailment]], "softmax")[:, 1]
        else:
            scores = class_scores(logits[:, entailment], "softmax")
        order = scores.argsort()[::-1]
        return {
            "sequence": text,
            "labels": [labels[at] for at in order],
            "scores": scores[order].tolist(),
        }

    def _entailment(self) -> int:
        config = self.bundle.config
        numbered = config.get("label2id")
        if not isinstance(numbered, Mapping) or not numbered:
            count = len(config.get("id2label") or ()) or int(config.get("num_labels") or 2)
            numbered = {name: at for at, name in enumerate(label_names(config, count))}
        for label, number in numbered.items():
            if str(label).lower().startswith(ENTAILMENT):
                return int(number)
        raise InputRefused(
            f"{self.name}: the labels are {shown(sorted(map(str, numbered)))}, none of them "
            "entailment. Take a model of natural language inference, or name its labels in "
            "config.json's label2id and id2label"
        )

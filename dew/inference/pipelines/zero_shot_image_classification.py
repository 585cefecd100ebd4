"""Zero-shot image classification: images and names of labels in, each label's score out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused, shown
from dew.inference.pipelines.class_scores import class_scores
from dew.inference.pipelines.picture_batches import is_picture, picture_outputs, prepared
from dew.inference.pipelines.task import Options, Task, needed_processor
from dew.inference.row_outputs import position_limit

SIGLIP_LENGTH = 64
"""Tokens that a text is cut and padded to for SigLIP, which was trained so."""


class ZeroShotImageClassification(Task):
    """Says how well each of some labels goes with an image.

    Options of a call:

    - `candidate_labels`: the labels, a list or a text with commas between them.
    - `hypothesis_template`: what is said of the image, with `{}` where the label goes.
    - `tokenizer_kwargs`: of transformers' tokenizer; `padding`, `max_length` and `truncation`.
    - `timeout`: seconds to wait for an image's address.

    A result is a list of `{"score": ..., "label": ...}`, the likeliest first.
    """

    name = "zero-shot-image-classification"
    fits = ("zero-shot-image-classification",)
    needs = "images"
    reads = "an image: a path, an address, base64, bytes, a Pillow image or uint8 levels"
    defaults: ClassVar[Mapping[str, Any]] = {
        "candidate_labels": None,
        "hypothesis_template": "This is a photo of {}.",
        "tokenizer_kwargs": None,
        "timeout": None,
    }

    def __init__(self, bundle: Any, *, batch_size: int | None = None, **options: Any):
        super().__init__(bundle, batch_size=batch_size, **options)
        self._tokenizer = needed_processor(bundle, "tokenizer", self.name)

    def __call__(
        self,
        inputs: Any = None,
        candidate_labels: Sequence[str] | str | None = None,
        *,
        image: Any = None,
        **options: Any,
    ) -> Any:
        """Run the task; see `Task.__call__`.

        Args:
            inputs: as for `Task.__call__`.
            candidate_labels: the labels.
            image: another name of `inputs`, which transformers uses.
            **options: those of the class.

        Raises:
            InputRefused: no labels, a template without `{}`, or as `Task.__call__`.
        """
        if candidate_labels is not None:
            options["candidate_labels"] = candidate_labels
        if self.merged(options)["candidate_labels"] is None:
            raise InputRefused(f"{self.name} needs candidate_labels, a list of names")
        return super().__call__(image if inputs is None else inputs, **options)

    def is_one(self, inputs: Any) -> bool:
        """Tell whether `inputs` is one image."""
        return is_picture(inputs)

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        labels, template = options["candidate_labels"], options["hypothesis_template"]
        if isinstance(labels, str):
            options["candidate_labels"] = labels = [part.strip() for part in labels.split(",")]
        if isinstance(labels, Iterator | tuple):
            options["candidate_labels"] = labels = list(labels)
        if labels is not None and (not labels or not all(isinstance(one, str) for one in labels)):
            raise InputRefused(
                f"candidate_labels is {shown(labels)}; expected names of labels, at least one"
            )
        if not isinstance(template, str) or template.format("x") == template:
            raise InputRefused(
                f"hypothesis_template is {shown(template)}; expected a text with {{}} where the "
                "label goes"
            )
        return options

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each image's labels with their scores, the likeliest first."""
        labels = options["candidate_labels"]
        pixels, _ = prepared(self.processor, items, timeout=options["timeout"])
        texts = [options["hypothesis_template"].format(label) for label in labels]
        read = self._read(texts, dict(options["tokenizer_kwargs"] or {}))
        rows = picture_outputs(
            self.bundle, pixels, "logits_per_image", batch_size=batch_size, beside=read
        )
        return [self._scored(row, labels) for row in rows]

    @property
    def _is_siglip(self) -> bool:
        return "siglip" in str(self.bundle.config.get("model_type", self.bundle.family))

    def _read(self, texts: Sequence[str], given: dict[str, Any]) -> dict[str, NDArray[np.int32]]:
        """Return the ids of texts, and for CLIP their mask, padded."""
        whole = {"padding": "max_length", "max_length": SIGLIP_LENGTH, "truncation": True}
        asked = {**(whole if self._is_siglip else {"padding": True}), **given}
        unknown = set(asked) - {"padding", "max_length", "truncation"}
        if unknown:
            raise InputRefused(
                f"tokenizer_kwargs has {shown(sorted(unknown))}; padding, max_length and "
                "truncation are followed"
            )
        limit = asked.get("max_length") or position_limit(self.bundle)
        rows = self._tokenizer.encode_batch(list(texts))
        if asked.get("truncation") and limit is not None:
            rows = [_cut(row, limit) for row in rows]
        width = max(map(len, rows))
        if asked["padding"] == "max_length" and limit is not None:
            width = max(width, limit)
        pad = self._tokenizer.pad_token_id or 0
        ids = np.full((len(rows), width), pad, np.int32)
        mask = np.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
            mask[place, : len(row)] = 1
        return {"input_ids": ids} if self._is_siglip else {"input_ids": ids, "attention_mask": mask}

    def _scored(self, logits: NDArray[np.float32], labels: Sequence[str]) -> list[dict[str, Any]]:
        scores = class_scores(logits, "sigmoid" if self._is_siglip else "softmax")
        best = np.argsort(-scores, kind="stable")
        return [{"score": float(scores[at]), "label": labels[at]} for at in best]


def _cut(row: list[int], limit: int) -> list[int]:
    """Return at most `limit` ids; what is cut is the text's end, not the id behind it."""
    return row if len(row) <= limit else [*row[: limit - 1], row[-1]]

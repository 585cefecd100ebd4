"""Image classification: images in, their likeliest labels out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused, shown
from dew.inference.pipelines.class_scores import (
    checked_function,
    class_scores,
    score_function,
)
from dew.inference.pipelines.label_names import label_names
from dew.inference.pipelines.picture_batches import is_picture, picture_outputs, prepared
from dew.inference.pipelines.task import Options, Task


class ImageClassification(Task):
    """Names what images show.

    Options of a call:

    - `top_k`: how many labels an image, the likeliest first; 5, or as many as there are.
    - `function_to_apply`: "softmax", "sigmoid" or "none"; by default what the checkpoint's
      `problem_type` and number of labels ask for.
    - `timeout`: seconds to wait for an image's address.

    A result is a list of `{"label": ..., "score": ...}`.
    """

    name = "image-classification"
    fits = ("image-classification",)
    needs = "images"
    reads = "an image: a path, an address, base64, bytes, a Pillow image or uint8 levels"
    defaults: ClassVar[Mapping[str, Any]] = {
        "top_k": 5,
        "function_to_apply": None,
        "timeout": None,
    }

    def is_one(self, inputs: Any) -> bool:
        """Tell whether `inputs` is one image."""
        return is_picture(inputs)

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        count = options["top_k"]
        if count is None:
            options["top_k"] = self.defaults["top_k"]
        elif isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputRefused(f"top_k is {shown(count)}; expected a whole number of at least 1")
        return {**options, "function_to_apply": checked_function(options["function_to_apply"])}

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each image's labels, the likeliest first."""
        pixels, _ = prepared(self.processor, items, timeout=options["timeout"])
        rows = picture_outputs(self.bundle, pixels, "logits", batch_size=batch_size)
        return [self._labelled(row, options) for row in rows]

    def _labelled(self, logits: NDArray[np.float32], options: Options) -> list[dict[str, Any]]:
        config = self.bundle.config
        function = options["function_to_apply"] or score_function(config, len(logits))
        scores = class_scores(logits, function)
        names = label_names(config, len(logits))
        best = np.argsort(-scores, kind="stable")[: options["top_k"]]
        return [{"label": names[at], "score": float(scores[at])} for at in best]

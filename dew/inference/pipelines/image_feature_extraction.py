"""Image feature extraction: images in, what the model makes of their places out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dew.artifacts import Representations
from dew.errors import InputRefused, shown
from dew.inference.pipelines.picture_batches import is_picture, picture_outputs, prepared
from dew.inference.pipelines.task import BATCH, Options, Task

POOLED, STATES = "pooler_output", "last_hidden_state"


class ImageFeatureExtraction(Task):
    """Gives what an image model without a head computes.

    Options of a call:

    - `pool`: give the image's one vector (`pooler_output`) instead of its places' states.
    - `return_tensors`: give arrays instead of nested lists.
    - `image_processor_kwargs`: not followed; the checkpoint's own settings count.
    - `timeout`: seconds to wait for an image's address.

    A result is nested lists [1, L, D] or whatever shape the model's states have, or [1, D] pooled.
    """

    name = "image-feature-extraction"
    fits = ("image-feature-extraction",)
    loads = "image-feature-extraction"
    needs = "images"
    reads = "an image: a path, an address, base64, bytes, a Pillow image or uint8 levels"
    defaults: ClassVar[Mapping[str, Any]] = {
        "pool": False,
        "return_tensors": False,
        "image_processor_kwargs": None,
        "timeout": None,
    }

    def is_one(self, inputs: Any) -> bool:
        """Tell whether `inputs` is one image."""
        return is_picture(inputs)

    def checked(self, options: Options) -> Options:
        """Return usable options; see `Task.checked`."""
        if options["image_processor_kwargs"]:
            raise InputRefused(
                f"image_processor_kwargs is {shown(options['image_processor_kwargs'])}: the "
                "checkpoint's own settings are followed. Change its preprocessor_config.json"
            )
        return options

    def results(self, items: Sequence[Any], options: Options, *, batch_size: int) -> list[Any]:
        """Return each image's features, with a batch axis of 1 before them."""
        rows = [row[None] for row in self._features(items, options, batch_size)]
        return rows if options["return_tensors"] else [row.tolist() for row in rows]

    def typed(self, inputs: Any, **options: Any) -> Representations:
        """Return one vector an image, float32 [N, D]: the pooled one; no label counts."""
        settled = self.checked(self.merged({**options, "pool": True}))
        rows = self._features(self.all_items(inputs), settled, self._batch_size or BATCH)
        features = np.stack([row.reshape(-1) for row in rows])
        return Representations(features=features, labels=np.full(len(rows), -1, np.int32))

    def _features(self, items: Sequence[Any], options: Options, batch_size: int) -> list[Any]:
        pixels, _ = prepared(self.processor, items, timeout=options["timeout"])
        name = POOLED if options["pool"] else STATES
        return picture_outputs(self.bundle, pixels, name, batch_size=batch_size)

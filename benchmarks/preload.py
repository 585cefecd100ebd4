"""Imported by the process that the sweep splits off from: what every export would import again."""

from __future__ import annotations

import torchvision  # noqa: F401
import transformers
from tiny_models import built

from bridges.torch.export import traced_graph

transformers.logging.set_verbosity_error()
for kind in ("bert", "vit", "torchvision:resnet18"):
    # Without a JAX array: a backend that is open does not survive the split.
    traced_graph(built(kind)[0], (), built(kind)[1], dynamic=False)

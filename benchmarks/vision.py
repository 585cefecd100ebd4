"""Is dew's ViT faster than transformers'? Eight images of 224 x 224, labels of each, float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from timing import run_benchmark

BATCH, SIDE, LABELS = 8, 224, 1000
EAGER = "transformers eager"


@dataclass(frozen=True)
class Vit:
    """The sizes of a ViT."""

    patch: int
    features: int
    layers: int
    heads: int
    mlp_features: int

    def forward_flops(self) -> float:
        """Return the FLOPs of one forward pass: the weights' products, and attention."""
        patches = (SIDE // self.patch) ** 2
        tokens = patches + 1
        layer = 4 * self.features**2 + 2 * self.features * self.mlp_features
        products = tokens * self.layers * layer + patches * 3 * self.patch**2 * self.features
        attention = 2 * self.layers * self.features * tokens * tokens
        return 2.0 * BATCH * (products + attention)


SHAPES = {"vit-base-16": Vit(16, 768, 12, 12, 3072), "vit-small-16": Vit(16, 384, 12, 6, 1536)}


def images() -> np.ndarray:
    """Return random normalised images, float32 [batch, 3, side, side]."""
    drawn = np.random.default_rng(0).standard_normal((BATCH, 3, SIDE, SIDE))
    return drawn.astype(np.float32)


def torch_eager(shape: Vit) -> Callable[[], Any]:
    """Return a forward pass of transformers' model."""
    return _torch_forward(_torch_model(shape))


def torch_compiled(shape: Vit) -> Callable[[], Any]:
    """Return the same pass under torch.compile."""
    import torch

    return _torch_forward(torch.compile(_torch_model(shape)))


def _torch_model(shape: Vit) -> Any:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=shape.features,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.mlp_features,
        image_size=SIDE,
        patch_size=shape.patch,
    )
    config.num_labels = LABELS
    return ViTForImageClassification(config).eval()


def _torch_forward(model: Any) -> Callable[[], Any]:
    import torch

    pixels = torch.tensor(images())

    def run() -> Any:
        with torch.inference_mode():
            return model(pixel_values=pixels).logits

    return run


def dew(shape: Vit) -> Callable[[], Any]:
    """Return a call of dew's bundle."""
    import jax

    from dew.inference.bundle import Bundle
    from dew.nn.backbones.image_encoder import ImageEncoder, ImageSpec

    spec = ImageSpec(
        image_size=(SIDE, SIDE),
        patch_size=(shape.patch, shape.patch),
        emb_features=shape.features,
        num_layers=shape.layers,
        num_heads=shape.heads,
        mlp_features=shape.mlp_features,
    )
    model, pixels = ImageEncoder(spec=spec, head="image", labels=LABELS), images()

    def drawn() -> Any:
        return model.init(jax.random.key(0), pixels, method="outputs")

    bundle = Bundle(model=model, variables=jax.jit(drawn)(), family="vit")
    return lambda: jax.block_until_ready(bundle(pixel_values=pixels)["logits"])


SIDES = {"dew": dew, EAGER: torch_eager, "transformers compiled": torch_compiled}


def main() -> None:
    """Measure every shape and side, and print the table."""
    run_benchmark(
        __file__,
        SHAPES,
        SIDES,
        against=EAGER,
        work=lambda name: SHAPES[name].forward_flops(),
        description=__doc__ or "",
    )


if __name__ == "__main__":
    main()

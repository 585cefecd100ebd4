"""Are dew's image encoders faster than torch's? Bytes to the features of FID and of CLIP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from timing import run_benchmark

TORCH = "torch eager"
INCEPTION_FLOPS = 11.4e9
CLIP_IMAGE_FLOPS, CLIP_TEXT_FLOPS = 8.8e9, 0.078e9
CAPTION_TOKENS = 16


@dataclass(frozen=True)
class Images:
    """A batch for one network, `inception` or `clip`; `texts` are captions instead."""

    network: str
    count: int
    side: int
    work: float

    def levels(self) -> np.ndarray:
        """Return uint8 [count, side, side, 3]."""
        shape = (self.count, self.side, self.side, 3)
        return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    def ids(self) -> np.ndarray:
        """Return int64 [count, tokens] of captions, with CLIP's start and end token."""
        rows = np.random.default_rng(0).integers(1, 49000, (self.count, CAPTION_TOKENS))
        rows[:, 0], rows[:, -1] = 49406, 49407
        return rows


SHAPES = {
    "inception, 8 of 299": Images("inception", 8, 299, 8 * INCEPTION_FLOPS),
    "inception, 8 of 64": Images("inception", 8, 64, 8 * INCEPTION_FLOPS),
    "clip B/32, 8 of 256": Images("clip", 8, 256, 8 * CLIP_IMAGE_FLOPS),
    "clip B/32, 8 captions": Images("texts", 8, 0, 8 * CAPTION_TOKENS * CLIP_TEXT_FLOPS),
}


def dew(shape: Images) -> Callable[[], Any]:
    """Return a run of dew's encoder on bytes or ids."""
    import jax

    from dew.nn.clip import ClipEncoder, ClipModel, ClipSpec, TowerSpec
    from dew.nn.inception import InceptionEncoder

    if shape.network == "inception":
        levels, inception = shape.levels(), InceptionEncoder.random(jax.random.key(0))
        return lambda: inception(levels)
    spec = ClipSpec(TowerSpec(512, 12, 8, 2048), TowerSpec(768, 12, 12, 3072))
    inputs = (np.zeros((1, 2), np.int32), np.zeros(1, np.int32), np.zeros((1, 224, 224, 3)))
    shapes = jax.eval_shape(ClipModel(spec).init, jax.random.key(0), *inputs)
    generator = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: generator.standard_normal(leaf.shape, np.float32) * np.float32(0.02), shapes
    )
    tokenizer: Any = None  # ids are given
    clip = ClipEncoder(spec, variables, tokenizer)
    if shape.network == "texts":
        rows = shape.ids().tolist()
        return lambda: clip.encode_tokens(rows)
    levels = shape.levels()
    return lambda: clip.encode_images(levels)


def torch_eager(shape: Images) -> Callable[[], Any]:
    """Return a run of pytorch-fid's network or transformers' CLIPModel with its processor."""
    import torch

    run = _torch_inception(shape) if shape.network == "inception" else _torch_clip(shape)

    def quiet() -> Any:
        with torch.inference_mode():
            return run()

    return quiet


def _torch_inception(shape: Images) -> Callable[[], Any]:
    import pytorch_fid.inception as theirs
    import torch
    import torchvision

    bare = torchvision.models.inception_v3(
        num_classes=1008, aux_logits=False, weights=None, init_weights=False
    )
    theirs.load_state_dict_from_url = lambda *args, **options: bare.state_dict()
    network = theirs.InceptionV3().eval()
    images = torch.from_numpy(shape.levels()).permute(0, 3, 1, 2)
    return lambda: network(images.float() / 255)[0].numpy()


def _torch_clip(shape: Images) -> Callable[[], Any]:
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    model = CLIPModel(CLIPConfig()).eval()
    if shape.network == "texts":
        ids = torch.from_numpy(shape.ids())
        return lambda: model.get_text_features(ids).pooler_output.numpy()
    images = list(torch.from_numpy(shape.levels()).permute(0, 3, 1, 2))
    processor = CLIPImageProcessor()

    def run() -> Any:
        pixels = processor(images=images, return_tensors="pt")["pixel_values"]
        return model.get_image_features(pixels).pooler_output.numpy()

    return run


def main() -> None:
    """Measure every shape and side, and print the table."""
    run_benchmark(
        __file__,
        SHAPES,
        {"dew": dew, TORCH: torch_eager},
        against=TORCH,
        work=lambda name: SHAPES[name].work,
        description=__doc__ or "",
    )


if __name__ == "__main__":
    main()

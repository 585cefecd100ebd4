"""CLIP, read from a Hugging Face folder of a `CLIPModel`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.config import Keys, read_activation
from bridges.encoders.clip_tokenizer import read_clip_tokenizer
from bridges.files.json_file import read_json
from bridges.files.regular_file import contained, shown_path
from bridges.files.tensors import Tensors, open_tensors
from bridges.hub import resolve
from bridges.moves import KEEP, TRANSPOSE, Move, merge_heads, split_bias, split_heads
from bridges.processing import read_image_processor
from bridges.table import Row, into_tree
from bridges.vision.image_settings import Size
from dew.errors import InputRefused, WeightMismatch, shown
from dew.nn.clip import ClipEncoder, ClipModel, ClipSpec, ImageInput, TowerSpec

BUFFERS = ("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids")
PATCHES = Move(into=lambda w: w.transpose(2, 3, 1, 0), out=lambda k: k.transpose(3, 2, 0, 1))
"""A torch Conv2d [outputs, inputs, rows, columns] to dew [rows, columns, inputs, outputs]."""


def load_clip(source: str | os.PathLike[str], *, overlong: str = "end_token") -> ClipEncoder:
    """Return the encoder of a folder with CLIP's config, weights, tokenizer and image settings.

    Args:
        source: a folder as `CLIPModel.save_pretrained` and `CLIPProcessor.save_pretrained` write
            it, or a hub repository id.
        overlong: see `ClipEncoder`.

    Raises:
        InputRefused: not such a folder, or settings that dew does not compute.
        WeightMismatch: missing, left-over or misshapen tensors, all in one message.
    """
    folder = resolve(source, None)
    config = read_json(contained(folder, "config.json"))
    where = shown_path(folder / "config.json")
    spec = _spec(Keys(config, where))
    try:
        params = into_tree(
            rows(spec), _Weights(open_tensors(folder)), _shapes(spec), jnp.dtype("float32")
        )
    except WeightMismatch as error:
        raise WeightMismatch(f"{shown_path(folder)}: {error}") from None
    tokenizer = read_clip_tokenizer(folder, config)
    return ClipEncoder(
        spec,
        {"params": params},
        tokenizer,
        _image_input(folder, config, spec),
        end_token=tokenizer.eos_token_ids[0],
        overlong=overlong,
    )


def rows(spec: ClipSpec) -> tuple[Row, ...]:
    """Return CLIP's tensors (theirs) and dew's leaves (ours)."""
    text, vision = "text_model.embeddings.", "vision_model.embeddings."
    return (
        Row("logit_scale", "logit_scale"),
        Row(f"{text}token_embedding.weight", "text/embed"),
        Row(f"{text}position_embedding.weight", "text/position_embed"),
        *_layers("text_model", "text", spec.text),
        *_norm("text_model.final_layer_norm", "text/final_norm"),
        Row("text_projection.weight", "text/projection/kernel", TRANSPOSE),
        Row(f"{vision}class_embedding", "vision/class_embed"),
        Row(f"{vision}patch_embedding.weight", "vision/patch_embed/kernel", PATCHES),
        Row(f"{vision}position_embedding.weight", "vision/position_embed"),
        *_norm("vision_model.pre_layrnorm", "vision/first_norm"),
        *_layers("vision_model", "vision", spec.vision),
        *_norm("vision_model.post_layernorm", "vision/final_norm"),
        Row("visual_projection.weight", "vision/projection/kernel", TRANSPOSE),
    )


def _layers(theirs: str, ours: str, tower: TowerSpec) -> list[Row]:
    layer, block = f"{theirs}.encoder.layers.{{layer}}.", f"{ours}/ScanBlock_0/"
    heads = tower.num_heads
    table = [*_norm(f"{layer}layer_norm1", f"{block}attention_norm")]
    for name, leaf in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        stem = f"{block}attention/{leaf}"
        table.append(Row(f"{layer}self_attn.{name}.weight", f"{stem}/kernel", split_heads(heads)))
        table.append(Row(f"{layer}self_attn.{name}.bias", f"{stem}/bias", split_bias(heads)))
    out = f"{block}attention/out"
    table += [
        Row(f"{layer}self_attn.out_proj.weight", f"{out}/kernel", merge_heads(heads)),
        Row(f"{layer}self_attn.out_proj.bias", f"{out}/bias"),
        *_norm(f"{layer}layer_norm2", f"{block}mlp_norm"),
    ]
    for name, leaf in (("fc1", "up"), ("fc2", "down")):
        table.append(Row(f"{layer}mlp.{name}.weight", f"{block}mlp/{leaf}/kernel", TRANSPOSE))
        table.append(Row(f"{layer}mlp.{name}.bias", f"{block}mlp/{leaf}/bias", KEEP))
    return table


def _norm(theirs: str, ours: str) -> list[Row]:
    return [Row(f"{theirs}.weight", f"{ours}/scale"), Row(f"{theirs}.bias", f"{ours}/bias")]


def _spec(keys: Keys) -> ClipSpec:
    """Return the sizes; defaults are those of `CLIPTextConfig` and `CLIPVisionConfig`."""
    if keys.text("model_type", "clip") != "clip":
        keys.refuse("model_type", "expected clip, the config of a CLIPModel")
    text, vision = keys.section("text_config"), keys.section("vision_config")
    vision.only("num_channels", 3)
    size, patch = vision.integer("image_size", 224), vision.integer("patch_size", 32)
    if patch > size:
        vision.refuse("patch_size", f"larger than image_size {size}")
    return ClipSpec(
        text=_tower(text, 512, 2048, 8),
        vision=_tower(vision, 768, 3072, 12),
        features=keys.integer("projection_dim", 512),
        vocab_size=text.integer("vocab_size", 49408),
        max_seq_len=text.integer("max_position_embeddings", 77),
        image_size=size,
        patch_size=patch,
    )


def _tower(keys: Keys, width: int, inner: int, heads: int) -> TowerSpec:
    width, heads = keys.integer("hidden_size", width), keys.integer("num_attention_heads", heads)
    if width % heads:
        keys.refuse("hidden_size", f"not divisible by num_attention_heads {heads}")
    return TowerSpec(
        emb_features=width,
        num_layers=keys.integer("num_hidden_layers", 12),
        num_heads=heads,
        mlp_features=keys.integer("intermediate_size", inner),
        activation=read_activation(keys, "hidden_act", "quick_gelu"),
        norm_epsilon=keys.number("layer_norm_eps", 1e-5, low=0.0),
    )


def _shapes(spec: ClipSpec) -> Mapping[str, Any]:
    tokens, ends = jnp.zeros((1, 2), jnp.int32), jnp.zeros((1,), jnp.int32)
    images = jnp.zeros((1, spec.image_size, spec.image_size, 3))
    return jax.eval_shape(ClipModel(spec).init, jax.random.key(0), tokens, ends, images)["params"]


def _image_input(folder: Path, config: Mapping[str, Any], spec: ClipSpec) -> ImageInput:
    """Return the image settings; those of OpenAI's CLIP where the folder has none."""
    processor = read_image_processor(folder, config)
    if processor is None:
        return ImageInput(shortest_edge=spec.image_size, crop=spec.image_size)
    settings, where = processor.settings, shown_path(folder)
    size, side = settings.size or Size(), spec.image_size
    square = (side, side)
    shorter = size.shortest_edge or 0
    if size.longest_edge is not None or settings.crop != square or shorter < side:
        raise InputRefused(
            f"{where}: images are brought to {size} and cut to {settings.crop}. The model reads "
            f"squares of {side}, cut from a shorter side of at least as much"
        )
    wanted = {"resample": "bicubic", "scale": 1 / 255}
    for name, value in wanted.items():
        if getattr(settings, name) != value:
            raise InputRefused(
                f"{where}: {name} of images is {shown(getattr(settings, name))}; CLIP's is {value}"
            )
    if settings.mean is None:
        raise InputRefused(f"{where}: do_normalize of images is false; CLIP's is true")
    return ImageInput(shorter, side, mean=settings.mean, deviation=settings.deviation)


@dataclass(frozen=True)
class _Weights:
    """A checkpoint's tensors without the buffers that hold no weights."""

    inner: Tensors

    def names(self) -> list[str]:
        return [name for name in self.inner.names() if name not in BUFFERS]

    def info(self, name: str) -> Any:
        return self.inner.info(name)

    def read(self, name: str) -> np.ndarray:
        return self.inner.read(name)

    def release(self, name: str) -> None:
        self.inner.release(name)

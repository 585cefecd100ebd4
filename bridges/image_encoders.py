"""What families of image models share: common config keys, moves and rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridges.config import Keys
from bridges.moves import KEEP, TRANSPOSE, Move, merge_heads, split_bias, split_heads
from bridges.table import Row
from bridges.text_encoders import layer_rows, map_rows, norm_rows
from dew.nn.backbones.image_encoder import ImageEncoder, ImageSpec

_HARMLESS = """
hidden_dropout_prob attention_probs_dropout_prob attention_dropout drop_path_rate encoder_stride
stage_names out_features out_indices apply_layernorm reshape_hidden_states initializer_factor
layerscale_value semantic_loss_ignore_index classifier_dropout_prob problem_type
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Training-time dropout, how layers were drawn, and what only feature maps of backbones need."""
LARGEST_DEPTH = 256
LARGEST_SIDE = 1 << 16

CONVOLUTION = Move(into=lambda w: w.transpose(2, 3, 1, 0), out=lambda k: k.transpose(3, 2, 0, 1))
"""A torch convolution [outputs, inputs, rows, columns] to dew [rows, columns, inputs, outputs]."""
PATCHES = Move(into=lambda w: w.transpose(1, 2, 3, 0), out=lambda k: k.transpose(3, 0, 1, 2))
"""A torch convolution of patches to dew [inputs, rows, columns, outputs]."""
POINTS = Move(into=lambda w: w.reshape(w.shape[:2]).T, out=lambda k: k.T[:, :, None, None])
"""A torch convolution of single pixels [outputs, inputs, 1, 1] to dew [inputs, outputs]."""


def unwrapped(axes: int) -> Move:
    """A torch tensor with leading axes of length 1, `axes` of them, to dew's without them."""
    return Move(
        into=lambda w: w.reshape(w.shape[axes:]),
        out=lambda leaf: leaf.reshape((1,) * axes + np.shape(leaf)),
    )


def read_pair(keys: Keys, key: str, default: int) -> tuple[int, int]:
    """Return height and width, of one whole number for both or a list of two."""
    value = keys.values.get(key)
    if type(value) is not list:
        side = keys.integer(key, default)
        return side, side
    pair = keys.numbers(key)
    if len(pair) != 2 or any(side != int(side) or side < 1 for side in pair):
        keys.refuse(key, "expected a whole number of pixels, or height and width")
    return int(pair[0]), int(pair[1])


def read_counts(keys: Keys, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return a list of whole numbers of at least 1."""
    values = keys.numbers(key) or tuple(float(value) for value in default)
    if any(value != int(value) or not 1 <= value <= LARGEST_SIDE for value in values):
        keys.refuse(key, f"expected whole numbers from 1 to {LARGEST_SIDE}")
    return tuple(int(value) for value in values)


def read_depths(keys: Keys, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many layers each stage has; they are written out one by one."""
    depths = read_counts(keys, key, default)
    if sum(depths) > LARGEST_DEPTH:
        keys.refuse(key, f"expected at most {LARGEST_DEPTH} layers")
    return depths


def same_lengths(keys: Keys, lists: Mapping[str, Sequence[float]], length: int | None) -> None:
    """Refuse lists of stages that are not of one length.

    Args:
        keys: the config.
        lists: each list's key to the list.
        length: how many stages there are; None for as many as the first list has.
    """
    wanted = len(next(iter(lists.values()))) if length is None else length
    for key, found in lists.items():
        if len(found) != wanted:
            keys.clash(key, f"{len(found)} numbers for {wanted} stages")


def read_tower(keys: Keys, **defaults: int) -> dict[str, Any]:
    """Return the fields of an `ImageSpec` that are sizes; defaults are ViT base's."""
    found = {
        field: keys.integer(key, defaults.get(key, default))
        for field, (key, default) in SIZES.items()
        if defaults.get(key, default)
    }
    image = read_pair(keys, "image_size", defaults.get("image_size", 224))
    patch = read_pair(keys, "patch_size", defaults.get("patch_size", 16))
    if image[0] < patch[0] or image[1] < patch[1]:
        keys.clash("patch_size", f"larger than image_size {list(image)}")
    if found["emb_features"] % found["num_heads"]:
        keys.clash("hidden_size", f"not divisible by num_attention_heads {found['num_heads']}")
    return {**found, "image_size": image, "patch_size": patch}


SIZES = {
    "emb_features": ("hidden_size", 768),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "mlp_features": ("intermediate_size", 3072),
    "channels": ("num_channels", 3),
}
"""dew's fields to the keys that most image encoders share, and ViT base's sizes."""


def encoder_rows(spec: ImageSpec, layer: str, names: Mapping[str, str], norms: Mapping[str, str]):
    """Return the rows of an image encoder's layers.

    Args:
        spec: says which maps have biases, and whether the MLP is gated.
        layer: what the names of a layer's tensors start with, with `{layer}`.
        names: as for `layer_rows`.
        norms: as for `layer_rows`.
    """
    rows = layer_rows(layer, spec.num_heads, names, norms)
    if not spec.qkv_bias:
        bare = {f"layers/attention/{name}/bias" for name in ("query", "key", "value")}
        rows = [row for row in rows if row.ours not in bare]
    if spec.mlp == "gated":
        both = {f"layers/mlp/up/{part}" for part in ("kernel", "bias")}
        rows = [row for row in rows if row.ours not in both]
        for part, theirs, move in (("kernel", "weight", TRANSPOSE), ("bias", "bias", KEEP)):
            ours = (f"layers/mlp/gate/{part}", f"layers/mlp/up/{part}")
            rows.append(Row(f"{layer}{names['up']}.{theirs}", ours, move))
    return rows


def patch_map_rows(theirs: str, ours: str, *, bias: bool = True) -> list[Row]:
    """Return the rows of a map of whole patches."""
    rows = [Row(f"{theirs}.weight", f"{ours}/kernel", PATCHES)]
    return [*rows, Row(f"{theirs}.bias", f"{ours}/bias")] if bias else rows


def named_embedding_rows(spec: ImageSpec, base: str) -> list[Row]:
    """Return the rows of tokens, positions and patches by ViT's names.

    Args:
        spec: says which tokens there are.
        base: what the names start with.
    """
    rows = [
        Row(f"{base}embeddings.position_embeddings", "position_embed", unwrapped(1)),
        *patch_map_rows(f"{base}embeddings.patch_embeddings.projection", "patches"),
        *norm_rows(f"{base}layernorm", "final_norm"),
    ]
    if spec.class_token:
        rows.append(Row(f"{base}embeddings.cls_token", "class_embed", unwrapped(2)))
    if spec.mask_token:
        rows.append(Row(f"{base}embeddings.mask_token", "mask_embed", unwrapped(1)))
    return rows


def in_stage(rows: Sequence[Row], stage: int) -> list[Row]:
    """Return rows of `layers` with their leaves in the folder of a stage."""
    moved = []
    for row in rows:
        paths = [f"stage{stage}{path.removeprefix('layers')}" for path in row.leaves]
        moved.append(dataclasses.replace(row, ours=paths[0] if len(paths) == 1 else tuple(paths)))
    return moved


def top_rows(model: Any, theirs: str = "classifier", ours: str = "top") -> list[Row]:
    """Return the rows of the map to an image's labels, where the model has that head."""
    return map_rows(theirs, ours) if model.head == "image" else []


TOWER_NAMES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.out_proj",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
TOWER_NORMS = {"attention_norm": "layer_norm1", "mlp_norm": "layer_norm2"}
"""The names of a layer that CLIP began."""


def tower_rows(model: ImageEncoder, base: str) -> list[Row]:
    """Return the rows of CLIP's or SigLIP's image tower, `base` being what its names start with."""
    spec = model.spec
    embeddings = f"{base}embeddings."
    rows = [
        *patch_map_rows(f"{embeddings}patch_embedding", "patches", bias=spec.patch_bias),
        Row(f"{embeddings}position_embedding.weight", "position_embed"),
        *encoder_rows(spec, f"{base}encoder.layers.{{layer}}.", TOWER_NAMES, TOWER_NORMS),
        *norm_rows(f"{base}post_layernorm", "final_norm"),
    ]
    if spec.class_token:
        rows.append(Row(f"{embeddings}class_embedding", "class_embed"))
    if spec.first_norm:
        rows += norm_rows(f"{base}pre_layrnorm", "first_norm")
    if spec.pooled == "attention":
        rows += attention_pool_rows(f"{base}head.", spec.num_heads)
    return rows


def attention_pool_rows(base: str, heads: int) -> list[Row]:
    """Return the rows of SigLIP's attention pooling, whose three maps lie in one tensor."""
    kernels, biases = (
        tuple(f"pool/{name}/{part}" for name in ("query", "key", "value"))
        for part in ("kernel", "bias")
    )
    return [
        Row(f"{base}probe", "pool/probe", unwrapped(2)),
        Row(f"{base}attention.in_proj_weight", kernels, split_heads(heads)),
        Row(f"{base}attention.in_proj_bias", biases, split_bias(heads)),
        Row(f"{base}attention.out_proj.weight", "pool/out/kernel", merge_heads(heads)),
        Row(f"{base}attention.out_proj.bias", "pool/out/bias"),
        *norm_rows(f"{base}layernorm", "pool/norm"),
        *map_rows(f"{base}mlp.fc1", "pool/mlp/up"),
        *map_rows(f"{base}mlp.fc2", "pool/mlp/down"),
    ]


def image_architectures(prefix: str, **more: str) -> dict[str, str]:
    """Return the classes of transformers that start with `prefix`, and the head of each."""
    kinds = {"Model": "", "ForImageClassification": "image", **more}
    return {f"{prefix}{name}": head for name, head in kinds.items()}

"""What torch calls a module today, where the checkpoint's tensors bear other names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bridges.family import family_of
from dew.inference.bundle import Bundle

_HEADS = (
    (r"\.attention\.(attention|self)\.query", ".attention.q_proj"),
    (r"\.attention\.(attention|self)\.key", ".attention.k_proj"),
    (r"\.attention\.(attention|self)\.value", ".attention.v_proj"),
    (r"\.attention\.output\.dense", ".attention.o_proj"),
)
_MLP = ((r"\.intermediate\.dense", ".mlp.fc1"), (r"\.output\.dense", ".mlp.fc2"))
_BIASES = r"\.attention\.self\.(relative_position_bias_table)"
_REDUCED = ".attention.sequence_reduction."
RENAMED = {
    "vit": ((r"encoder\.layer\.", "layers."), *_HEADS, *_MLP),
    "dinov2": _HEADS,
    "swin": (*_HEADS, *_MLP, (_BIASES, r".attention.relative_position_bias.\1")),
    "segformer": (
        (r"encoder\.(patch_embeddings|layer_norm)\.(\d+)", r"stages.\2.\1"),
        (r"encoder\.block\.(\d+)", r"stages.\1.blocks"),
        *_HEADS,
        (r"\.attention\.self\.sr", f"{_REDUCED}sequence_reduction"),
        (r"\.attention\.self\.layer_norm", f"{_REDUCED}layer_norm"),
        (r"\.mlp\.dense([12])", r".mlp.fc\1"),
        (r"\.layer_norm_1", ".layernorm_before"),
        (r"\.layer_norm_2", ".layernorm_after"),
        (r"decode_head\.linear_c", "decode_head.linear_projections"),
    ),
}
"""Model type to the parts of names that transformers 5 renames as it loads a checkpoint.

Source: `conversion_mapping` of transformers 5.24.
"""


def torch_name(bundle: Bundle, name: str) -> str:
    """Return what a tensor or module of the weight table is called in transformers' class.

    A model without a head is of the bare class, whose names lack what the others' begin with.

    Args:
        bundle: the model.
        name: the table's, or the class's already, which comes back as it is.
    """
    family = family_of(bundle.config)
    for stored, now in RENAMED.get(family.model_type, ()):
        name = re.sub(stored, now, name)
    bare = "" in family.heads.values() and getattr(bundle.model, "head", None) == ""
    return name.removeprefix(family.base_prefix) if bare else name


def other_names(bundle: Bundle, names: Iterable[str]) -> dict[str, str]:
    """Return today's names of modules to the table's, where the two differ."""
    return {now: name for name in names if (now := torch_name(bundle, name)) != name}

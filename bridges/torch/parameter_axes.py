"""Logical axes of torch's parameters, told by the usual names of transformer modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridges.torch.kinds import CONV1D, LINEAR, ModuleKinds

Axes = tuple[str | None, ...]

# The last parts of module names in transformers 5.24; what is in none is cut along its longest
# axis. A wrong guess costs messages between devices and changes no value.
_QUERIES = """
q_proj query q_lin Wqkv qkv_proj query_key_value c_attn qkv in_proj q q_attn to_q
"""
_KEYS = "k_proj v_proj key value k_lin v_lin k v to_k to_v kv_proj"
_WIDENING = """
gate_proj up_proj gate_up_proj fc1 c_fc fc_in dense_h_to_4h w1 w3 wi wi_0 wi_1 lin1 linear1 up gate
"""
_FROM_HEADS = "o_proj out_proj out_lin o dense to_out"
_NARROWING = "down_proj fc2 fc_out c_proj dense_4h_to_h w2 wo lin2 linear2 down"

_BY_NAME: dict[str, tuple[str, str]] = {
    **dict.fromkeys(_QUERIES.split(), ("heads", "embed")),
    **dict.fromkeys(_KEYS.split(), ("kv_heads", "embed")),
    **dict.fromkeys(_WIDENING.split(), ("mlp", "embed")),
    **dict.fromkeys(_FROM_HEADS.split(), ("embed", "heads")),
    **dict.fromkeys(_NARROWING.split(), ("embed", "mlp")),
}


def parameter_axes(kinds: ModuleKinds, params: Mapping[str, Any]) -> dict[str, Axes]:
    """Return the axes of each weight whose module's name tells them, as `Layout` names them.

    Args:
        kinds: the modules.
        params: values or shapes by torch's names.

    Returns:
        Parameter's name to ("outputs' axis", "inputs' axis"), the other way round where the
        weight is stored [inputs, outputs]; embeddings and the head are cut along the vocabulary.
    """
    found: dict[str, Axes] = {}
    for module, kind in kinds.kinds.items():
        name = kinds.weight(module)
        if name not in params or len(params[name].shape) != 2:
            continue
        if module == kinds.output or kind == "Embedding":
            found[name] = ("vocab", "table_features")
        elif kind in (LINEAR, CONV1D) and (axes := _BY_NAME.get(module.rpartition(".")[2])):
            found.setdefault(name, axes[::-1] if kind == CONV1D else axes)
    return found

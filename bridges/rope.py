"""Rotary parameters, in every spelling that configs have used for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridges.config import Keys
from dew.errors import InputRefused, shown
from dew.nn.rotary import ROPE_KINDS, Rope

_NUMBERS = ("factor", "attention_factor", "mscale", "mscale_all_dim")
_DEFAULTED = ("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor")
_LISTS = ("short_factor", "long_factor")


def rotary_share(keys: Keys, default: float) -> float:
    """Return which share of a head is turned: `partial_rotary_factor`, beside or inside the rope.

    Args:
        keys: the config.
        default: the share where it does not say.
    """
    found = [keys.number("partial_rotary_factor", None, low=0.0)]
    for section in ("rope_parameters", "rope_scaling"):
        if section in keys:
            found.append(keys.section(section).number("partial_rotary_factor", None, low=0.0))
    said = [value for value in found if value is not None]
    return said[-1] if said else default


def read_rope(
    keys: Keys,
    default_theta: float = 10000.0,
    *,
    partial: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> Rope:
    """Return the rope of a config.

    The numbers stand under `rope_parameters` (transformers 5), under `rope_scaling`
    (transformers 4), or both; the kind is `rope_type` or, in older files, `type`; the base is
    `rope_theta` inside the object or beside it. Spellings that are there together must agree.

    Args:
        keys: the config.
        default_theta: the base where the config has none.
        partial: whether the family turns a share of each head, which `rotary_share` reads; else
            a share below 1 is refused.
        renamed: what a family's older configs called a kind, and what it is.

    Raises:
        InputRefused: two spellings that disagree, an unknown kind, a value of the wrong type.
    """
    if not partial:
        for place in (keys, keys.section("rope_parameters"), keys.section("rope_scaling")):
            place.only("partial_rotary_factor", 1, 1.0)
    found: dict[str, tuple[str, Any]] = {}
    for section in ("rope_parameters", "rope_scaling"):
        if section in keys:
            _merge(found, section, _section_fields(keys.section(section)))
    _merge(found, "the top level", _top_fields(keys))
    fields = {name: value for name, (_, value) in found.items()}
    kind = fields.pop("kind", "default")
    kind = (renamed or {}).get(kind, kind)
    if kind not in ROPE_KINDS:
        raise InputRefused(
            f"{keys.where}: the rope type is {shown(kind)}; dew computes {', '.join(ROPE_KINDS)}"
        )
    fields.setdefault("theta", default_theta)
    return Rope(kind=kind, **fields)


def rope_entries(config: dict[str, Any]) -> dict[str, Any]:
    """Return the rope keys of an exported config: transformers 4 reads some, 5 the others.

    Args:
        config: a config as it was read, in any spelling that `read_rope` takes.

    Returns:
        `rope_theta`, `rope_scaling` (null for the default kind) and `rope_parameters`; and for
        longrope `original_max_position_embeddings`, which transformers 4 reads beside them.
    """
    # The newer section first, so that an export of an export has the keys in the same order.
    fields: dict[str, Any] = dict(config.get("rope_parameters") or {})
    for name, value in (config.get("rope_scaling") or {}).items():
        fields.setdefault(name, value)
    kind = fields.pop("rope_type", None) or fields.pop("type", None) or "default"
    fields.pop("type", None)
    theta = fields.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    scaling = None if kind == "default" and not fields else {"rope_type": kind, **fields}
    original = fields.get("original_max_position_embeddings")
    beside = {"original_max_position_embeddings": original} if kind == "longrope" else {}
    return {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": theta, "rope_type": kind, **fields},
        **(beside if original else {}),
    }


def _section_fields(section: Keys) -> dict[str, Any]:
    """Return the fields of `Rope` that one object gives."""
    fields: dict[str, Any] = {
        "kind": section.text("rope_type", None) or section.text("type", None),
        "theta": section.number("rope_theta", None, low=1e-6),
        "original_max_position_embeddings": section.integer(
            "original_max_position_embeddings", None
        ),
        "truncate": section.flag("truncate", None),
    }
    for name in (*_NUMBERS, *_DEFAULTED):
        fields[name] = section.number(name, None, low=0.0)
    for name in _LISTS:
        fields[name] = section.numbers(name) or None
    if "type" in section and "rope_type" in section:
        _same("type", section.text("type"), "rope_type", section.text("rope_type"), section.where)
    return fields


def _top_fields(keys: Keys) -> dict[str, Any]:
    return {
        "theta": keys.number("rope_theta", None, low=1e-6),
        "original_max_position_embeddings": keys.integer("original_max_position_embeddings", None),
    }


def _merge(found: dict[str, tuple[str, Any]], place: str, fields: dict[str, Any]) -> None:
    """Add what `fields` gives; a value that is there already must be the same."""
    for name, value in fields.items():
        if value is None:
            continue
        if name in found:
            other, known = found[name]
            _same(f"{name} under {other}", known, f"under {place}", value, "config.json")
        found.setdefault(name, (place, value))


def _same(first: str, one: Any, second: str, two: Any, where: str) -> None:
    if one != two:
        raise InputRefused(
            f"{where}: rope {first} is {shown(one)} but {second} {shown(two)}; "
            "the two spellings must agree, remove the wrong one"
        )

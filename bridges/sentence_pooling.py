"""The files by which sentence-transformers says how a text's vector is made."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bridges.files.json_file import SIZE_LIMIT, parse_json, read_json
from bridges.files.regular_file import contained, open_regular, optional, shown_path
from bridges.files.writer import json_bytes
from dew.errors import InputRefused, shown
from dew.nn.heads import SentencePooling

MODULES, SETTINGS = "modules.json", "sentence_bert_config.json"
POOLING_FOLDER = "1_Pooling"
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
}
"""Its keys to dew's modes, in the order in which it joins their vectors."""
UNREAD = (
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
)


def read_pooling(folder: Path) -> SentencePooling | None:
    """Return how a folder of sentence-transformers makes a text's vector, or None for other ones.

    A folder whose modules ask for more than one pooling and its normalisation gets a warning that
    names them, and None.

    Raises:
        InputRefused: files that are no JSON, or not inside the folder, or a `max_seq_length` that
            is no whole number.
    """
    file = optional(folder, MODULES)
    if file is None:
        return None
    with open_regular(file) as opened:
        found = parse_json(opened.read(SIZE_LIMIT), shown_path(file))
    modules = [part for part in found if isinstance(part, dict)] if type(found) is list else []
    kinds = [str(part.get("type", "")).rsplit(".", 1)[-1] for part in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        return _without(f"its modules are {', '.join(kinds[:8])}")
    place = str(modules[1].get("path", ""))
    config = optional(contained(folder, place), "config.json") if place else None
    settings = {} if config is None else read_json(config)
    modes = pooling_modes(settings)
    if not modes:
        return _without(f"its pooling is {shown(settings)}")
    return SentencePooling(modes, kinds[2:] == ["Normalize"], _longest(folder))


def pooling_modes(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modes that a pooling's config.json asks for; empty where dew lacks one of them."""
    named = settings.get("pooling_mode")
    if named is not None:
        asked: Sequence[Any] = [named] if isinstance(named, str) else named
        return tuple(asked) if set(asked) <= set(MODES.values()) else ()
    if any(settings.get(key) for key in UNREAD):
        return ()
    if not any(key in settings for key in MODES):
        return ("mean",)
    return tuple(mode for key, mode in MODES.items() if settings.get(key))


def pooling_files(pooling: SentencePooling, features: int) -> dict[str, bytes]:
    """Return the files that say to sentence-transformers what `read_pooling` read.

    Args:
        pooling: how vectors are made.
        features: D, the width of the tokens' states.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalized else [])]
    paths = ["", POOLING_FOLDER, "2_Normalize"]
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": paths[place],
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    modes: dict[str, Any] = {key: mode in pooling.modes for key, mode in MODES.items()}
    settings = {"word_embedding_dimension": features, **modes, UNREAD[0]: False}
    files = {
        MODULES: (json.dumps(modules, indent=2) + "\n").encode(),
        f"{POOLING_FOLDER}/config.json": json_bytes(settings),
    }
    if pooling.max_tokens is not None:
        longest = {"max_seq_length": pooling.max_tokens, "do_lower_case": False}
        files[SETTINGS] = json_bytes(longest)
    return files


def _longest(folder: Path) -> int | None:
    file = optional(folder, SETTINGS)
    longest = None if file is None else read_json(file).get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise InputRefused(
            f"{shown_path(folder / SETTINGS)}: max_seq_length is {shown(longest)}; expected a "
            "whole number of at least 1"
        )
    return longest


def _without(reason: str) -> None:
    warnings.warn(
        f"no sentence_embedding is given, since {reason}; the tokens' states are", stacklevel=4
    )

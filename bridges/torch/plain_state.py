"""A loader's `state_dict` as JSON and back: numbers, texts, bytes and arrays, never a pickle."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from dew.errors import InputRefused, shown

MARK = "$dew"
PLAIN = (str, int, float, bool, type(None))


def plain(value: Any, place: str = "") -> Any:
    """Return a state in JSON's own types.

    Args:
        value: dictionaries, lists, tuples, numbers, texts, bytes, tensors and NumPy arrays.
        place: where in the state it stands, for the message.

    Raises:
        InputRefused: a value of another type, with its place.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, bytes):
        return {MARK: "bytes", "data": _coded(value)}
    if isinstance(value, list):
        return [plain(part, f"{place}[{number}]") for number, part in enumerate(value)]
    if isinstance(value, tuple):
        return {MARK: "tuple", "data": plain(list(value), place)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and key != MARK for key in value):
            return {key: plain(part, f"{place}[{key!r}]") for key, part in value.items()}
        pairs = [[plain(k, f"{place} keys"), plain(v, f"{place}[{k!r}]")] for k, v in value.items()]
        return {MARK: "pairs", "data": pairs}
    if isinstance(value, np.generic):
        return {MARK: "number", **_array(np.asarray(value))}
    if isinstance(value, np.ndarray):
        if not value.dtype.hasobject:
            return {MARK: "array", **_array(value)}
    elif hasattr(value, "detach") and hasattr(value, "numpy"):
        return {MARK: "tensor", **_array(value.detach().cpu().numpy())}
    raise InputRefused(
        f"the data loader's state{place} is a {type(value).__name__}, which a checkpoint cannot "
        "hold. Expected numbers, texts, bytes, arrays, and lists and dictionaries of them from the "
        "state_dict of the loader's dataset and sampler."
    )


def restored(value: Any) -> Any:
    """Return the state that `plain` gave JSON's types to.

    Raises:
        InputRefused: a mark that it does not set.
    """
    if isinstance(value, list):
        return [restored(part) for part in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(MARK)
    if kind is None:
        return {key: restored(part) for key, part in value.items()}
    if kind == "bytes":
        return base64.b64decode(value["data"])
    if kind == "tuple":
        return tuple(restored(value["data"]))
    if kind == "pairs":
        return {restored(key): restored(part) for key, part in value["data"]}
    if kind in ("number", "array", "tensor"):
        data = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["dtype"]))
        array = data.reshape(value["shape"]).copy()
        if kind == "tensor":
            import torch

            return torch.from_numpy(array)
        return array[()] if kind == "number" else array
    raise InputRefused(f"the data loader's state: {shown(kind)} is no kind that dew writes.")


def _array(array: np.ndarray) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": _coded(array.tobytes())}


def _coded(data: bytes) -> str:
    return base64.b64encode(data).decode()

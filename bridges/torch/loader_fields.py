"""A batch that a loader or a function made as named NumPy arrays, on its memory where it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridges.torch.loader_workers import Refused
from dew.errors import InputRefused, listed, shown

NARROWER = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
Fields = Sequence[str] | Mapping[str, str] | None


def named_fields(batch: Any, fields: Fields) -> dict[str, np.ndarray]:
    """Return the fields of a batch.

    Args:
        batch: a mapping, a named tuple, a tuple, or one tensor or array.
        fields: the names of a tuple's parts; which of a mapping's keys are read; or a mapping of
            its keys to the names they are to have. None takes a mapping's own keys.

    Returns:
        Arrays with the batch's rows as their first axis. Of 64-bit numbers, which JAX holds only
        when told to, floats are rounded to 32 bits and integers have to fit.

    Raises:
        InputRefused: a batch without names, a field that is not there or holds no numbers, fields
            of different numbers of rows, or an integer that 32 bits do not hold.
    """
    if isinstance(batch, Refused):
        raise InputRefused(batch.text)
    values = _named(batch, fields)
    made, problems = {}, []
    for name, value in values.items():
        try:
            made[name] = field_array(value)
        except InputRefused as refusal:
            problems.append(f"{shown(name, 60)} {refusal}")
    if problems:
        raise InputRefused(
            listed(
                "the batch: fields that no step can take. Leave them out (fields= the others' "
                "names), or change the collate function:",
                problems,
            )
        )
    counts = {name: len(value) for name, value in made.items()}
    if len(set(counts.values())) != 1:
        raise InputRefused(
            f"the batch: rows by field: {counts}. Expected one number of rows, as "
            "the first axis of each."
        )
    return made


def field_array(value: Any) -> np.ndarray:
    """Return a field's values: a tensor's without a copy, unless they are 64 bits wide.

    Raises:
        InputRefused: no numbers, no axis of rows, or an integer that does not fit; the message
            goes on from the field's name.
    """
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        array = _tensor_array(value)
    else:
        try:
            array = np.asarray(value)
        except ValueError:
            raise InputRefused("holds rows of different shapes: pad them") from None
    if array.dtype.kind in "mM":
        raise InputRefused(f"holds {array.dtype}: choose a unit and give numbers")
    if array.dtype.kind not in "biufcV" or array.dtype.names:
        raise InputRefused(f"holds {_held(value)}, not numbers")
    if not array.ndim:
        raise InputRefused("is one value, without an axis of rows")
    return narrowed(array)


def narrowed(array: np.ndarray) -> np.ndarray:
    """Return 64-bit numbers in 32 bits where JAX would hold them so, once they are known to fit.

    Raises:
        InputRefused: an integer that does not; the message goes on from the field's name.
    """
    import jax

    name = NARROWER.get(array.dtype.name)
    if name is None or jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return array
    if array.dtype.kind in "iu" and array.size:
        low, high, limits = int(array.min()), int(array.max()), np.iinfo(name)
        if low < limits.min or high > limits.max:
            raise InputRefused(
                f"goes from {low} to {high}, and JAX holds {name} here: set jax_enable_x64, or "
                "give smaller values"
            )
    return array.astype(name)


def _named(batch: Any, fields: Fields) -> dict[str, Any]:
    if hasattr(batch, "_asdict"):
        batch = batch._asdict()
    if isinstance(batch, Mapping):
        wanted = fields if fields is not None else list(batch)
        names = wanted if isinstance(wanted, Mapping) else {name: name for name in wanted}
        absent = [name for name in names if name not in batch]
        if absent:
            raise InputRefused(
                f"fields: no {', '.join(map(shown, absent))} in the batch; there is "
                f"{', '.join(map(shown, batch))}."
            )
        return {ours: batch[theirs] for theirs, ours in names.items()}
    parts = list(batch) if isinstance(batch, tuple | list) else [batch]
    if fields is None or isinstance(fields, Mapping) or len(fields) != len(parts):
        found = f"{type(batch).__name__} of {len(parts)}" if len(parts) > 1 else "single array"
        raise InputRefused(
            f"fields: the batch is a {found}, and fields is {shown(fields)}. "
            "Expected a name for each part, such as fields=('image', 'label')."
        )
    return dict(zip(fields, parts, strict=True))


def _tensor_array(tensor: Any) -> np.ndarray:
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise InputRefused("is a sparse, quantised or nested tensor: make it a plain one")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16 and the 8-bit floats, which NumPy has by ml_dtypes alone
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch.")))
        bits = getattr(torch, f"uint{8 * dtype.itemsize}")
        return tensor.contiguous().view(bits).numpy().view(dtype)


def _held(value: Any) -> str:
    """Return what a field holds, in words."""
    if isinstance(value, list | tuple) and value:
        return f"a {type(value).__name__} of {type(value[0]).__name__}"
    return type(value).__name__

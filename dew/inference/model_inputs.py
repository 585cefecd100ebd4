"""The inputs that models take, by Hugging Face's names: checked before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dew.errors import InputRefused, UnknownName, nearest, shown

Found = Mapping[str, Any]
DECODER = "decoder_"


def checked_inputs(model: Any, inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return the inputs as arrays: whole numbers as int32, others in the dtype they come in.

    Args:
        model: what names its inputs, `input_names`, the first of them required; and the limits
            that they have: `vocab_size`, `position_limit`, `type_vocab_size`, `channels`.
        inputs: by Hugging Face's names; None counts as absent.

    Returns:
        Those that were given.

    Raises:
        UnknownName: an input that the model does not take.
        InputRefused: a required one is missing, a wrong shape or type, an empty row, a value
            outside its range.
    """
    names = model.input_names
    given = {name: value for name, value in inputs.items() if value is not None}
    unknown = [name for name in inputs if name not in names]
    if unknown:
        raise UnknownName(
            f"unknown input {shown(unknown[0])}; the model takes {', '.join(names)}"
            f"{nearest(unknown[0], names)}"
        )
    missing = [name for name in getattr(model, "required_inputs", names[:1]) if name not in given]
    if missing:
        raise InputRefused(f"{missing[0]} is missing: expected {_EXPECTED[missing[0]]}")
    found: dict[str, Any] = {}
    for name in names:
        if name in given:
            found[name] = _CHECKS[name](model, name, given[name], found)
    for name in ("input_ids", "decoder_input_ids"):
        _check_length(model, name, found)
    return {name: _array(value) for name, value in found.items()}


def checked_prompts(model: Any, inputs: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return `input_ids` and `attention_mask` [N, L] of what `checked_inputs` lets pass.

    Without a mask every id is real.
    """
    return _with_mask(checked_inputs(model, inputs))


def checked_source(
    model: Any, input_ids: Any, attention_mask: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return what an encoder is to read as `checked_prompts` does, of a model with a decoder."""
    first = _ids(model, "input_ids", input_ids, {})
    given = {"input_ids": input_ids, "attention_mask": attention_mask}
    found = checked_inputs(model, {**given, "decoder_input_ids": np.zeros_like(first)})
    return _with_mask(found)


def _with_mask(found: Mapping[str, jax.Array]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.asarray(found["input_ids"])
    mask = found.get("attention_mask")
    return tokens, np.ones_like(tokens) if mask is None else np.asarray(mask)


def mask_positions(mask: Any) -> Any:
    """Return each token's position [N, L]: real tokens before it, 0 within left padding."""
    xp = jnp if isinstance(mask, jax.Array) else np
    return xp.clip(xp.cumsum(mask, axis=-1) - 1, 0, None)


def _array(value: Any) -> jax.Array:
    kind = jnp.int32 if jnp.issubdtype(value.dtype, jnp.integer) else None
    if isinstance(value, np.ndarray) and kind is not None:
        # On the host: JAX would compile a conversion for every shape.
        value = value.astype(np.int32)
    return jnp.asarray(value, kind)


def _ids(model: Any, name: str, value: Any, _: Found) -> Any:
    tokens = _integers(name, value)
    if tokens.ndim != 2:
        raise InputRefused(
            f"{name} has shape {tuple(tokens.shape)}, expected [N, L]; put one prompt in a list"
        )
    if 0 in tokens.shape:
        raise InputRefused(
            f"{name} has shape {tuple(tokens.shape)}: an empty prompt has nothing to continue; "
            "start it with the tokenizer's bos token"
        )
    _within(name, tokens, model.vocab_size, "the model's vocabulary (vocab_size)")
    return tokens


def _mask(model: Any, name: str, value: Any, found: Found) -> Any:
    mask = _integers(name, value)
    _same_shape(name, mask, _beside(name, found))
    if isinstance(mask, np.ndarray):
        if not np.isin(mask, (0, 1)).all():
            raise InputRefused(f"{name} holds values other than 0 (padding) and 1 (real)")
        empty = np.flatnonzero(mask.sum(-1) == 0)
        if empty.size:
            raise InputRefused(
                f"{name} is 0 throughout row {int(empty[0])}: an empty prompt has nothing "
                "to continue; start it with the tokenizer's bos token"
            )
    return mask


def _positions(model: Any, name: str, value: Any, found: Found) -> Any:
    positions = _integers(name, value)
    _same_shape(name, positions, _beside(name, found))
    limit = getattr(model, "position_rows", model.position_limit)
    if limit is not None:
        _within(name, positions, limit, "the model's context (max_seq_len)")
    return positions


def _kinds(model: Any, name: str, value: Any, found: Found) -> Any:
    kinds = _integers(name, value)
    _same_shape(name, kinds, _beside(name, found))
    limit = model.type_vocab_size
    _within(name, kinds, limit, "the model's number of segments (type_vocab_size)")
    return kinds


def _pixels(model: Any, name: str, value: Any, _: Found) -> Any:
    pixels = _floats(name, value)
    if pixels.ndim != 4 or pixels.shape[1] != model.channels or 0 in pixels.shape:
        raise InputRefused(
            f"{name} has shape {tuple(pixels.shape)}, expected [N, {model.channels}, height, width]"
        )
    return pixels


def _sound(axes: int) -> Callable[[Any, str, Any, Found], Any]:
    def check(_: Any, name: str, value: Any, __: Found) -> Any:
        sound = _floats(name, value)
        if sound.ndim != axes or 0 in sound.shape:
            raise InputRefused(f"{name} has shape {tuple(sound.shape)}, expected {_EXPECTED[name]}")
        return sound

    return check


_CHECKS: dict[str, Callable[[Any, str, Any, Found], Any]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "attention_mask": _mask,
    "decoder_attention_mask": _mask,
    "token_type_ids": _kinds,
    "position_ids": _positions,
    "decoder_position_ids": _positions,
    "pixel_values": _pixels,
    "input_features": _sound(3),
    "input_values": _sound(2),
}
_EXPECTED = {
    "input_ids": "integers of shape [N, L]",
    "decoder_input_ids": "integers of shape [N, T]",
    "pixel_values": "numbers of shape [N, channels, height, width]",
    "input_features": "numbers of shape [N, mel bins, frames]",
    "input_values": "numbers of shape [N, samples]",
}


def _beside(name: str, found: Found) -> tuple[str, Any]:
    """Return the input that another one goes with place by place, and its name."""
    wanted = (f"{DECODER}input_ids",) if name.startswith(DECODER) else ("input_ids", "input_values")
    for other in wanted:
        if other in found:
            return other, found[other]
    raise InputRefused(f"{name} was given without {wanted[0]}, whose shape it must have")


def _check_length(model: Any, name: str, found: Found) -> None:
    """Refuse rows longer than the model's positions."""
    prefix = name.removesuffix("input_ids")
    if name not in found or f"{prefix}position_ids" in found or model.position_limit is None:
        return
    length, mask = found[name].shape[1], found.get(f"{prefix}attention_mask")
    if mask is not None and model.counts_real_tokens:
        # Padding takes no position of its own.
        length = int(mask.sum(-1).max()) if isinstance(mask, np.ndarray) else 0
    if length > model.position_limit:
        raise InputRefused(
            f"{name} is {length} tokens long, the model has {model.position_limit} positions "
            "(max_seq_len); shorten the input"
        )


def _integers(name: str, value: Any) -> Any:
    """Return `value` as a NumPy array, or as it is where it is traced; integers only."""
    array = _host(name, value, "integers")
    if array.dtype == np.bool_ and name.endswith("mask"):
        array = array.astype(np.int32)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise InputRefused(f"{name} has dtype {array.dtype}, expected integers")
    return array


def _floats(name: str, value: Any) -> Any:
    """Return `value` as an array of floating numbers."""
    array = value if isinstance(value, jax.Array) else _host(name, value, "numbers")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputRefused(
            f"{name} has dtype {array.dtype}, expected floating point; prepare it with the "
            "checkpoint's processor"
        )
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _host(name: str, value: Any, what: str) -> Any:
    """Return `value` as a NumPy array, or as it is where it is traced."""
    if isinstance(value, Tracer):
        # Traced values have no host copy: their shapes and types alone are checked.
        return value
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputRefused(
            f"{name} is not a rectangular array of {what} ({error}); pad the rows to one "
            "length and pass attention_mask"
        ) from error


def _same_shape(name: str, value: Any, beside: tuple[str, Any]) -> None:
    other, ids = beside
    if tuple(value.shape) != tuple(ids.shape):
        raise InputRefused(
            f"{name} has shape {tuple(value.shape)}, {other} has {tuple(ids.shape)}; they must "
            "agree"
        )


def _within(name: str, values: Any, limit: int, what: str) -> None:
    """Refuse a value outside [0, limit): a gather would clamp it in silence."""
    if not isinstance(values, np.ndarray) or not values.size:
        return
    lowest, highest = int(values.min()), int(values.max())
    if lowest < 0 or highest >= limit:
        found = lowest if lowest < 0 else highest
        raise InputRefused(f"{name} holds {found}, outside [0, {limit}): {what} is {limit}")

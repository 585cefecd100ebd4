"""The bundle: a model, its variables, and what a checkpoint says about how to use them."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dew.errors import InputRefused, UnknownName, nearest, shown
from dew.typing import TextProcessor, Variables

INPUT_NAMES = ("input_ids", "attention_mask", "position_ids")


@dataclasses.dataclass(frozen=True, eq=False)
class Bundle:
    """One loaded model: what `bridges.load` returns and every task takes.

    Calling it takes Hugging Face's input names and gives a dict of its output names. The
    compiled function is cached by the model's definition and the shapes, so a second bundle
    of the same architecture compiles nothing.

    Attributes:
        model: the linen module.
        variables: its variables, `{"params": ..., other collections}`.
        config: the checkpoint's `config.json` as it was read.
        processor: the checkpoint's tokenizer, or None where it carries none.
        family: Hugging Face's `model_type`.
        generation_config: `generation_config.json` as it was read, empty where absent.
        source: where it came from, for messages.
        adapter: the adapter laid over the base weights, or None.
        stored: what the loader remembers of the source's tensors, so that an export gives the
            same names and dtypes back.
    """

    model: Any
    variables: Variables
    config: dict = dataclasses.field(default_factory=dict)
    processor: TextProcessor | None = None
    family: str = ""
    generation_config: dict = dataclasses.field(default_factory=dict)
    source: str = ""
    adapter: Any = None
    stored: Any = None

    def __call__(self, **inputs: Any) -> dict[str, jax.Array]:
        """Run the model once, jitted.

        Args:
            **inputs: `input_ids` [N, L], integers below the vocabulary's size;
                `attention_mask` [N, L] (1 = real, 0 = padding on either side; all real if
                absent); `position_ids` [N, L] (counted from the mask if absent).

        Returns:
            `{"logits": [N, L, V]}`.

        Raises:
            InputRefused: an unknown input name, a wrong shape or type, an empty prompt, an id
                outside the vocabulary, a position past the model's last.
        """
        tokens, mask, positions = checked_inputs(self.model, inputs)
        return _jitted_forward(self.model, self.variables, tokens, mask, positions)

    def apply(self, variables: Variables, **inputs: Any) -> dict[str, jax.Array]:
        """Return the outputs for other variables: pure, to be jitted or differentiated.

        Args:
            variables: laid out as `self.variables`.
            **inputs: as for a call; under `jit`, where values are not known, only names and
                shapes are checked.

        Returns:
            `{"logits": [N, L, V]}`.

        Raises:
            InputRefused: as for a call.
        """
        return _forward(self.model, variables, *checked_inputs(self.model, inputs))

    def generate(self, input_ids: Any, attention_mask: Any = None, **options: Any) -> np.ndarray:
        """Continue each prompt; names and defaults are those of transformers' `generate`.

        Args:
            input_ids: [N, P] prompt ids, padded on either side.
            attention_mask: [N, P], 1 = real. Absent: every id is real.
            **options: the fields of `dew.inference.generation.GenerationOptions`; what is not
                given comes from the checkpoint's `generation_config`.

        Returns:
            int32 [N, P + T]: the prompt as given, then the new ids; a row that ended carries its
            end id once and then padding.

        Raises:
            InputRefused: as for a call, and an unknown or out-of-range option.
        """
        from dew.inference.decode import generate

        return generate(self, input_ids, attention_mask, **options)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the pipeline's tasks that the model is fit for."""
        return ("text-generation",)

    def replace(self, **changes: Any) -> Bundle:
        """Return this bundle with some fields changed."""
        return dataclasses.replace(self, **changes)


def checked_inputs(
    model: Any, inputs: dict[str, Any]
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Return tokens, mask and positions [N, L] as int32 arrays, or refuse them.

    Args:
        model: what has `vocab_size` and `position_limit`.
        inputs: by Hugging Face's names, see `INPUT_NAMES`.

    Raises:
        InputRefused: see `Bundle.__call__`.
    """
    unknown = [name for name in inputs if name not in INPUT_NAMES]
    if unknown:
        raise UnknownName(
            f"unknown input {shown(unknown[0])}; a causal language model takes "
            f"{', '.join(INPUT_NAMES)}{nearest(unknown[0], INPUT_NAMES)}"
        )
    if inputs.get("input_ids") is None:
        raise InputRefused("input_ids is missing: expected integers of shape [N, L]")
    tokens = _integers("input_ids", inputs["input_ids"])
    if tokens.ndim != 2:
        raise InputRefused(
            f"input_ids has shape {tuple(tokens.shape)}, expected [N, L]; put one prompt in a list"
        )
    if 0 in tokens.shape:
        raise InputRefused(
            f"input_ids has shape {tuple(tokens.shape)}: an empty prompt has nothing to continue; "
            "start it with the tokenizer's bos token"
        )
    _within("input_ids", tokens, model.vocab_size, "the model's vocabulary (vocab_size)")
    mask = _mask(inputs.get("attention_mask"), tokens.shape)
    positions = _positions(model, inputs.get("position_ids"), mask, tokens.shape)
    return (
        jnp.asarray(tokens, jnp.int32),
        None if mask is None else jnp.asarray(mask, jnp.int32),
        None if positions is None else jnp.asarray(positions, jnp.int32),
    )


def mask_positions(mask: Any) -> Any:
    """Return each token's position [N, L]: real tokens before it, 0 within left padding."""
    xp = jnp if isinstance(mask, jax.Array) else np
    return xp.clip(xp.cumsum(mask, axis=-1) - 1, 0, None)


@partial(jax.jit, static_argnums=0)
def _jitted_forward(model, variables, tokens, mask, positions):
    return _forward(model, variables, tokens, mask, positions)


def _forward(model, variables, tokens, mask, positions) -> dict[str, jax.Array]:
    return {"logits": model.apply(variables, tokens, mask=mask, positions=positions)}


def _mask(mask: Any, shape: tuple[int, ...]) -> Any:
    if mask is None:
        return None
    mask = _integers("attention_mask", mask)
    _same_shape("attention_mask", mask, shape)
    if isinstance(mask, np.ndarray):
        if not np.isin(mask, (0, 1)).all():
            raise InputRefused("attention_mask holds values other than 0 (padding) and 1 (real)")
        empty = np.flatnonzero(mask.sum(-1) == 0)
        if empty.size:
            raise InputRefused(
                f"attention_mask is 0 throughout row {int(empty[0])}: an empty prompt has nothing "
                "to continue; start it with the tokenizer's bos token"
            )
    return mask


def _positions(model: Any, positions: Any, mask: Any, shape: tuple[int, ...]) -> Any:
    if positions is not None:
        positions = _integers("position_ids", positions)
        _same_shape("position_ids", positions, shape)
    elif mask is not None:
        positions = mask_positions(mask)
    limit = model.position_limit
    if limit is not None and positions is not None:
        _within("position_ids", positions, limit, "the model's context (max_seq_len)")
    elif limit is not None and shape[1] > limit:
        raise InputRefused(
            f"input_ids is {shape[1]} tokens long, the model has {limit} positions (max_seq_len); "
            "shorten the input"
        )
    return positions


def _integers(name: str, value: Any) -> Any:
    """Return `value` as a NumPy array, or as it is where it is traced; integers only."""
    if isinstance(value, Tracer):
        # Traced values have no host copy: their shapes and types alone are checked.
        array = value
    else:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputRefused(
                f"{name} is not a rectangular array of integers ({error}); pad the rows to one "
                "length and pass attention_mask"
            ) from error
    if array.dtype == np.bool_ and name == "attention_mask":
        array = array.astype(np.int32)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise InputRefused(f"{name} has dtype {array.dtype}, expected integers")
    return array


def _same_shape(name: str, value: Any, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != tuple(shape):
        raise InputRefused(
            f"{name} has shape {tuple(value.shape)}, input_ids has {tuple(shape)}; they must agree"
        )


def _within(name: str, values: Any, limit: int, what: str) -> None:
    """Refuse a value outside [0, limit): a gather would clamp it in silence."""
    if not isinstance(values, np.ndarray) or not values.size:
        return
    lowest, highest = int(values.min()), int(values.max())
    if lowest < 0 or highest >= limit:
        found = lowest if lowest < 0 else highest
        raise InputRefused(f"{name} holds {found}, outside [0, {limit}): {what} is {limit}")

"""The inputs that a model is asked about: one batch for whatever it reads, drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.packing import Directed
from parity.reference import flat_outputs
from parity.subject import Subject

Inputs = dict[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]

ROWS, IMAGES = 3, 2
SIDE, CHANNELS = 32, 3
SHARE = 0.02
BINS, FRAMES, SAMPLES = 80, 96, 1600
MASKS = ("attention_mask", "decoder_attention_mask")


def batch(subject: Subject, length: int, seed: int, *, left: bool = True) -> Inputs:
    """Return a batch by the names that the model takes.

    Texts are three rows of `length` tokens, of which two are padded; sounds are three rows too,
    of which the last is padded where the model takes a mask; images are two, or three where a
    text goes with each.

    Args:
        subject: the model.
        length: of the texts, in tokens.
        seed: of all that is drawn.
        left: pad the second row on the left, else both on the right, without positions.
    """
    names = set(subject.input_names)
    found: Inputs = {}
    if names & {"pixel_values", "input_features", "input_values"}:
        found |= _perceived(subject, names, np.random.default_rng(seed))
    if not names & {"input_ids", "decoder_input_ids"}:
        return found
    ids, mask = _texts(subject, length, seed, left=left)
    if "input_ids" in names:
        found |= {"input_ids": ids, "attention_mask": mask}
        if left and not subject.packs:
            found["position_ids"] = (mask.cumsum(-1) - 1).clip(0)
    if "decoder_input_ids" in names:
        found |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    return {name: value for name, value in found.items() if name in names}


def directed(subject: Subject, inputs: Inputs) -> Directed:
    """Return inputs with a random direction for each output, 0 at padding.

    Each is divided by the root of how many values it has, and then by as much as makes gradients
    of the size that a mean loss has: AdamW's epsilon is chosen for those.
    """
    import jax

    def shapes() -> Any:
        return flat_outputs(subject.bundle.apply(subject.bundle.variables, **inputs))

    generator = np.random.default_rng(5)
    ways = {}
    for name, output in sorted(jax.eval_shape(shapes).items()):
        drawn = generator.standard_normal(output.shape) * SHARE / np.sqrt(np.prod(output.shape))
        mask = _mask_of(output.shape, inputs)
        if mask is not None:
            drawn = drawn * mask.reshape(*mask.shape, *(1 for _ in output.shape[2:]))
        ways[name] = drawn.astype(np.float32)
    return Directed(inputs, ways)


def outputs(subject: Subject, inputs: Inputs) -> dict[str, np.ndarray]:
    """Return dew's output arrays by name."""
    found = flat_outputs(subject.bundle(**inputs))
    return {name: np.asarray(value) for name, value in found.items()}


def real(found: Outputs, inputs: Inputs) -> dict[str, np.ndarray]:
    """Return the outputs at real tokens [tokens, ...]; those that are not by token whole."""
    masks = {name: _mask_of(value.shape, inputs) for name, value in found.items()}
    return {
        name: value if (mask := masks[name]) is None else value[mask != 0]
        for name, value in found.items()
    }


def rows_alone(inputs: Inputs) -> list[Inputs]:
    """Return each row of a padded batch by itself and without its padding.

    What goes with no row, such as the images that texts are compared with, is in all of them.
    """
    mask = next(inputs[name] for name in MASKS if name in inputs)

    def alone(row: int, value: np.ndarray) -> np.ndarray:
        if value.shape == mask.shape:
            return value[row : row + 1, mask[row] != 0]
        return value[row : row + 1] if len(value) == len(mask) else value

    return [{name: alone(row, value) for name, value in inputs.items()} for row in range(len(mask))]


def without_padding(
    found: Outputs, inputs: Inputs, alone: Sequence[Outputs]
) -> list[dict[str, np.ndarray]]:
    """Return each row of a padded batch's outputs without its padding, shaped as it is `alone`."""
    return [_row_like(found, inputs, row, wanted) for row, wanted in enumerate(alone)]


def joined(rows: Sequence[Outputs]) -> dict[str, np.ndarray]:
    """Return the values of each output of all rows, in one axis."""
    return {name: np.concatenate([row[name].reshape(-1) for row in rows]) for name in rows[0]}


def _row_like(found: Outputs, inputs: Inputs, row: int, alone: Outputs) -> dict[str, np.ndarray]:
    parts = {}
    for name, wanted in alone.items():
        part = found[name][row : row + 1]
        if part.shape != wanted.shape:
            mask = _mask_of(found[name].shape, inputs)
            # Frames of sound are fewer than its samples: there the padding is on the right.
            part = part[:, : wanted.shape[1]] if mask is None else part[:, mask[row] != 0]
        parts[name] = part
    return parts


def _mask_of(shape: tuple[int, ...], inputs: Inputs) -> np.ndarray | None:
    """Return the mask of the tokens that an output of `shape` is of, if it is by token."""
    fitting = [inputs[n] for n in MASKS if n in inputs and inputs[n].shape == tuple(shape[:2])]
    return fitting[0] if fitting else None


def _texts(
    subject: Subject, length: int, seed: int, *, left: bool
) -> tuple[np.ndarray, np.ndarray]:
    ids = subject.token_stream(ROWS * length, seed).reshape(ROWS, length)
    mask = np.ones_like(ids)
    if left:
        mask[1, : length // 4] = 0
    else:
        mask[1, length - length // 4 :] = 0
    mask[2, length - length // 3 :] = 0
    if not subject.causal:
        ids = _ended(subject, ids, mask)
    return np.where(mask == 1, ids, subject.padding_id), mask


def _ended(subject: Subject, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return texts that end as they should: some models find the end by its id, others padding."""
    config = subject.text_config
    end, padding = config.get("eos_token_id"), subject.padding_id
    ids = np.where(ids == padding, (padding + 1) % subject.vocab_size, ids)
    # Where padding is spelled as the end, torch trains neither.
    if isinstance(end, int) and end < subject.vocab_size and end != padding:
        ids = np.where(ids == end, (end + subject.vocab_size // 2) % subject.vocab_size, ids)
        last = mask.shape[1] - 1 - mask[:, ::-1].argmax(-1)
        ids[np.arange(len(ids)), last] = end
    return ids


def _perceived(subject: Subject, names: set[str], generator: np.random.Generator) -> Inputs:
    """Return what is no text: images, features of sound, or sound itself."""
    config = {**subject.bundle.config, **(subject.bundle.config.get("vision_config") or {})}
    found: Inputs = {}
    if "pixel_values" in names:
        rows = ROWS if "decoder_input_ids" in names else IMAGES
        shape = (rows, config.get("num_channels", CHANNELS), *_image_size(subject, config))
        found["pixel_values"] = generator.standard_normal(shape).astype(np.float32)
    if "input_features" in names:
        places = config.get("max_source_positions")
        frames = 2 * places if isinstance(places, int) else FRAMES
        shape = (ROWS, config.get("num_mel_bins", BINS), frames)
        found["input_features"] = generator.standard_normal(shape).astype(np.float32)
    if "input_values" in names:
        found["input_values"] = generator.standard_normal((ROWS, SAMPLES)).astype(np.float32)
        if "attention_mask" in names:
            mask = np.ones((ROWS, SAMPLES), np.int32)
            mask[-1, 2 * SAMPLES // 3 :] = 0
            found["attention_mask"] = mask
            found["input_values"] = found["input_values"] * mask.astype(np.float32)
    return found


def _image_size(subject: Subject, config: Mapping[str, Any]) -> tuple[int, int]:
    size = subject.image_size or config.get("image_size") or SIDE
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))

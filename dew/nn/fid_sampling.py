"""Pictures of any size as the 299 x 299 pixels that Inception reads, as each tool of FID does it.

| mode           | from size to size                          | levels         |
|----------------|--------------------------------------------|----------------|
| pytorch-fid    | bilinear between pixel centres             | 2 (x / 255) - 1 |
| torch-fidelity | bilinear between upper left corners        | (x - 128) / 128 |
| torchmetrics   | bilinear, filtered where a picture shrinks | (x - 128) / 128 |
| clean-fid      | bicubic, filtered where a picture shrinks  | (x - 128) / 128 |

None rounds back to bytes. At 299 x 299 the last three agree, and the first shifts and scales the
levels by half a step of 255. Where pictures shrink, the first two skip pixels and let fine
patterns through as coarse ones, so that their distances differ from the other two's most there.

Weights and features are the same for all four; the rest of what sets them apart is which files
they read, and is left out here: pytorch-fid passes over names such as x.JPG, clean-fid goes into
the folders inside a folder, torch-fidelity reads PNG and JPEG only, and torchmetrics, which takes
arrays, cuts floats off to bytes where dew rounds them as an image file would.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dew.errors import UnknownName, nearest, shown
from dew.nn.resize_filters import CUBIC, TRIANGLE, Filter, filter_weights

SIDE = 299
STEP = 32
"""Pictures are filled up to a multiple of this, so that few shapes are compiled."""

Places = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]
"""For each output, the two inputs beside it and the weight of the second."""
Plan = NDArray[np.float32] | Places | None
"""How a line is resized: a matrix, two places for each output, or not at all."""


def sampled(pixels: NDArray[np.uint8], mode: str) -> jax.Array:
    """Return what Inception reads, float32 [N, 299, 299, 3].

    Args:
        pixels: uint8 [N, H, W, 3].
        mode: one of `MODES`.

    Source: pytorch-fid 0.3.0, torch-fidelity 0.4.0, torchmetrics 1.9 and clean-fid 0.1.35
    ("clean"), each by 1e-5 of the range in tests.
    """
    rows, columns = (MODES[mode](side) for side in pixels.shape[1:3])
    fills = [0 if side == SIDE else -side % STEP for side in pixels.shape[1:3]]
    filled = np.pad(pixels, ((0, 0), *((0, fill) for fill in fills), (0, 0)))
    return _resized(jax.device_put(filled, jax.local_devices()[0]), rows, columns, mode)


def check_mode(mode: str) -> str:
    """Return a mode that is known.

    Raises:
        UnknownName: it is not.
    """
    if mode not in MODES:
        raise UnknownName(
            f"mode is {shown(mode)}{nearest(mode, MODES)}; expected one of {', '.join(MODES)}"
        )
    return mode


@partial(jax.jit, static_argnums=3)
def _resized(pixels: jax.Array, rows: Plan, columns: Plan, mode: str) -> jax.Array:
    levels = pixels.astype(jnp.float32)
    if mode == "pytorch-fid":
        return 2 * _line(_line(levels / 255, rows, 1), columns, 2) - 1
    resized = _line(_line(levels, columns, 2), rows, 1)
    if mode == "clean-fid":
        resized = jnp.clip(resized, 0, 255)
    return (resized - 128) / 128


def _line(images: jax.Array, plan: Plan, axis: int) -> jax.Array:
    if plan is None:
        return images
    if not isinstance(plan, tuple):
        names = "nhwc,oh->nowc" if axis == 1 else "nhwc,ow->nhoc"
        return jnp.einsum(names, images, plan, precision="highest")
    low, high, weight = plan
    share = weight.reshape([-1 if i == axis else 1 for i in range(images.ndim)])
    return jnp.take(images, low, axis) * (1 - share) + jnp.take(images, high, axis) * share


@lru_cache(maxsize=64)
def _centres(inputs: int) -> Plan:
    """Return the places of torch's F.interpolate(mode="bilinear", align_corners=False).

    Its float32 positions are followed step by step: in float64 a pixel moves by up to 1e-5.
    """
    half, scale = np.float32(0.5), np.float32(inputs) / np.float32(SIDE)
    place = scale * (np.arange(SIDE, dtype=np.float32) + half) - half
    return _beside(np.maximum(place, np.float32(0)), inputs)


@lru_cache(maxsize=64)
def _corners(inputs: int) -> Plan:
    """Return the places of TensorFlow 1's resize_bilinear, which the network was trained with."""
    return _beside(np.arange(SIDE, dtype=np.float32) * np.float32(inputs / SIDE), inputs)


def _beside(place: NDArray[np.float32], inputs: int) -> Plan:
    if inputs == SIDE:
        return None
    low = np.minimum(place.astype(np.int32), inputs - 1)
    return low, np.minimum(low + 1, inputs - 1), (place - low).astype(np.float32)


@lru_cache(maxsize=64)
def _filtered(inputs: int, filter: Filter, single: bool) -> Plan:
    if inputs == SIDE:
        return None
    weights = filter_weights(inputs, SIDE, filter, single=single).astype(np.float32)
    return np.pad(weights, ((0, 0), (0, -inputs % STEP)))


MODES: dict[str, Callable[[int], Plan]] = {
    "pytorch-fid": _centres,
    "clean-fid": partial(_filtered, filter=CUBIC, single=False),
    "torch-fidelity": _corners,
    "torchmetrics": partial(_filtered, filter=TRIANGLE, single=True),
}
"""The tools whose numbers can be had, by name: what each makes of a line of pixels."""

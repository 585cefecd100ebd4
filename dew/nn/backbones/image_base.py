"""What the image models have in common: tasks, inputs and the names of their parameters' axes."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.dense import INIT_DEVIATION, Dense

IMAGE_TASKS = {
    "": "image-feature-extraction",
    "image": "image-classification",
    "segmentation": "image-segmentation",
}
"""The kinds of heads, "" for none, to the pipeline's task that each does."""
AXIS_NAMES = {
    0: (),
    1: ("features",),
    2: ("inputs", "features"),
    3: ("heads", "head", "features"),
    4: ("rows", "columns", "inputs", "features"),
}
EXAMPLES = 2


class ImageBase(nn.Module):
    """Maps normalised images [N, C, H, W] to outputs by Hugging Face's names.

    Args:
        head: "image" (labels of the image), "segmentation" (labels of its places) or "" for none.
        labels: how many labels a head tells apart.
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
    """

    input_names: ClassVar[tuple[str, ...]] = ("pixel_values",)

    head: str = ""
    labels: int = 2
    dtype: str = "float32"
    param_dtype: str = "float32"

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the pipeline's tasks that the model is fit for."""
        task = IMAGE_TASKS.get(self.head, "")
        return (task,) if task else ()

    @property
    def channels(self) -> int:
        """C, the channels of an image."""
        raise NotImplementedError

    @property
    def example_size(self) -> tuple[int, int]:
        """H and W of the images of a short run."""
        raise NotImplementedError

    def outputs(self, pixel_values: jax.Array) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names, of images [N, C, H, W]."""
        raise NotImplementedError

    def example_inputs(self) -> dict[str, np.ndarray]:
        """Return inputs for a short run that says whether two models are the same."""
        shape = (EXAMPLES, self.channels, *self.example_size)
        drawn = np.random.default_rng(0).standard_normal(shape)
        return {"pixel_values": drawn.astype(np.float32)}

    def parameter_shapes(self) -> dict[str, Any]:
        """Return the shapes of `init`'s parameters; nothing is computed."""
        images = jax.ShapeDtypeStruct((1, self.channels, *self.example_size), jnp.float32)

        def drawn(images: jax.Array) -> Any:
            return self.init(jax.random.key(0), images, method="outputs")

        return jax.eval_shape(drawn, images)["params"]

    def parameter_axes(self) -> dict[str, Any]:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""

        def named(path: Any, leaf: Any) -> tuple[str, ...]:
            # The layers of a stage, where they are scanned, lie in a folder of its own.
            if path[0].key.removeprefix("stage").isdigit():
                return ("layers", *AXIS_NAMES[leaf.ndim - 1])
            return AXIS_NAMES[leaf.ndim]

        return jax.tree_util.tree_map_with_path(named, self.parameter_shapes())

    def classifier(self) -> Dense:
        """Return the last map of a head, to its labels."""
        return Dense((self.labels,), use_bias=True, dtype=self.dtype, param_dtype=self.param_dtype)


def patch_rows(images: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Return the pixels of each patch, [N, R, K, C, P, Q] of images [N, C, H, W].

    Args:
        images: rows and columns beyond the last whole patch are left out, as a convolution does.
        size: P and Q, height and width of a patch in pixels.
    """
    batch, channels, height, width = images.shape
    rows, columns = height // size[0], width // size[1]
    whole = images[:, :, : rows * size[0], : columns * size[1]]
    cut = whole.reshape(batch, channels, rows, size[0], columns, size[1])
    return cut.transpose(0, 2, 4, 1, 3, 5)


def wrong_size(found: tuple[int, ...], wanted: tuple[int, int]) -> InputRefused:
    """Return the refusal of images whose height and width are not the model's."""
    return InputRefused(
        f"pixel_values has shape {found}; the model reads images of {wanted[0]} x {wanted[1]} "
        "pixels: resize them, as the checkpoint's processor does"
    )


def random_rows() -> nn.initializers.Initializer:
    """Return how learned tables and tokens are drawn."""
    return nn.initializers.normal(INIT_DEVIATION)

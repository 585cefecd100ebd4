"""The Inception network of FID: bytes of images to the 2048 features that the distance compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from numpy.typing import NDArray

from dew.errors import InputRefused
from dew.nn.image_batches import in_chunks, resize_bilinear

SIDE = 299
TAPS: dict[int, str] = {64: "pool1", 192: "pool2", 768: "mixed6", 2048: "pool3"}
"""Number of features to the place in the network they are read at."""


class Conv(NamedTuple):
    """One convolution with its bias and ReLU; the batch norm is folded into both."""

    name: str
    features: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1


Branch = tuple[Conv | tuple[Conv, Conv], ...]


class Mixed(NamedTuple):
    """Branches side by side, and one more that pools: `average`, `max` or `halve`."""

    name: str
    branches: tuple[Branch, ...]
    pool: str
    pool_features: int = 0


def _five(name: str, pool_features: int) -> Mixed:
    double = (Conv("branch3x3dbl_1", 64), *(_square(f"branch3x3dbl_{i}", 96) for i in (2, 3)))
    five = (Conv("branch5x5_1", 48), Conv("branch5x5_2", 64, (5, 5)))
    return Mixed(name, ((Conv("branch1x1", 64),), five, double), "average", pool_features)


def _six(name: str, width: int) -> Mixed:
    row, column = (1, 7), (7, 1)
    seven = (
        Conv("branch7x7_1", width),
        Conv("branch7x7_2", width, row),
        Conv("branch7x7_3", 192, column),
    )
    double = (
        Conv("branch7x7dbl_1", width),
        Conv("branch7x7dbl_2", width, column),
        Conv("branch7x7dbl_3", width, row),
        Conv("branch7x7dbl_4", width, column),
        Conv("branch7x7dbl_5", 192, row),
    )
    return Mixed(name, ((Conv("branch1x1", 192),), seven, double), "average", 192)


def _seven(name: str, pool: str) -> Mixed:
    def fork(stem: str) -> tuple[Conv, Conv]:
        return Conv(f"{stem}a", 384, (1, 3)), Conv(f"{stem}b", 384, (3, 1))

    three = (Conv("branch3x3_1", 384), fork("branch3x3_2"))
    double = (
        Conv("branch3x3dbl_1", 448),
        _square("branch3x3dbl_2", 384),
        fork("branch3x3dbl_3"),
    )
    return Mixed(name, ((Conv("branch1x1", 320),), three, double), pool, 192)


def _square(name: str, features: int, stride: int = 1) -> Conv:
    return Conv(name, features, (3, 3), stride)


SIX_A = Mixed(
    "Mixed_6a",
    (
        (_square("branch3x3", 384, 2),),
        (
            Conv("branch3x3dbl_1", 64),
            _square("branch3x3dbl_2", 96),
            _square("branch3x3dbl_3", 96, 2),
        ),
    ),
    "halve",
)
SEVEN_A = Mixed(
    "Mixed_7a",
    (
        (Conv("branch3x3_1", 192), _square("branch3x3_2", 320, 2)),
        (
            Conv("branch7x7x3_1", 192),
            Conv("branch7x7x3_2", 192, (1, 7)),
            Conv("branch7x7x3_3", 192, (7, 1)),
            _square("branch7x7x3_4", 192, 2),
        ),
    ),
    "halve",
)
FIVES_AND_SIXES = (
    *(_five(f"Mixed_5{letter}", width) for letter, width in zip("bcd", (32, 64, 64), strict=True)),
    SIX_A,
    *(_six(f"Mixed_6{letter}", w) for letter, w in zip("bcde", (128, 160, 160, 192), strict=True)),
)
# The last block pools by the maximum: a slip of the published network, which its weights learned.
SEVENS = (SEVEN_A, _seven("Mixed_7b", "average"), _seven("Mixed_7c", "max"))


class InceptionV3(nn.Module):
    """The network behind published FID values, up to the features.

    It differs from the usual InceptionV3 in its poolings: averages leave padding out, and the last
    block takes the maximum.

    Args:
        features: 64, 192, 768 or 2048; which features to give.
    """

    features: int = 2048

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return float32 [N, features] of images [N, 299, 299, 3] in [-1, 1]."""
        tap = TAPS[self.features]
        x = _conv(Conv("Conv2d_1a_3x3", 32, (3, 3), 2), images)
        x = _conv(Conv("Conv2d_2a_3x3", 32, (3, 3)), x, "VALID")
        x = _halved(_conv(Conv("Conv2d_2b_3x3", 64, (3, 3)), x))
        if tap != "pool1":
            x = _conv(Conv("Conv2d_3b_1x1", 80), x)
            x = _halved(_conv(Conv("Conv2d_4a_3x3", 192, (3, 3)), x, "VALID"))
        if tap in ("mixed6", "pool3"):
            for block in FIVES_AND_SIXES:
                x = _Block(block, name=block.name)(x)
        if tap == "pool3":
            for block in SEVENS:
                x = _Block(block, name=block.name)(x)
        return jnp.mean(x, (1, 2))


class _Block(nn.Module):
    """A `Mixed`; a module, so that its parameters lie under its name."""

    parts: Mixed

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        outputs = []
        for branch in self.parts.branches:
            y: Any = x
            for step in branch:
                forked = not isinstance(step, Conv)
                y = [_conv(part, y) for part in step] if forked else _conv(step, y)
            outputs += y if isinstance(y, list) else [y]
        if self.parts.pool == "halve":
            return jnp.concatenate([*outputs, _halved(x)], -1)
        pooled = _averaged(x) if self.parts.pool == "average" else _greatest(x, 1, "SAME")
        outputs.append(_conv(Conv("branch_pool", self.parts.pool_features), pooled))
        return jnp.concatenate(outputs, -1)


class _Weights(nn.Module):
    """Kernel [h, w, in, out] and bias [out] of a convolution."""

    shape: tuple[int, int, int, int]

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        init = nn.initializers.he_normal()
        kernel = self.param("kernel", init, self.shape)
        return kernel, self.param("bias", nn.initializers.zeros, self.shape[-1:])


def _conv(conv: Conv, x: jax.Array, padding: str | None = None) -> jax.Array:
    kernel, bias = _Weights((*conv.kernel, x.shape[-1], conv.features), name=conv.name)()
    if conv.kernel == (1, 1):
        # A matrix product; as a convolution it reaches half that speed on CPU.
        y = (x.reshape(-1, x.shape[-1]) @ kernel[0, 0]).reshape(*x.shape[:-1], conv.features)
    else:
        y = jax.lax.conv_general_dilated(
            x,
            kernel,
            (conv.stride, conv.stride),
            padding or ("SAME" if conv.stride == 1 else "VALID"),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
    return jax.nn.relu(y + bias)


def _greatest(x: jax.Array, stride: int, padding: str) -> jax.Array:
    return nn.max_pool(x, (3, 3), (stride, stride), padding)


def _halved(x: jax.Array) -> jax.Array:
    return _greatest(x, 2, "VALID")


def _averaged(x: jax.Array) -> jax.Array:
    return nn.avg_pool(x, (3, 3), (1, 1), "SAME", count_include_pad=False)


@dataclass(frozen=True)
class InceptionEncoder:
    """Images to Inception features.

    Args:
        variables: what `bridges.encoders.inception.load_inception` reads from a file of weights in
            pytorch-fid's layout; `random` draws some.
        features: 2048, the features of FID; or 64, 192 or 768, those of earlier layers, whose
            distances are not FID's.

    Raises:
        InputRefused: another number of features.

    Source: Szegedy et al. 2015, arXiv:1512.00567; features held to pytorch-fid 0.3.0 by 1e-4.
    """

    variables: Mapping[str, Any] = field(repr=False)
    features: int = 2048

    def __post_init__(self) -> None:
        """Refuse a number of features that the network does not have."""
        if self.features not in TAPS:
            raise InputRefused(
                f"features is {self.features!r}; Inception gives {', '.join(map(str, TAPS))}"
            )

    @classmethod
    def random(cls, key: jax.Array, features: int = 2048) -> InceptionEncoder:
        """Return an encoder with drawn weights: for trying things out, its distances mean little.

        Args:
            key: what the weights are drawn from.
            features: see the class.
        """
        images = jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), jnp.float32)
        shapes = jax.eval_shape(InceptionV3(features).init, key, images)
        # On the host: a hundred drawn kernels take XLA longer to compile than the network.
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))

        def drawn(leaf: jax.ShapeDtypeStruct) -> NDArray[np.float32]:
            if len(leaf.shape) == 1:
                return np.zeros(leaf.shape, np.float32)
            spread = np.float32(np.sqrt(2 / np.prod(leaf.shape[:-1])))
            return generator.standard_normal(leaf.shape, np.float32) * spread

        return cls(jax.tree.map(drawn, shapes), features)

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features, float32 [N, features], of bytes [N, H, W, 3]."""
        return in_chunks(partial(_features, InceptionV3(self.features), self._placed), pixels)

    @cached_property
    def _placed(self) -> Mapping[str, Any]:
        return jax.device_put(self.variables, jax.local_devices()[0])


@partial(jax.jit, static_argnums=0)
def _features(model: InceptionV3, variables: Mapping[str, Any], pixels: jax.Array) -> jax.Array:
    # pytorch-fid's order: to [0, 1], resized, to [-1, 1].
    images = pixels.astype(jnp.float32) / 255
    resized = resize_bilinear(images, SIDE, SIDE)
    return jnp.asarray(model.apply(variables, 2 * resized - 1))

"""The networks that LPIPS looks through: AlexNet, VGG-16 and SqueezeNet 1.1, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from numpy.typing import NDArray

from dew.errors import InputRefused
from dew.nn.image_batches import in_chunks

PAIRS_AT_ONCE = 8
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
EPSILON = 1e-8


class Conv(NamedTuple):
    """A convolution with bias and ReLU, numbered as in torchvision's `features`."""

    index: int
    features: int
    side: int = 3
    stride: int = 1
    padding: int = 1


class Fire(NamedTuple):
    """SqueezeNet's module: a narrow 1 x 1 convolution, then 1 x 1 and 3 x 3 side by side."""

    index: int
    narrow: int
    wide: int


class Pool(NamedTuple):
    """A maximum over windows; `reach` takes windows that lie half outside, too."""

    side: int
    edge: Literal["inside", "reach"] = "inside"


Stage = tuple[Conv | Fire | Pool, ...]


def _vgg() -> tuple[Stage, ...]:
    stages, index = [], 0
    for features, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        convs = tuple(Conv(index + 2 * number, features) for number in range(count))
        stages.append(convs if not stages else (Pool(2), *convs))
        index += 2 * count + 1
    return tuple(stages)


STAGES: dict[str, tuple[Stage, ...]] = {
    "alex": (
        (Conv(0, 64, 11, 4, 2),),
        (Pool(3), Conv(3, 192, 5, 1, 2)),
        (Pool(3), Conv(6, 384)),
        (Conv(8, 256),),
        (Conv(10, 256),),
    ),
    "vgg": _vgg(),
    "squeeze": (
        (Conv(0, 64, 3, 2, 0),),
        (Pool(3, "reach"), Fire(3, 16, 64), Fire(4, 16, 64)),
        (Pool(3, "reach"), Fire(6, 32, 128), Fire(7, 32, 128)),
        (Pool(3, "reach"), Fire(9, 48, 192)),
        (Fire(10, 48, 192),),
        (Fire(11, 64, 256),),
        (Fire(12, 64, 256),),
    ),
}
"""Name to stages; the distance compares what each stage gives."""


class PerceptualDistanceNet(nn.Module):
    """Distances of image pairs: weighted squares of the differences of unit feature vectors.

    Args:
        net: one of `STAGES`.

    Source: Zhang et al. 2018, arXiv:1801.03924, version 0.1 with its scaled inputs.
    """

    net: str

    @nn.compact
    def __call__(self, pairs: jax.Array) -> jax.Array:
        """Return float32 [N] of pairs [N, 2, H, W, 3] in [-1, 1]."""
        scaled = (pairs - jnp.asarray(SHIFT)) / jnp.asarray(SCALE)
        x = scaled.reshape(-1, *pairs.shape[2:])
        total = jnp.zeros(len(pairs))
        for number, stage in enumerate(STAGES[self.net]):
            for layer in stage:
                x = _run(layer, x)
            if 0 in x.shape:
                raise InputRefused(
                    f"images of {pairs.shape[2]} x {pairs.shape[3]} are too small for {self.net}: "
                    f"nothing is left of them at stage {number + 1}"
                )
            unit = x / jnp.sqrt(EPSILON + jnp.square(x).sum(-1, keepdims=True))
            first, second = jnp.moveaxis(unit.reshape(-1, 2, *unit.shape[1:]), 1, 0)
            head = self.param(f"head{number}", nn.initializers.uniform(1.0), unit.shape[-1:])
            total = total + (jnp.square(first - second) @ head).mean((1, 2))
        return total


class _Weights(nn.Module):
    shape: tuple[int, int, int, int]

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        kernel = self.param("kernel", nn.initializers.he_normal(), self.shape)
        return kernel, self.param("bias", nn.initializers.zeros, self.shape[-1:])


def _run(layer: Conv | Fire | Pool, x: jax.Array) -> jax.Array:
    if isinstance(layer, Pool):
        return _pooled(layer, x)
    name = f"features{layer.index}"
    if isinstance(layer, Conv):
        return _conv(name, layer, x)
    narrow = _conv(f"{name}_squeeze", Conv(0, layer.narrow, 1, 1, 0), x)
    sides = (("expand1x1", Conv(0, layer.wide, 1, 1, 0)), ("expand3x3", Conv(0, layer.wide)))
    return jnp.concatenate([_conv(f"{name}_{part}", conv, narrow) for part, conv in sides], -1)


def _conv(name: str, conv: Conv, x: jax.Array) -> jax.Array:
    kernel, bias = _Weights((conv.side, conv.side, x.shape[-1], conv.features), name=name)()
    y = jax.lax.conv_general_dilated(
        x,
        kernel,
        (conv.stride, conv.stride),
        ((conv.padding, conv.padding),) * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return jax.nn.relu(y + bias)


def _pooled(pool: Pool, x: jax.Array) -> jax.Array:
    rest = [(size - pool.side) % 2 if pool.edge == "reach" else 0 for size in x.shape[1:3]]
    edges = ((0, 0), (0, rest[0]), (0, rest[1]), (0, 0))
    reached = jnp.pad(x, edges, constant_values=-jnp.inf)
    return nn.max_pool(reached, (pool.side, pool.side), (2, 2))


@dataclass(frozen=True)
class PerceptualNetwork:
    """A trunk with its heads; `bridges.encoders.perceptual.load_perceptual` reads both.

    Args:
        net: `alex`, `vgg` or `squeeze`.
        variables: of `PerceptualDistanceNet(net)`.

    Raises:
        InputRefused: another network.
    """

    net: str
    variables: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a network that is not known."""
        if self.net not in STAGES:
            raise InputRefused(f"net is {self.net!a:.200}; expected one of {', '.join(STAGES)}")

    def __call__(self, made: NDArray[np.uint8], real: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the distance of each pair, float32 [N], of bytes [N, H, W, 3] each.

        Raises:
            InputRefused: images too small for the network.
        """
        pairs = np.stack([made, real], 1)
        net = PerceptualDistanceNet(self.net)
        return in_chunks(partial(_distances, net, self._placed), pairs, PAIRS_AT_ONCE)

    @cached_property
    def _placed(self) -> Mapping[str, Any]:
        return jax.device_put(self.variables, jax.local_devices()[0])


@partial(jax.jit, static_argnums=0)
def _distances(
    net: PerceptualDistanceNet, variables: Mapping[str, Any], pairs: jax.Array
) -> jax.Array:
    return jnp.asarray(net.apply(variables, pairs.astype(jnp.float32) / 127.5 - 1))

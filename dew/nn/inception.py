"""The Inception network of FID: images to the 2048 features that the distance compares."""

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
from dew.nn.fid_sampling import SIDE, check_mode, sampled
from dew.nn.image_batches import CHUNK, in_chunks
from dew.nn.pooling import averaged, greatest
from dew.nn.winograd import winograd

TAPS: dict[int, str] = {64: "pool1", 192: "pool2", 768: "mixed6", 2048: "pool3", 1008: "classes"}
"""Number of features to the place in the network they are read at."""
ENTRY, POOLED = "entry", "branch_pool"
CPU_CHUNK, CPU_STREAMS = 2, 2
"""What keeps a processor's cores busy: few pictures at a time, whose pixels stay in its cache, and
another chunk under way where an operation leaves a core idle."""


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

    @property
    def entry(self) -> tuple[Conv, ...]:
        """The convolutions of single pixels that read the block's input: one product of all."""
        first = (branch[0] for branch in self.branches)
        read = [step for step in first if isinstance(step, Conv) and step.kernel == (1, 1)]
        pooled = [Conv(POOLED, self.pool_features)] if self.pool == "average" else []
        return (*read, *pooled)


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
        features: 64, 192, 768 or 2048; which features to give. 1008 gives the classes' scores
            without their biases, which the inception score is of.
    """

    features: int = 2048

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Return float32 [N, features] of images [N, 299, 299, 3] in [-1, 1]."""
        tap = TAPS[self.features]
        x = _conv(Conv("Conv2d_1a_3x3", 32, (3, 3), 2), images)
        x = _conv(Conv("Conv2d_2a_3x3", 32, (3, 3)), x, "VALID")
        x = greatest(_conv(Conv("Conv2d_2b_3x3", 64, (3, 3)), x), 2)
        if tap != "pool1":
            x = _conv(Conv("Conv2d_3b_1x1", 80), x)
            x = greatest(_conv(Conv("Conv2d_4a_3x3", 192, (3, 3)), x, "VALID"), 2)
        if tap in ("mixed6", "pool3", "classes"):
            for block in FIVES_AND_SIXES:
                x = _Block(block, name=block.name)(x)
        if tap in ("pool3", "classes"):
            for block in SEVENS:
                x = _Block(block, name=block.name)(x)
        x = jnp.mean(x, (1, 2))
        return nn.Dense(self.features, use_bias=False, name="fc")(x) if tap == "classes" else x


class _Block(nn.Module):
    """A `Mixed`; a module, so that its parameters lie under its name."""

    parts: Mixed

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        entry = self.parts.entry
        kernel, bias = _Weights((1, 1, x.shape[-1], sum(c.features for c in entry)), name=ENTRY)()
        cuts = np.cumsum([conv.features for conv in entry])
        entered = jnp.split(_product(x, kernel), cuts[:-1], -1)
        offsets = jnp.split(bias, cuts[:-1])
        made: dict[str, jax.Array] = {}
        for conv, y, offset in zip(entry, entered, offsets, strict=True):
            # A mean of products is the product of the mean, of fewer channels.
            y = averaged(y) if conv.name == POOLED else y
            made[conv.name] = jax.nn.relu(y + offset)
        outputs = []
        for branch in self.parts.branches:
            y: Any = x
            for step in branch:
                if isinstance(step, Conv):
                    y = made[step.name] if step.name in made else _conv(step, y)
                else:
                    y = [_conv(part, y) for part in step]
            outputs += y if isinstance(y, list) else [y]
        if self.parts.pool == "halve":
            outputs.append(greatest(x, 2))
        elif self.parts.pool == "average":
            outputs.append(made[POOLED])
        else:
            outputs.append(_conv(Conv(POOLED, self.parts.pool_features), greatest(x)))
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
    padding = padding or ("SAME" if conv.stride == 1 else "VALID")
    if conv.kernel == (1, 1):
        return jax.nn.relu(_product(x, kernel) + bias)
    plain = partial(_plain, stride=conv.stride, padding=padding)
    # The forms that were the fastest of their shapes on CPUs; accelerators choose for themselves.
    if conv.stride == 2:
        quick = partial(_unfolded, stride=2)
    elif padding == "VALID":
        quick = winograd
    else:
        return jax.nn.relu(plain(x, kernel) + bias)
    return jax.nn.relu(jax.lax.platform_dependent(x, kernel, cpu=quick, default=plain) + bias)


def _plain(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=axes
    )


def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return a convolution of single pixels; as one, it reaches half the speed on CPUs."""
    y = x.reshape(-1, x.shape[-1]) @ kernel[0, 0]
    return y.reshape(*x.shape[:-1], kernel.shape[-1])


def _unfolded(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Return the convolution as one product of each result's pixels, side by side."""
    rows, columns, channels, features = kernel.shape
    reach = [side - size + 1 for side, size in zip(x.shape[1:3], (rows, columns), strict=True)]
    pixels = [
        x[:, i : i + reach[0] : stride, j : j + reach[1] : stride]
        for i in range(rows)
        for j in range(columns)
    ]
    return _product(
        jnp.concatenate(pixels, -1), kernel.reshape(1, 1, rows * columns * channels, features)
    )


@dataclass(frozen=True)
class InceptionEncoder:
    """Images to Inception features.

    Args:
        variables: what `bridges.encoders.inception.load_inception` reads from a file of weights in
            pytorch-fid's layout; `random` draws some.
        features: 2048, the features of FID; or 64, 192 or 768, those of earlier layers, whose
            distances are not FID's; or 1008, the classes that the inception score is of.
        mode: whose number is wanted: `pytorch-fid`, `clean-fid`, `torch-fidelity` or
            `torchmetrics`. They bring pictures to 299 x 299 in ways of their own, which
            `dew.nn.fid_sampling` describes.

    Raises:
        InputRefused: another number of features, or another mode.

    Source: Szegedy et al. 2015, arXiv:1512.00567; features held to the four tools by 1e-4.
    """

    variables: Mapping[str, Any] = field(repr=False)
    features: int = 2048
    mode: str = "pytorch-fid"

    def __post_init__(self) -> None:
        """Refuse features that the network does not have, and an unknown mode."""
        check_mode(self.mode)
        if self.features not in TAPS:
            raise InputRefused(
                f"features is {self.features!r}; Inception gives {', '.join(map(str, TAPS))}"
            )

    @classmethod
    def random(
        cls, key: jax.Array, features: int = 2048, mode: str = "pytorch-fid"
    ) -> InceptionEncoder:
        """Return an encoder with drawn weights: for trying things out, its distances mean little.

        Args:
            key: what the weights are drawn from.
            features: see the class.
            mode: see the class.
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

        return cls(jax.tree.map(drawn, shapes), features, mode)

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features, float32 [N, features], of bytes [N, H, W, 3]."""
        on_cpu = jax.local_devices()[0].platform == "cpu"
        chunk, streams = (CPU_CHUNK, CPU_STREAMS) if on_cpu else (CHUNK, 1)
        return in_chunks(self._encoded, pixels, chunk, streams=streams)

    def _encoded(self, pixels: NDArray[np.uint8]) -> jax.Array:
        return _features(InceptionV3(self.features), self._placed, sampled(pixels, self.mode))

    @cached_property
    def _placed(self) -> Mapping[str, Any]:
        return jax.device_put(self.variables, jax.local_devices()[0])


@partial(jax.jit, static_argnums=0)
def _features(model: InceptionV3, variables: Mapping[str, Any], images: jax.Array) -> jax.Array:
    return jnp.asarray(model.apply(variables, images))

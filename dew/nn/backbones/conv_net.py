"""Convolutional networks: ResNet, MobileNetV2 and ConvNeXt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dew.nn.activations import activation
from dew.nn.backbones.image_base import ImageBase, patch_rows
from dew.nn.convolution import Convolution, ConvUnit, Padding
from dew.nn.dense import Dense
from dew.nn.norms import LayerNorm

NARROWING = 4
SIDE = 64
INNER_ACTIVATION = "relu"
POOL_EDGES = ((0, 0), (1, 1), (1, 1), (0, 0))


class ConvNet(ImageBase):
    """What the networks share: images [N, C, H, W] of any size, channels last within.

    Args:
        image_channels: C.
        follow: the share of a batch's statistics in the next running ones where the model learns;
            0 keeps those as they are. See `dew.nn.convolution.BatchNorm`.
    """

    image_channels: int = 3
    follow: float = 0.0

    @property
    def channels(self) -> int:
        """C, the channels of an image."""
        return self.image_channels

    @property
    def example_size(self) -> tuple[int, int]:
        """H and W of the images of a short run."""
        return SIDE, SIDE

    def unit(self, name: str, features: int, act: str, epsilon: Any = 1e-5, **more: Any) -> Any:
        """Return a `ConvUnit`; `more` are fields of its `Convolution`."""
        convolution = {"features": features, **more}
        return ConvUnit(
            convolution, epsilon, act, self.dtype, self.param_dtype, self.follow, name=name
        )

    def finished(self, states: jax.Array, pooled: jax.Array) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names.

        Args:
            states: the last layer's, [N, H, W, D].
            pooled: their vector, [N, D].

        Returns:
            float32 `logits` [N, labels], or `last_hidden_state` [N, D, H, W] and `pooler_output`.
        """
        if self.head == "image":
            return {"logits": self.classifier()(pooled).astype(jnp.float32)}
        return {"last_hidden_state": states.transpose(0, 3, 1, 2), "pooler_output": pooled}

    def classifier(self) -> Dense:
        """Return the last map of a head, to its labels."""
        return Dense(
            (self.labels,),
            use_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="top",
        )


class ResNet(ConvNet):
    """Layers of two or three convolutions beside a shortcut, in stages that halve the sides.

    Args:
        stem_features: width behind the first convolution.
        features: width of each stage.
        depths: how many layers each has.
        bottleneck: whether a layer is narrowed to a quarter, convolved 3 x 3 and widened again;
            else it is two convolutions of 3 x 3.
        activation: a Hugging Face activation name, behind the stem and each sum; within a layer it
            is always "relu".
        halved_first: whether the first stage halves the sides too.
        halved_early: whether a bottleneck's first convolution halves them, not its second.

    Source: He et al. 2015, arXiv:1512.03385.
    """

    stem_features: int = 64
    features: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    bottleneck: bool = True
    activation: str = "relu"
    halved_first: bool = False
    halved_early: bool = False

    @nn.compact
    def outputs(self, pixel_values: jax.Array) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names, of images [N, C, H, W]."""
        x = pixel_values.transpose(0, 2, 3, 1).astype(self.dtype)
        x = self.unit("stem", self.stem_features, self.activation, size=(7, 7), stride=2)(x)
        x = nn.max_pool(jnp.pad(x, POOL_EDGES, constant_values=-jnp.inf), (3, 3), (2, 2))
        for name, features, stride in self.layers():
            x = self._layer(name, x, features, stride)
        pooled = jnp.mean(x, axis=(1, 2))
        found = self.finished(x, pooled)
        if self.head != "image":
            found["pooler_output"] = pooled[:, :, None, None]
        return found

    def layers(self) -> Iterator[tuple[str, int, int]]:
        """Yield name, width and stride of each layer."""
        for stage, (features, depth) in enumerate(zip(self.features, self.depths, strict=True)):
            for layer in range(depth):
                halves = layer == 0 and (stage > 0 or self.halved_first)
                yield f"stage{stage}_layer{layer}", features, 2 if halves else 1

    def shortcuts(self) -> dict[str, bool]:
        """Return which layers have a convolution in their shortcut."""
        found, width = {}, self.stem_features
        for name, features, stride in self.layers():
            found[name], width = width != features or stride > 1, features
        return found

    def convolutions(self, features: int, stride: int) -> list[dict[str, Any]]:
        """Return the fields of a layer's convolutions."""
        wide = (3, 3)
        if not self.bottleneck:
            return [
                {"features": features, "size": wide, "stride": stride},
                {"features": features, "size": wide},
            ]
        narrow, early = features // NARROWING, self.halved_early
        return [
            {"features": narrow, "stride": stride if early else 1},
            {"features": narrow, "size": wide, "stride": 1 if early else stride},
            {"features": features},
        ]

    def _layer(self, name: str, x: jax.Array, features: int, stride: int) -> jax.Array:
        act = activation(self.activation)
        parts = self.convolutions(features, stride)
        beside = x
        if x.shape[-1] != features or stride > 1:
            beside = self.unit(f"{name}_shortcut", features, "", stride=stride)(x)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            x = self.unit(f"{name}_conv{number}", act="" if last else INNER_ACTIVATION, **part)(x)
        return act(x + beside)


class MobileNet(ConvNet):
    """MobileNetV2: narrow layers that widen, convolve each channel for itself and narrow again.

    Args:
        stem_features: width behind the first convolution.
        stem_widens: whether the stem has one more convolution of single pixels.
        features: width of each layer, that of the stem's end first.
        widened: the inner width of each layer behind the stem.
        strides: of each of these.
        dilations: of each.
        last_features: width of the last convolution.
        activation: a Hugging Face activation name.
        epsilon: of the batch norms.
        padded_late: whether zeros are added as TensorFlow does: below and right first.

    Source: Sandler et al. 2018, arXiv:1801.04381; Chen et al. 2018, arXiv:1802.02611, for the
    head "segmentation".
    """

    stem_features: int = 32
    stem_widens: bool = False
    features: tuple[int, ...] = (16, 24)
    widened: tuple[int, ...] = (96,)
    strides: tuple[int, ...] = (2,)
    dilations: tuple[int, ...] = (1,)
    last_features: int = 1280
    activation: str = "relu6"
    epsilon: float = 1e-3
    padded_late: bool = True

    @nn.compact
    def outputs(self, pixel_values: jax.Array) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names, of images [N, C, H, W]."""
        x = pixel_values.transpose(0, 2, 3, 1).astype(self.dtype)
        x = self._wide("stem_first", x, self.stem_features, stride=2)
        x = self._layer("stem", x, self.stem_features if self.stem_widens else 0, self.features[0])
        sizes = zip(self.widened, self.features[1:], self.strides, self.dilations, strict=True)
        for number, (inner, features, stride, dilation) in enumerate(sizes):
            x = self._layer(f"layer{number}", x, inner, features, stride, dilation)
        states = self._unit("last", self.last_features)(x)
        if self.head == "segmentation":
            return {"logits": self._segmented(x)}
        return self.finished(states, jnp.mean(states, axis=(1, 2)))

    def _layer(
        self,
        name: str,
        x: jax.Array,
        inner: int,
        features: int,
        stride: int = 1,
        dilation: int = 1,
    ) -> jax.Array:
        beside = x
        if inner:
            x = self._unit(f"{name}_widen", inner)(x)
        width = x.shape[-1]
        x = self._wide(f"{name}_depth", x, width, stride, dilation=dilation, depthwise=True)
        x = self.unit(f"{name}_narrow", features, "", self.epsilon)(x)
        residual = name != "stem" and stride == 1 and beside.shape[-1] == features
        return beside + x if residual else x

    def _wide(self, name: str, x: jax.Array, features: int, stride: int, **more: Any) -> jax.Array:
        padding = None
        if self.padded_late:
            padding = late_padding(x.shape[1:3], stride, more.get("dilation", 1))
        unit = self._unit(name, features, size=(3, 3), stride=stride, padding=padding, **more)
        return unit(x)

    def _unit(self, name: str, features: int, **more: Any) -> Any:
        return self.unit(name, features, self.activation, self.epsilon, **more)

    def _segmented(self, x: jax.Array) -> jax.Array:
        """Return float32 logits [N, labels, H, W]: each place beside the mean of all."""
        mean = jnp.mean(x, axis=(1, 2), keepdims=True)
        mean = self.unit("head_pool", HEAD_FEATURES, "relu")(mean)
        places = self.unit("head_places", HEAD_FEATURES, "relu")(x)
        both = jnp.concatenate([jnp.broadcast_to(mean, places.shape), places], axis=-1)
        joint = self.unit("head_joint", HEAD_FEATURES, "relu")(both)
        logits = self.unit("head_labels", self.labels, "", None, use_bias=True)(joint)
        return logits.astype(jnp.float32).transpose(0, 3, 1, 2)


HEAD_FEATURES = 256


def late_padding(sides: tuple[int, ...], stride: int, dilation: int) -> Padding:
    """Return the zeros that TensorFlow adds for a kernel of 3 x 3, the odd one at the end."""
    found = []
    for side in sides:
        missing = max(3 - (side % stride or stride), 0)
        first = missing // 2
        found.append((first * dilation, (missing - first) * dilation))
    return found[0], found[1]


class ConvNext(ConvNet):
    """ConvNeXt: layers that look 7 x 7 pixels around each channel, then widen and narrow.

    Args:
        patch_size: height and width of the pixels that one place of the first stage stands for.
        features: width of each stage.
        depths: how many layers each has.
        activation: a Hugging Face activation name.
        norm_epsilon: of the last norm.
        scaled: whether what a layer adds is multiplied by a learned vector.

    Source: Liu et al. 2022, arXiv:2201.03545.
    """

    patch_size: tuple[int, int] = (4, 4)
    features: tuple[int, ...] = (96, 192, 384, 768)
    depths: tuple[int, ...] = (3, 3, 9, 3)
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    scaled: bool = True

    @property
    def example_size(self) -> tuple[int, int]:
        """H and W of the images of a short run."""
        places = 2 ** len(self.features)
        return self.patch_size[0] * places, self.patch_size[1] * places

    @nn.compact
    def outputs(self, pixel_values: jax.Array) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names, of images [N, C, H, W]."""
        x = patch_rows(pixel_values.astype(self.dtype), self.patch_size)
        x = self._dense("patches", self.features[0], inputs=3)(x)
        x = self._norm("patch_norm")(x)
        for stage, (features, depth) in enumerate(zip(self.features, self.depths, strict=True)):
            if stage:
                x = self._norm(f"stage{stage}_norm")(x)
                quarters = patch_rows(x.transpose(0, 3, 1, 2), (2, 2))
                x = self._dense(f"stage{stage}_halve", features, inputs=3)(quarters)
            for layer in range(depth):
                x = self._layer(f"stage{stage}_layer{layer}", x)
        pooled = LayerNorm(self.norm_epsilon, self.param_dtype, name="final_norm")(
            jnp.mean(x, axis=(1, 2))
        )
        return self.finished(x, pooled)

    def _layer(self, name: str, x: jax.Array) -> jax.Array:
        width, beside = x.shape[-1], x
        x = Convolution(
            width,
            (7, 7),
            depthwise=True,
            use_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name=f"{name}_depth",
        )(x)
        x = self._norm(f"{name}_norm")(x)
        x = activation(self.activation)(self._dense(f"{name}_widen", NARROWING * width)(x))
        x = self._dense(f"{name}_narrow", width)(x)
        if self.scaled:
            ones = nn.initializers.ones
            scale = self.param(f"{name}_scale", ones, (width,), self.param_dtype)
            x = x * scale.astype(x.dtype)
        return beside + x

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(INNER_EPSILON, self.param_dtype, name=name)

    def _dense(self, name: str, features: int, *, inputs: int = 1) -> Dense:
        return Dense(
            (features,),
            inputs=inputs,
            use_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name=name,
        )


INNER_EPSILON = 1e-6

"""The transformer that reads a sound's own samples, and names a letter for each of its places."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dew.errors import InputRefused
from dew.nn.activations import activation
from dew.nn.backbones.encoder_block import (
    EncoderBlock,
    block_axes,
    block_sizes,
    each_leaf,
    encoder_stack,
    linear_axes,
    norm_axes,
)
from dew.nn.backbones.speech_to_text import SPEECH_TASKS
from dew.nn.block import BlockSpec
from dew.nn.dense import Dense
from dew.nn.norms import LayerNorm
from dew.nn.time_convolution import PlaceConvolution, TimeConvolution

CONVOLUTION_EPSILON = 1e-5
EXAMPLE_PLACES = 4


class ChannelNorm(nn.Module):
    """Each channel of [B, T, C] to mean 0 and variance 1 over time, times a scale and plus a bias.

    Source: Wu and He 2018, arXiv:1803.08494, with one channel in each group.
    """

    epsilon: float
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x`, padding included."""
        shape = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, shape, self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, shape, self.param_dtype)
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=1, keepdims=True)
        scaled = centred * jax.lax.rsqrt(variance + self.epsilon) * scale.astype(jnp.float32)
        return (scaled + bias.astype(jnp.float32)).astype(x.dtype)


class WaveformEncoder(nn.Module):
    """Maps samples [B, S] to logits [B, T, V], or to the states of the T places.

    Args:
        emb_features: D, width of the residual stream.
        num_layers, num_heads, mlp_features: depth, heads and inner width of the MLP.
        widths, sizes, strides: of each convolution: features, places of its kernel, and places
            from one of its results to the next.
        convolution_norm: "channel" norms the first convolution's channels over time, "layer" all
            channels of each place behind every convolution.
        convolution_bias: whether the convolutions carry one.
        convolution_activation: a Hugging Face activation name, behind each of them.
        place_size, place_groups: of the convolution that tells the places apart.
        norm_first: whether a layer's norms stand before its branches and one more at the end; else
            they stand behind the sums, and the one more before the layers.
        norm_epsilon: added to the variance of the norms.
        activation: a Hugging Face activation name, within the layers.
        masked: whether there is a vector that stands for masked places. Only training by masking
            reads it.
        head: "speech", or "" for the states.
        labels: V, the letters and the blank.
        dtype: what activations are computed in; `param_dtype` is what parameters are stored in.
        attention_impl: "auto", "xla" or "cudnn".
        remat: recompute each layer in the backward pass instead of keeping its activations.
        adapter_scale: factor of the low-rank path where the `lora` collection is given.

    Source: Baevski et al. 2020, arXiv:2006.11477.
    """

    input_names: ClassVar[tuple[str, ...]] = ("input_values", "attention_mask")
    counts_real_tokens: ClassVar[bool] = False
    position_limit: ClassVar[int | None] = None

    emb_features: int
    num_layers: int
    num_heads: int
    mlp_features: int
    widths: tuple[int, ...] = (512,) * 7
    sizes: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    convolution_norm: str = "channel"
    convolution_bias: bool = False
    convolution_activation: str = "gelu"
    place_size: int = 128
    place_groups: int = 16
    norm_first: bool = False
    norm_epsilon: float = 1e-5
    activation: str = "gelu"
    masked: bool = True
    head: str = "speech"
    labels: int = 32
    dtype: str = "float32"
    param_dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False
    adapter_scale: float = 1.0

    def setup(self) -> None:
        """Declare the convolutions, the stack of layers and the head."""
        self.convolutions = [
            TimeConvolution(
                width,
                size,
                stride,
                use_bias=self.convolution_bias,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
            )
            for width, size, stride in zip(self.widths, self.sizes, self.strides, strict=True)
        ]
        kind = ChannelNorm if self.convolution_norm == "channel" else LayerNorm
        self.convolution_norms = [
            kind(CONVOLUTION_EPSILON, self.param_dtype) for _ in range(self.normed)
        ]
        self.read_norm = LayerNorm(self.norm_epsilon, self.param_dtype)
        self.read = self._map(self.emb_features)
        self.places = PlaceConvolution(
            self.emb_features, self.place_size, self.place_groups, self.dtype, self.param_dtype
        )
        self.layers = encoder_stack(
            EncoderBlock, (self.block_spec,), self.num_layers, shared=2, remat=self.remat
        )
        self.norm = LayerNorm(self.norm_epsilon, self.param_dtype)
        if self.masked:
            shape = (self.emb_features,)
            self.masked_place = self.param(
                "masked_embed", nn.initializers.uniform(1.0), shape, self.param_dtype
            )
        if self.head:
            self.top = self._map(self.labels)

    def _map(self, features: int) -> Dense:
        return Dense(
            (features,),
            use_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            adapter_scale=self.adapter_scale,
        )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the pipeline's tasks that the model is fit for."""
        return (SPEECH_TASKS[self.head],)

    @property
    def normed(self) -> int:
        """How many convolutions have a norm behind them."""
        return 1 if self.convolution_norm == "channel" else len(self.widths)

    @property
    def block_spec(self) -> BlockSpec:
        """The sizes of one layer."""
        return BlockSpec(
            emb_features=self.emb_features,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_features=self.emb_features // self.num_heads,
            mlp_features=self.mlp_features,
            norm="layer",
            norm_epsilon=self.norm_epsilon,
            mlp="plain",
            activation=self.activation,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            attention_impl=self.attention_impl,
            adapter_scale=self.adapter_scale,
            norm_places="before" if self.norm_first else "residual",
        )

    def places_of(self, samples: Any) -> Any:
        """Return how many places so many samples are, numbers or arrays of them."""
        for size, stride in zip(self.sizes, self.strides, strict=True):
            samples = (samples - size) // stride + 1
        return samples

    @property
    def fewest_samples(self) -> int:
        """How many samples one place looks at."""
        samples = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            samples = (samples - 1) * stride + size
        return samples

    def outputs(
        self, input_values: jax.Array, attention_mask: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Return the outputs by Hugging Face's names.

        Args:
            input_values: samples [B, S].
            attention_mask: [B, S], 1 where there is sound and 0 in the padding behind it. A place
                counts where all its samples are sound.

        Returns:
            float32 `logits` [B, T, V]; without a head `last_hidden_state` [B, T, D] and
            `extract_features` [B, T, C], what the convolutions made of the sound.
        """
        fewest = self.fewest_samples
        if input_values.shape[1] < fewest:
            raise InputRefused(
                f"input_values has shape {tuple(input_values.shape)}; the model needs at least "
                f"{fewest} samples. Pad the sound with zeros"
            )
        features = self.read_norm(self.convolved(input_values))
        mask = None
        if attention_mask is not None:
            lengths = self.places_of(jnp.sum(attention_mask, axis=1))
            mask = jnp.arange(features.shape[1]) < lengths[:, None]
        hidden = self.encoded(self.read(features), mask)
        if self.head:
            return {"logits": self.top(hidden).astype(jnp.float32)}
        return {"last_hidden_state": hidden, "extract_features": features}

    def convolved(self, samples: jax.Array) -> jax.Array:
        """Return [B, T, C] of samples [B, S]."""
        act = activation(self.convolution_activation)
        x = samples[:, :, None].astype(self.dtype)
        for number, convolution in enumerate(self.convolutions):
            x = convolution(x)
            if number < self.normed:
                x = self.convolution_norms[number](x)
            x = act(x)
        return x

    def encoded(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Return the last states [B, T, D] of the places [B, T, D], real where `mask` [B, T] is."""
        length = x.shape[1]
        seen = jnp.ones((1, 1, length, length), bool)
        if mask is not None:
            seen = seen & mask[:, None, None, :]
            x = jnp.where(mask[:, :, None], x, jnp.zeros((), x.dtype))
        x = x + activation(self.convolution_activation)(self.places(x))
        if not self.norm_first:
            x = self.norm(x)
        x, _ = self.layers(x, seen, None)
        return self.norm(x) if self.norm_first else x

    def example_inputs(self) -> dict[str, np.ndarray]:
        """Return inputs for a short run that says whether two models are the same."""
        samples = self.fewest_samples + (EXAMPLE_PLACES - 1) * int(np.prod(self.strides))
        drawn = np.random.default_rng(0).standard_normal((1, samples))
        return {"input_values": drawn.astype(np.float32)}

    def parameter_shapes(self) -> dict[str, Any]:
        """Return the shapes of `init`'s parameters, without tracing it."""
        self._check()
        sizes = {
            **block_sizes(self.block_spec, self.num_layers),
            "labels": self.labels,
            "place_taps": self.place_size,
            "group": self.emb_features // self.place_groups,
            "sample": 1,
        }
        for number, (width, size) in enumerate(zip(self.widths, self.sizes, strict=True)):
            sizes |= {f"conv{number}": width, f"taps{number}": size}
        return each_leaf(
            self.parameter_axes(),
            lambda axes: jax.ShapeDtypeStruct(
                tuple(sizes[axis] for axis in axes), self.param_dtype
            ),
        )

    def parameter_axes(self) -> dict[str, Any]:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        last = f"conv{len(self.widths) - 1}"
        axes: dict[str, Any] = {
            "read_norm": norm_axes("layer", last),
            "read": linear_axes((last,), ("embed",), True),
            "places": {
                "kernel": ("place_taps", "group", "embed"),
                "scale": ("place_taps",),
                "bias": ("embed",),
            },
            "layers": each_leaf(block_axes(self.block_spec), lambda names: ("layers", *names)),
            "norm": norm_axes("layer"),
        }
        for number in range(len(self.widths)):
            before = f"conv{number - 1}" if number else "sample"
            bias = {"bias": (f"conv{number}",)} if self.convolution_bias else {}
            kernel = (f"taps{number}", before, f"conv{number}")
            axes[f"convolutions_{number}"] = {"kernel": kernel, **bias}
            if number < self.normed:
                axes[f"convolution_norms_{number}"] = norm_axes("layer", f"conv{number}")
        if self.masked:
            axes["masked_embed"] = ("norm",)
        if self.head:
            axes["top"] = linear_axes(("embed",), ("labels",), True)
        return axes

    def _check(self) -> None:
        for name, parts in (("num_heads", self.num_heads), ("place_groups", self.place_groups)):
            if self.emb_features % parts:
                raise InputRefused(
                    f"emb_features {self.emb_features} is not divisible by {name} {parts}"
                )
        if self.convolution_norm not in ("channel", "layer"):
            raise InputRefused(
                f"convolution_norm is {self.convolution_norm!a:.200}; expected channel or layer"
            )

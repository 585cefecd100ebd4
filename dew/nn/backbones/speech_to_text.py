"""The transformer that hears a window of sound as a spectrogram and writes what was said."""

from __future__ import annotations

from typing import ClassVar

import jax
import numpy as np

from dew.errors import InputRefused
from dew.nn.activations import gelu_erf
from dew.nn.backbones.causal_transformer import example_ids
from dew.nn.backbones.encoder_decoder import EXAMPLE, EncoderDecoderBase
from dew.nn.time_convolution import TimeConvolution

STRIDE = 2
CONVOLVED = 3
SPEECH_TASKS = {"speech": "automatic-speech-recognition", "": "feature-extraction"}
"""The kinds of heads, "" for none, to the pipeline's task that each does."""


class SpeechToText(EncoderDecoderBase):
    """Maps spectrograms [B, M, 2 P] and a text's ids [B, L] to next-token logits [B, L, V].

    Args:
        bands: M, of the mel scale.
        source_positions: P, places of the encoder: every spectrogram has 2 P frames.
        head: "speech", or "" for the decoder's states instead of logits.

    The other fields are those of `EncoderDecoderBase`; `max_seq_len` is the text's.

    Source: Radford et al. 2022, arXiv:2212.04356.
    """

    input_names: ClassVar[tuple[str, ...]] = (
        "input_features",
        "decoder_input_ids",
        "decoder_attention_mask",
    )
    required_inputs: ClassVar[tuple[str, ...]] = ("input_features", "decoder_input_ids")

    bands: int = 80
    source_positions: int = 1500
    head: str = "speech"

    def setup(self) -> None:
        """Declare the convolutions before the encoder, and all that the base has."""
        super().setup()
        first, second = (
            TimeConvolution(
                self.emb_features,
                CONVOLVED,
                stride,
                padding=1,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
            )
            for stride in (1, STRIDE)
        )
        self.front_first, self.front_second = first, second

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the pipeline's tasks that the model is fit for."""
        return (SPEECH_TASKS[self.head],)

    @property
    def has_own_table(self) -> bool:
        """Whether the logits come of a table that is not the embedding's."""
        return bool(self.head) and not self.tied_head

    @property
    def frames(self) -> int:
        """How many frames a spectrogram has."""
        return STRIDE * self.source_positions

    def position_rows(self, side: str) -> int:
        """Return the rows of the positions of the "encoder" or the "decoder"."""
        return self.source_positions if side == "encoder" else self.max_seq_len

    def outputs(
        self,
        input_features: jax.Array,
        decoder_input_ids: jax.Array,
        decoder_attention_mask: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return `logits` [B, L, V] and `encoder_last_hidden_state` [B, P, D].

        Without a head `last_hidden_state` [B, L, D] stands in the place of the logits.
        """
        memory = self.encode(input_features)
        hidden = self.decoded(decoder_input_ids, decoder_attention_mask, memory, None)
        found = {"logits": self.logits(hidden)} if self.head else {"last_hidden_state": hidden}
        return {**found, "encoder_last_hidden_state": memory}

    def encode(self, features: jax.Array) -> jax.Array:
        """Return the encoder's states [B, P, D] of spectrograms [B, M, 2 P]."""
        if features.shape[1:] != (self.bands, self.frames):
            raise InputRefused(
                f"input_features has shape {tuple(features.shape)}; the model reads {self.bands} "
                f"mel bands and {self.frames} frames: cut or pad the sound to them, as the "
                "checkpoint's processor does"
            )
        x = gelu_erf(self.front_first(features.transpose(0, 2, 1)))
        x = gelu_erf(self.front_second(x))
        return self.encoded(x + self.encoder_position_embed().astype(x.dtype), None)

    def example_inputs(self) -> dict[str, np.ndarray]:
        """Return inputs for a short run that says whether two models are the same."""
        drawn = np.random.default_rng(0).standard_normal((1, self.bands, self.frames))
        ids = example_ids(self.vocab_size, min(EXAMPLE, self.max_seq_len))
        return {"input_features": drawn.astype(np.float32), "decoder_input_ids": ids}

    def axis_sizes(self, side: str) -> dict[str, int]:
        """Return the length of each axis of a parameter of the "encoder" or the "decoder"."""
        return {**super().axis_sizes(side), "taps": CONVOLVED, "bands": self.bands}

    def parameter_axes(self) -> dict:
        """Return the name of each axis of each parameter: what a layout's rules speak of."""
        bias = {"bias": ("embed",)}
        return {
            **super().parameter_axes(),
            "front_first": {"kernel": ("taps", "bands", "embed"), **bias},
            "front_second": {"kernel": ("taps", "table_features", "embed"), **bias},
        }

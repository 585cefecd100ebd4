"""How one kind of model reads prompts and makes the next logits, for the decode loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.cache import bucket, left_padded, prefill, read_pieces, room
from dew.inference.generation import GenerationOptions
from dew.inference.prefixes import keep, kept_prefix
from dew.inference.step import decode_step, decode_steps
from dew.inference.weights import DecodeWeights, decode_weights


class Filled(NamedTuple):
    """What the prompts leave behind.

    `logits` [N, V] are the next token's; `layers` is the engine's own cache; `visible` is bool
    [N, S], the slots that a row may look at; the next token goes to `slot`; `lengths` int32 [N]
    count each row's real tokens. `keep` is told of the cache when the texts have ended.
    """

    logits: jax.Array
    layers: Any
    visible: np.ndarray
    slot: int
    lengths: np.ndarray
    keep: Callable[[Any], None] | None = None


class Engine(Protocol):
    """How one kind of model reads prompts and makes the next logits; hashable.

    A chunk is compiled once for equal engines and equal shapes.
    """

    def fill(
        self, bundle: Bundle, prompts: np.ndarray, real: np.ndarray, new: int, source: Any
    ) -> Filled:
        """Read prompts [N, P], real where `real` is 1, with room for `new` more tokens."""
        ...

    def weights(self, bundle: Bundle) -> Any:
        """Return what `step` reads, a tree of arrays."""
        ...

    def renewal(self, longest: int) -> int | None:
        """Return after how many new tokens the cache is filled anew, None for never.

        Args:
            longest: real tokens of the longest prompt.
        """
        ...

    def reordered(self, layers: Any, index: jax.Array) -> Any:
        """Return the cache with its rows in the order of `index` [N]; beams ask for it."""
        ...

    def step(
        self,
        weights: Any,
        layers: Any,
        *,
        tokens: jax.Array,
        positions: jax.Array,
        visible: jax.Array,
        slot: jax.Array,
    ) -> tuple[jax.Array, Any]:
        """Return the logits [N, V] that follow one more token a row, and the cache with it."""
        ...


class NativeEngine(NamedTuple):
    """The engine of a `CausalTransformer`; `stored` is how decoding is to store its weights."""

    model: Any
    stored: str | None = None

    def fill(
        self, bundle: Bundle, prompts: np.ndarray, real: np.ndarray, new: int, source: Any = None
    ) -> Filled:
        """Read prompts piece by piece, moved to the right end of the longest; no `source`.

        What a single row begins with as the row before did is not read again. A model whose
        rotary angles depend on a text's length reads prompts whole.
        """
        lengths = real.sum(axis=1).astype(np.int32)
        longest = int(lengths.max())
        if self.model.rope.renewed:
            return self._whole(bundle, prompts, real, new, lengths)
        slots, piece = room(longest, new)
        tokens, mask = left_padded(prompts, real, longest)
        beyond = ((0, 0), (0, slots - longest))
        tokens, visible = np.pad(tokens, beyond), np.pad(mask, beyond)
        weights, layers, start, kept = self.weights(bundle), None, 0, None
        if len(prompts) == 1:
            way, row = (self.stored, slots), tokens[0, :longest]
            layers, start = kept_prefix(bundle, way, row, piece)
            kept = partial(keep, bundle, way, row)
        logits, layers = read_pieces(
            self.model, piece, weights, layers, tokens, visible, np.int32(start), np.int32(longest)
        )
        return Filled(logits, layers, visible, longest, lengths, kept)

    def _whole(
        self, bundle: Bundle, prompts: np.ndarray, real: np.ndarray, new: int, lengths: np.ndarray
    ) -> Filled:
        width = bucket(int(lengths.max()))
        tokens, mask = left_padded(prompts, real, width)
        slots = bucket(width + new)
        filled = prefill(self.model, bundle.variables, tokens, mask, slots)
        visible = np.pad(mask, ((0, 0), (0, slots - width)))
        return Filled(filled.logits, filled.layers, visible, width, lengths)

    def weights(self, bundle: Bundle) -> DecodeWeights:
        """Return the bundle's weights, one array a matrix of each layer."""
        return decode_weights(bundle, self.stored)

    def renewal(self, longest: int) -> int | None:
        """Return when the text has just grown past the context that its keys were turned for."""
        if not self.model.rope.renewed:
            return None
        original = self.model.rope.original_max_position_embeddings or self.model.max_seq_len
        return original + 1 - longest if original >= longest else None

    def reordered(self, layers: Any, index: jax.Array) -> Any:
        """Return the cache, whose first axis is of rows and of groups within them."""

        def ordered(leaf: jax.Array) -> jax.Array:
            rows = leaf.reshape(len(index), -1, *leaf.shape[1:])
            return rows[index].reshape(leaf.shape)

        return jax.tree.map(ordered, layers)

    def step(self, weights: DecodeWeights, layers: Any, **row: Any) -> tuple[jax.Array, Any]:
        """Return `decode_step`'s logits and cache."""
        return decode_step(self.model, weights, layers, **row)

    def steps(self, weights: DecodeWeights, layers: Any, **rows: Any) -> tuple[jax.Array, Any]:
        """Return `decode_steps`'s logits and cache."""
        return decode_steps(self.model, weights, layers, **rows)


def engine_of(bundle: Bundle, settings: GenerationOptions) -> Engine:
    """Return the engine that the model brings, or the native one.

    Raises:
        InputRefused: weights are to be stored narrow, and the engine is not the native one.
    """
    own = getattr(bundle.model, "engine", None)
    if settings.weights is not None and (own or "text-generation" not in bundle.tasks):
        raise InputRefused(
            f"weights is {shown(settings.weights)}: {bundle.family or 'this model'} decodes with "
            "its own weights alone; leave weights out"
        )
    if own is None and "text2text-generation" in bundle.tasks:
        from dew.inference.answering import AnsweringEngine

        return AnsweringEngine(bundle.model)
    if own is None and "automatic-speech-recognition" in bundle.tasks:
        from dew.inference.transcription import HearingEngine

        return HearingEngine(bundle.model)
    return own or NativeEngine(bundle.model, settings.weights)

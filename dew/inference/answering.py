"""Generation by an encoder and a decoder: the encoder reads the prompts, the decoder answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused, shown
from dew.inference.bundle import Bundle
from dew.inference.cache import bucket
from dew.inference.decode import Filled, Forced, Streamer, continued
from dew.inference.generation import GenerationOptions, generation_options
from dew.nn.backbones.cross_block import Kept

FORCED = ("forced_bos_token_id", "forced_eos_token_id")
START = "decoder_start_token_id"


class AnsweringEngine(NamedTuple):
    """The engine of an `EncoderDecoder`: its layers keep what they read, and their own tokens."""

    model: Any

    def fill(
        self, bundle: Bundle, prompts: np.ndarray, real: np.ndarray, new: int, source: Any
    ) -> Filled:
        """Read `source` (ids and mask [N, P]) and the answers' beginnings [N, W]."""
        del real
        limit = self.model.position_limit
        memory, mask = self.memory(bundle, source)
        width = prompts.shape[1]
        slots = bucket(width + new) if limit is None else min(bucket(width + new), limit)
        tokens = jnp.asarray(prompts, jnp.int32)
        logits, kept = _begun(self.model, bundle.variables, memory, mask, tokens, slots)
        visible = np.zeros((len(prompts), slots), np.int32)
        visible[:, :width] = 1
        layers = {"kept": kept, "mask": jnp.asarray(mask)}
        return Filled(logits, layers, visible, width, np.full(len(prompts), width, np.int32))

    def memory(self, bundle: Bundle, source: Any) -> tuple[Any, np.ndarray]:
        """Return the encoder's states [N, P, D] of `source`, and their mask [N, P]."""
        ids, mask = source_padded(source, self.model.position_limit)
        return encoded(self.model, bundle.variables, ids, mask), mask

    def weights(self, bundle: Bundle) -> Any:
        """Return the bundle's variables."""
        return bundle.variables

    def renewal(self, longest: int) -> int | None:
        """Return None: places are absolute or distances, which a growing text leaves alone."""
        return None

    def reordered(self, layers: Any, index: jax.Array) -> Any:
        """Return the cache with its rows in the order of `index` [N]."""
        kept = jax.tree.map(lambda leaf: leaf[:, index], layers["kept"])
        return {"kept": kept, "mask": layers["mask"][index]}

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
        del positions
        mask = layers["mask"]
        logits, kept = _decoded(
            self.model,
            weights,
            tokens[:, None],
            visible[:, None, None, :],
            jnp.zeros((*mask.shape, 0)),
            mask,
            layers["kept"],
            slot,
        )
        return logits, {"kept": kept, "mask": mask}


@partial(jax.jit, static_argnums=0)
def encoded(model: Any, variables: Any, *source: Any) -> jax.Array:
    """Return the encoder's states [N, P, D] of what its `encode` takes."""
    return model.apply(variables, *source, method="encode")


@partial(jax.jit, static_argnums=(0, 5))
def _begun(model: Any, variables: Any, memory: Any, mask: Any, tokens: jax.Array, slots: int):
    """Return logits [N, V] after the beginnings [N, W], and each layer's cache of `slots`."""
    rows, length = tokens.shape
    seen = jnp.tril(jnp.ones((length, slots), bool))[None, None]
    empty = model.empty(rows, slots)
    return _decoded(model, variables, tokens, seen, memory, mask, empty, jnp.int32(0))


def _decoded(model: Any, variables: Any, *arguments: Any) -> tuple[jax.Array, Kept]:
    hidden, kept = model.apply(variables, *arguments, method="decode")
    return model.apply(variables, hidden[:, -1], method="logits"), kept


def answered(
    bundle: Bundle,
    prompts: np.ndarray,
    real: np.ndarray,
    *,
    streamer: Streamer | None = None,
    **options: Any,
) -> np.ndarray:
    """Answer checked prompts; see `Bundle.generate`.

    Args:
        bundle: of a model whose encoder reads the prompts.
        prompts: int32 [N, P].
        real: [N, P], 1 where an id is real.
        streamer: told of the beginnings and of each step's ids as they come.
        **options: the fields of `GenerationOptions`; `decoder_start_token_id`,
            `forced_bos_token_id` and `forced_eos_token_id`.

    Returns:
        int32 [N * num_return_sequences, 1 + T], beginning with the start id.
    """
    settings, forced = forced_options(bundle, options)
    prompts, real = (np.repeat(part, settings.copies, axis=0) for part in (prompts, real))
    starts = np.full((len(prompts), 1), start_id(bundle, options), np.int32)
    return continued(
        bundle,
        settings,
        starts,
        np.ones_like(starts),
        streamer=streamer,
        source=(prompts, real),
        forced=forced,
    )[0]


def forced_options(bundle: Bundle, options: Mapping[str, Any]) -> tuple[GenerationOptions, Forced]:
    """Return the options of a call, and the ids that stand first and last whatever comes.

    Raises:
        InputRefused: as `generation_options`; a forced id outside the vocabulary.
    """
    stored = dict(bundle.generation_config)
    ids = [options.get(name, stored.get(name, bundle.config.get(name))) for name in FORCED]
    for name, value in zip(FORCED, ids, strict=True):
        _in_vocabulary(bundle, name, value)
    given = {name: value for name, value in options.items() if name not in FORCED}
    kept = {name: value for name, value in stored.items() if name not in FORCED}
    settings = generation_options(bundle.replace(generation_config=kept), given)
    first, last = (min(value) if isinstance(value, list | tuple) else value for value in ids)
    return settings, Forced(first, last)


def start_id(bundle: Bundle, options: Mapping[str, Any]) -> int:
    """Return the id that an answer begins with.

    Raises:
        InputRefused: nobody names one, or it is outside the vocabulary.
    """
    places = (options, bundle.generation_config, bundle.config)
    found = [place.get(key) for key in (START, "bos_token_id") for place in places]
    start = next((value for value in found if value is not None), None)
    if start is None:
        raise InputRefused(f"the checkpoint names no {START}; pass one")
    _in_vocabulary(bundle, START, start)
    return int(start)


def source_padded(source: Any, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return an encoder's ids and mask [N, P] padded on the right to a width shared by many.

    Raises:
        InputRefused: there is no source.
    """
    if source is None:
        raise InputRefused(
            "an encoder reads this model's prompts: call the bundle's generate with input_ids"
        )
    ids, mask = source
    width = ids.shape[1] if limit is not None and ids.shape[1] > limit else bucket(ids.shape[1])
    width = width if limit is None else max(min(width, limit), ids.shape[1])
    room = ((0, 0), (0, width - ids.shape[1]))
    return np.pad(ids.astype(np.int32), room), np.pad(mask.astype(np.int32), room)


def _in_vocabulary(bundle: Bundle, name: str, value: Any) -> None:
    size = bundle.model.vocab_size
    for part in value if isinstance(value, list | tuple) else (value,):
        known = isinstance(part, int) and not isinstance(part, bool) and 0 <= part < size
        if part is not None and not known:
            raise InputRefused(f"{name} is {shown(part)}, outside the vocabulary [0, {size})")

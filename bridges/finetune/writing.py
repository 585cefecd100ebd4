"""What a model writes in evaluation: the likeliest ids, found within the compiled pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused
from dew.inference.answering import forced_options
from dew.inference.bundle import Bundle
from dew.objectives.outputs import Writer

Batch = Mapping[str, jax.Array]
SOURCES = ("input_ids", "attention_mask", "input_features", "input_values")


@dataclass(frozen=True)
class Rules:
    """Which id comes next, given logits: those of transformers' greedy `generate`.

    Args:
        ends: ids that end a row.
        padding: what follows an end.
        minimum: new ids before an end may come.
        banned, banned_first: ids that are never chosen, and not chosen first.
        first, last: ids that stand there whatever the logits say, or None.
        limit: new ids of a row, at most.
    """

    ends: tuple[int, ...]
    padding: int
    minimum: int
    banned: tuple[int, ...]
    banned_first: tuple[int, ...]
    first: int | None
    last: int | None
    limit: int

    def chosen(self, logits: jax.Array, count: jax.Array, finished: jax.Array) -> jax.Array:
        """Return each row's next id, int32 [N], of logits [N, V] after `count` new ids."""
        size = logits.shape[1]
        never = _among(self.banned, size)
        early = _among(self.ends, size) & (count < self.minimum)
        begun = _among(self.banned_first, size) & (count == int(self.first is not None))
        found = jnp.argmax(jnp.where(never | early | begun, -jnp.inf, logits), axis=-1)
        if self.first is not None:
            found = jnp.where(count == 0, self.first, found)
        if self.last is not None:
            found = jnp.where(count == self.limit - 1, self.last, found)
        return jnp.where(finished, self.padding, found).astype(jnp.int32)

    def ended(self, tokens: jax.Array) -> jax.Array:
        """Return which of the ids [N] end their row."""
        ends = jnp.asarray(self.ends or (-1,), jnp.int32)
        return jnp.any(tokens[:, None] == ends, axis=1)


def greedy_writer(
    bundle: Bundle, *, prompt: tuple[int, ...], longest: int, options: Mapping[str, Any]
) -> Writer:
    """Return what writes the likeliest ids after a prompt, as `bundle.generate` does.

    Args:
        bundle: of a model with an encoder and a decoder, native or traced.
        prompt: ids that every text begins with.
        longest: ids of a text with its prompt, at most; the model's own limit is kept.
        options: further ones of `generate`.

    Raises:
        InputRefused: options of `generate` that are refused; a prompt as long as the text.
    """
    settings, forced = forced_options(bundle, {**options, "num_beams": 1, "do_sample": False})
    limit = getattr(bundle.model, "position_limit", None) or longest
    room = min(longest, limit) - len(prompt)
    if room < 1:
        raise InputRefused(
            f"generation_max_length is {longest}: the prompt alone has {len(prompt)} tokens"
        )
    rules = Rules(
        ends=settings.eos_token_id,
        padding=settings.pad_token_id,
        minimum=settings.minimum(len(prompt)),
        banned=(*settings.suppress_tokens, *(w[0] for w in settings.bad_words if len(w) == 1)),
        banned_first=settings.begin_suppress_tokens,
        # Behind a prompt of several ids it would not stand first.
        first=forced.first if len(prompt) == 1 else None,
        last=forced.last,
        limit=room,
    )
    steps = _kept_steps if hasattr(bundle.model, "empty") else _whole_steps

    def write(variables: Any, batch: Batch) -> jax.Array:
        count = len(next(iter(batch.values())))
        prompts = jnp.broadcast_to(jnp.asarray(prompt, jnp.int32), (count, len(prompt)))
        state, step = steps(bundle, variables, batch, prompts, room)
        return _written(rules, state, step, count)

    return write


Step = Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Any]]
"""`step(state, tokens [N], count)` reads one more id a row and gives logits [N, V] and a state."""


def _written(rules: Rules, begun: tuple[jax.Array, Any], step: Step, rows: int) -> jax.Array:
    """Return int32 [N, limit] ids from the logits behind the prompt on."""
    logits, state = begun
    count = jnp.int32(0)
    tokens = rules.chosen(logits, count, jnp.zeros(rows, bool))
    ids = jnp.full((rows, rules.limit), rules.padding, jnp.int32).at[:, 0].set(tokens)

    def going(carry: Any) -> jax.Array:
        _, _, finished, _, count = carry
        return (count < rules.limit) & ~jnp.all(finished)

    def advance(carry: Any) -> Any:
        state, tokens, finished, ids, count = carry
        logits, state = step(state, tokens, count)
        tokens = rules.chosen(logits, count, finished)
        ids = ids.at[:, count].set(tokens)
        return state, tokens, finished | rules.ended(tokens), ids, count + 1

    start = (state, tokens, rules.ended(tokens), ids, jnp.int32(1))
    return jax.lax.while_loop(going, advance, start)[3]


def _kept_steps(
    bundle: Bundle, variables: Any, batch: Batch, prompts: jax.Array, room: int
) -> tuple[tuple[jax.Array, Any], Step]:
    """Return the first logits and cache of a native model, and its step of one token."""
    model, (rows, width) = bundle.model, prompts.shape
    slots = width + room

    def run(*arguments: Any, method: str) -> Any:
        return model.apply(variables, *arguments, method=method)

    if "input_features" in batch:
        memory = run(batch["input_features"], method="encode")
        mask = jnp.ones(memory.shape[:2], jnp.int32)
    else:
        mask = batch["attention_mask"]
        memory = run(batch["input_ids"], mask, method="encode")

    def decoded(tokens: jax.Array, seen: jax.Array, memory: Any, kept: Any, slot: Any) -> Any:
        hidden, kept = run(tokens, seen, memory, mask, kept, slot, method="decode")
        return run(hidden[:, -1], method="logits"), kept

    seen = jnp.tril(jnp.ones((width, slots), bool))[None, None]
    begun = decoded(prompts, seen, memory, model.empty(rows, slots), 0)
    nothing = jnp.zeros((*mask.shape, 0), memory.dtype)

    def step(kept: Any, tokens: jax.Array, count: jax.Array) -> tuple[jax.Array, Any]:
        slot = width + count - 1
        visible = (jnp.arange(slots) <= slot)[None, None, None, :]
        return decoded(tokens[:, None], visible, nothing, kept, slot)

    return begun, step


def _whole_steps(
    bundle: Any, variables: Any, batch: Batch, prompts: jax.Array, room: int
) -> tuple[tuple[jax.Array, Any], Step]:
    """Return the first logits of a traced model and its step, which reads all anew each time."""
    source = {name: batch[name] for name in SOURCES if name in batch}
    rows, width = prompts.shape
    ids = jnp.concatenate([prompts, jnp.zeros((rows, room), jnp.int32)], axis=1)

    def logits(ids: jax.Array, place: Any) -> jax.Array:
        given = bundle.taken(**source, decoder_input_ids=ids)
        found = bundle.apply(variables, **given)["logits"]
        return jax.lax.dynamic_index_in_dim(found, place, axis=1, keepdims=False)

    def step(ids: jax.Array, tokens: jax.Array, count: jax.Array) -> tuple[jax.Array, Any]:
        place = width + count - 1
        ids = jax.lax.dynamic_update_slice_in_dim(ids, tokens[:, None], place, axis=1)
        return logits(ids, place), ids

    return (logits(ids, width - 1), ids), step


def _among(ids: tuple[int, ...], size: int) -> np.ndarray:
    found = np.zeros(size, bool)
    found[[number for number in ids if 0 <= number < size]] = True
    return found

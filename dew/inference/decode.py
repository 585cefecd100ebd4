"""The decode engine: prefill, then tokens in a loop on the device, a chunk a dispatch."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused
from dew.inference.beams import search
from dew.inference.bundle import Bundle
from dew.inference.cache import bucket, left_padded, prefill
from dew.inference.choice import Choice, without_banned
from dew.inference.generation import GenerationOptions, generation_options
from dew.inference.model_inputs import checked_prompts
from dew.inference.step import decode_step
from dew.inference.stopping import Endings, StopStrings
from dew.inference.weights import DecodeWeights, decode_weights
from dew.sampling.text import Rules, draw, forbid, penalize_repetition

CHUNK = 64
STREAMED_CHUNK = 8
STOPPING_CHUNK = 16
ENDS = 4


class Streamer(Protocol):
    """What `generate` tells of its progress, as transformers' streamers are told."""

    def put(self, value: np.ndarray) -> None:
        """Take ids: first the prompts [N, P], then each step's [N]."""
        ...

    def end(self) -> None:
        """Take note that no more follow."""
        ...


class Filled(NamedTuple):
    """What the prompts leave behind.

    `logits` [N, V] are the next token's; `layers` is the engine's own cache; `visible` is bool
    [N, S], the slots that a row may look at; the next token goes to `slot`; `lengths` int32 [N]
    count each row's real tokens.
    """

    logits: jax.Array
    layers: Any
    visible: np.ndarray
    slot: int
    lengths: np.ndarray


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
    """The engine of a `CausalTransformer`."""

    model: Any

    def fill(
        self, bundle: Bundle, prompts: np.ndarray, real: np.ndarray, new: int, source: Any = None
    ) -> Filled:
        """Read prompts moved to the right end of a bucket; `source` is not read."""
        lengths = real.sum(axis=1).astype(np.int32)
        width = bucket(int(lengths.max()))
        tokens, mask = left_padded(prompts, real, width)
        slots = bucket(width + new)
        filled = prefill(self.model, bundle.variables, tokens, mask, slots)
        visible = np.pad(mask, ((0, 0), (0, slots - width)))
        return Filled(filled.logits, filled.layers, visible, width, lengths)

    def weights(self, bundle: Bundle) -> DecodeWeights:
        """Return the bundle's weights, one array a matrix of each layer."""
        return decode_weights(bundle)

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


class Forced(NamedTuple):
    """Ids that stand whatever the logits say: the first new one, and the last that may come."""

    first: int | None = None
    last: int | None = None


class State(NamedTuple):
    """The rows in flight.

    `tokens` [N] is each row's newest id, not yet in the cache; `seen` is bool [N, V], or [N, 0]
    where no rule reads it; `count` is how many ids were generated so far.
    """

    layers: Any
    visible: jax.Array
    slot: jax.Array
    tokens: jax.Array
    positions: jax.Array
    finished: jax.Array
    seen: jax.Array
    keys: jax.Array
    count: jax.Array


def generate(
    bundle: Bundle,
    input_ids: Any,
    attention_mask: Any = None,
    *,
    streamer: Streamer | None = None,
    **options: Any,
) -> np.ndarray:
    """Continue each prompt; see `Bundle.generate`.

    Args:
        bundle: a bundle of a `CausalTransformer`.
        input_ids: [N, P].
        attention_mask: [N, P] or None.
        streamer: told of the prompts and of each step's ids as they come.
        **options: the fields of `GenerationOptions`.

    Returns:
        int32 [N * num_return_sequences, P + T].

    Raises:
        InputRefused: as `Bundle.generate`; stop strings without a tokenizer.
    """
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    prompts, real = checked_prompts(bundle.model, inputs)
    settings = generation_options(bundle, options)
    prompts = np.repeat(prompts, settings.copies, axis=0)
    real = np.repeat(real, settings.copies, axis=0)
    return continued(bundle, settings, prompts, real, streamer=streamer)[0]


def continued(
    bundle: Bundle,
    settings: GenerationOptions,
    prompts: np.ndarray,
    real: np.ndarray,
    *,
    streamer: Streamer | None = None,
    first_row: int = 0,
    source: Any = None,
    forced: Forced = Forced(),  # noqa: B008  (a value)
) -> tuple[np.ndarray, np.ndarray]:
    """Continue checked prompts.

    Args:
        bundle: whose model to run.
        settings: what to do; `num_return_sequences` is read for beam search alone, which makes
            that many rows of each prompt.
        prompts: int32 [N, P].
        real: [N, P], 1 where an id is real.
        streamer: as for `generate`.
        first_row: index of the first row among all rows of a call, which its draws depend on.
        source: what the engine reads beside the prompts, such as an encoder's ids.
        forced: ids that the logits do not choose.

    Returns:
        int32 [N, P + T], and for each row how many of its T new ids are its own, its end
        included: the rest is padding.
    """
    longest = int(real.sum(axis=1).max())
    limit = settings.new_tokens(prompts.shape[1], longest, bundle.model.position_limit)
    if settings.num_beams > 1 and limit:
        if streamer is not None:
            raise InputRefused(
                "beam search knows its texts at the end only: streaming needs num_beams=1"
            )
        call = _Call(bundle, settings, limit, first_row, False, source, forced)
        ids, lengths = search(_engine(bundle), call, _choice(call, prompts.shape[1]), prompts, real)
        prompts = np.repeat(prompts, settings.num_return_sequences, axis=0)
        return np.concatenate([prompts, ids], axis=1), lengths
    ending = Endings(
        len(prompts),
        settings.eos_token_id,
        settings.pad_token_id,
        _stop_strings(bundle, settings, prompts, real),
    )
    if streamer is not None:
        streamer.put(prompts)
    new = [np.zeros((len(prompts), 0), np.int32)]
    if limit:
        call = _Call(bundle, settings, limit, first_row, streamer is not None, source, forced)
        for ids in _chunks(call, prompts, real, ending):
            new.append(ids)
            for step in ids.T if streamer is not None else ():
                streamer.put(step)  # pyright: ignore[reportOptionalMemberAccess]
    if streamer is not None:
        streamer.end()
    return np.concatenate([prompts, *new], axis=1), ending.lengths


class _Call(NamedTuple):
    bundle: Bundle
    settings: GenerationOptions
    limit: int
    first_row: int
    streamed: bool
    source: Any
    forced: Forced


def _stop_strings(bundle, settings: GenerationOptions, prompts, real) -> StopStrings | None:
    if not settings.stop_strings:
        return None
    if bundle.tokenizer is None:
        raise InputRefused(
            "stop_strings need a tokenizer to turn ids into text, and this checkpoint has none; "
            "use eos_token_id"
        )
    rows = [row[kept != 0].tolist() for row, kept in zip(prompts, real, strict=True)]
    return StopStrings(bundle.tokenizer, settings.stop_strings, rows)


def _chunks(call: _Call, prompts: np.ndarray, real: np.ndarray, ending: Endings):
    """Yield int32 [N, C] ids until every row has ended or the limit is reached."""
    settings = call.settings
    engine = _engine(call.bundle)
    choice = _choice(call, prompts.shape[1])
    fixed = (engine, settings.do_sample, settings.top_k or None)
    weights = engine.weights(call.bundle)
    state = _begin(fixed, call, choice, prompts, real)
    made, ids = 1, np.asarray(state.tokens)[:, None]
    renewal = engine.renewal(int(real.sum(axis=1).max()))
    size = STREAMED_CHUNK if call.streamed else CHUNK
    size = size if ending.stops is None else min(size, STOPPING_CHUNK)
    while True:
        yield ending.cut(ids)
        if made == call.limit or ending.ended.all():
            return
        if renewal is not None:
            prompts = np.concatenate([prompts, ids], axis=1)
            real = np.concatenate([real, np.ones_like(ids)], axis=1)
        if made == renewal:
            state = _renewed(fixed, call, choice, state, prompts, real)
            made, ids = made + 1, np.asarray(state.tokens)[:, None]
            continue
        if ending.stops is not None:
            state = state._replace(finished=jnp.asarray(ending.ended))
        steps = min(size, call.limit - made)
        if renewal is not None and made < renewal:
            steps = min(steps, renewal - made)
        state, out, taken = decode_chunk(*fixed, weights, state, choice, steps)
        ids = np.asarray(out)[:, : int(taken)]
        made += ids.shape[1]


def _engine(bundle: Bundle) -> Engine:
    """Return the engine that the model brings, or the native one."""
    own = getattr(bundle.model, "engine", None)
    if own is None and "text2text-generation" in bundle.tasks:
        from dew.inference.answering import AnsweringEngine

        return AnsweringEngine(bundle.model)
    if own is None and "automatic-speech-recognition" in bundle.tasks:
        from dew.inference.transcription import HearingEngine

        return HearingEngine(bundle.model)
    return own or NativeEngine(bundle.model)


def _choice(call: _Call, width: int) -> Choice:
    settings, vocab_size, forced = call.settings, call.bundle.model.vocab_size, call.forced
    minimum = settings.minimum(width)
    # Filled up with an id that no token has, so that few or no ends share one program.
    ends = [*settings.eos_token_id]
    ends += [vocab_size] * (-len(ends) % ENDS or (0 if ends else ENDS))
    drawn = settings.do_sample

    def number(value: float | None, idle: float | None, used: bool = True) -> jax.Array | None:
        return jnp.float32(value) if used and value is not None and value != idle else None

    return Choice(
        ends=jnp.asarray(ends, jnp.int32),
        pad=jnp.int32(settings.pad_token_id),
        minimum=jnp.int32(minimum) if minimum and settings.eos_token_id else None,
        penalty=number(settings.repetition_penalty, 1.0),
        temperature=number(settings.temperature, 1.0, drawn),
        top_p=number(settings.top_p, 1.0, drawn),
        min_p=number(settings.min_p, None, drawn),
        banned=_among(settings.banned, vocab_size),
        banned_first=_first_banned(settings, forced, vocab_size),
        first=None if forced.first is None else jnp.int32(forced.first),
        last=None if forced.last is None else (jnp.int32(forced.last), jnp.int32(call.limit - 1)),
    )


def _among(ids: tuple[int, ...], vocab_size: int) -> jax.Array | None:
    """Return bool [V], true at the ids; None where there are none."""
    if not ids:
        return None
    found = np.zeros(vocab_size, bool)
    found[list(ids)] = True
    return jnp.asarray(found)


def _first_banned(
    settings: GenerationOptions, forced: Forced, vocab_size: int
) -> tuple[jax.Array, jax.Array] | None:
    """Return which ids may not come first, and after how many: a forced id is no choice."""
    banned = _among(settings.begin_suppress_tokens, vocab_size)
    return None if banned is None else (banned, jnp.int32(forced.first is not None))


def _begin(fixed, call: _Call, choice: Choice, prompts, real) -> State:
    """Run the prompts and choose the first token of each row."""
    rows, vocab_size = len(prompts), call.bundle.model.vocab_size
    filled = fixed[0].fill(call.bundle, prompts, real, call.limit, call.source)
    seen = np.zeros((rows, vocab_size if choice.penalty is not None else 0), bool)
    if choice.penalty is not None:
        for row, kept, ids in zip(seen, real, prompts, strict=True):
            row[ids[kept != 0]] = True
    state = State(
        layers=filled.layers,
        visible=jnp.asarray(filled.visible, bool),
        slot=jnp.int32(filled.slot),
        tokens=jnp.zeros(rows, jnp.int32),
        positions=jnp.asarray(filled.lengths),
        finished=jnp.zeros(rows, bool),
        seen=jnp.asarray(seen),
        keys=_row_keys(np.uint32(call.settings.seed), np.int32(call.first_row), rows),
        count=jnp.int32(0),
    )
    return first_token(fixed[1], fixed[2], filled.logits, state, choice)


def _renewed(fixed, call: _Call, choice: Choice, state: State, prompts, real) -> State:
    """Fill the cache anew from all tokens so far, and choose the next one of each row."""
    filled = fixed[0].fill(call.bundle, prompts, real, call.limit, call.source)
    state = state._replace(
        layers=filled.layers,
        visible=jnp.asarray(filled.visible, bool),
        slot=jnp.int32(filled.slot),
        positions=jnp.asarray(filled.lengths),
    )
    return first_token(fixed[1], fixed[2], filled.logits, state, choice)


@partial(jax.jit, static_argnums=2)
def _row_keys(seed: np.uint32, first: np.int32, rows: int) -> jax.Array:
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return fold(jax.random.key(seed), first + jnp.arange(rows))


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def first_token(sample: bool, top_k: int | None, logits, state: State, choice: Choice) -> State:
    """Return `state` with the token that the prompts' logits [N, V] lead to."""
    return _choose(sample, top_k, logits, state, choice)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def decode_chunk(
    engine: Engine,
    sample: bool,
    top_k: int | None,
    weights: Any,
    state: State,
    choice: Choice,
    steps: jax.Array | int,
) -> tuple[State, jax.Array, jax.Array]:
    """Make up to `steps` tokens a row, at most `CHUNK`; stop when every row has ended.

    Returns:
        The new state, int32 [N, CHUNK] ids, and how many of those columns were made.
    """
    rows = len(state.tokens)

    def going(carry):
        state, _, taken = carry
        return (taken < steps) & ~jnp.all(state.finished)

    def advance(carry):
        state, out, taken = carry
        visible = state.visible.at[:, state.slot].set(True)
        logits, layers = engine.step(
            weights,
            state.layers,
            tokens=state.tokens,
            positions=state.positions,
            visible=visible,
            slot=state.slot,
        )
        state = state._replace(
            layers=layers, visible=visible, slot=state.slot + 1, positions=state.positions + 1
        )
        state = _choose(sample, top_k, logits, state, choice)
        return state, out.at[:, taken].set(state.tokens), taken + 1

    out = jnp.zeros((rows, CHUNK), jnp.int32)
    return jax.lax.while_loop(going, advance, (state, out, jnp.int32(0)))


def _choose(sample: bool, top_k: int | None, logits, state: State, choice: Choice) -> State:
    """Choose each row's next token; a row that has ended gets padding."""
    if choice.penalty is not None:
        logits = penalize_repetition(logits, state.seen, choice.penalty)
    if choice.minimum is not None:
        logits = forbid(logits, choice.ends, state.count < choice.minimum)
    logits = without_banned(logits, choice, state.count)
    if sample:
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.keys, state.count)
        rules = Rules(choice.temperature, top_k, choice.top_p, choice.min_p)
        tokens = draw(logits, keys, rules)
    else:
        tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if choice.first is not None:
        tokens = jnp.where(state.count == 0, choice.first, tokens)
    if choice.last is not None:
        tokens = jnp.where(state.count == choice.last[1], choice.last[0], tokens)
    tokens = jnp.where(state.finished, choice.pad, tokens)
    seen = state.seen
    if choice.penalty is not None:
        seen = seen.at[jnp.arange(len(tokens)), tokens].set(True)
    ended = jnp.any(tokens[:, None] == choice.ends, axis=-1)
    return state._replace(
        tokens=tokens, seen=seen, finished=state.finished | ended, count=state.count + 1
    )

"""The decode loop: prompts are read, then tokens made on the device, a chunk a dispatch."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused
from dew.inference.beams import search
from dew.inference.bundle import Bundle
from dew.inference.cache import left_padded
from dew.inference.choice import Choice, Fixed, Forced, Past, choice_of, past_of
from dew.inference.engine import Engine, Filled, engine_of
from dew.inference.fitting import Fitting, fitting_of
from dew.inference.generation import GenerationOptions, generation_options
from dew.inference.guessing import Guesses, guesses_of
from dew.inference.guidance import guided
from dew.inference.model_inputs import checked_prompts
from dew.inference.rows import CHUNK, State, choose, first_token, row_keys
from dew.inference.stopping import Endings, StopStrings
from dew.sampling.penalties import NOTHING

__all__ = ["Engine", "Filled", "Forced", "Streamer", "continued", "generate"]

STREAMED_CHUNK = 8
STOPPING_CHUNK = 16


class Streamer(Protocol):
    """What `generate` tells of its progress, as transformers' streamers are told."""

    def put(self, value: np.ndarray) -> None:
        """Take ids: first the prompts [N, P], then each step's [N]."""
        ...

    def end(self) -> None:
        """Take note that no more follow."""
        ...


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
        settings: what to do; `num_return_sequences` is read for beam search, which makes that
            many rows of each prompt, and for `seeds`: rows of one prompt stand side by side.
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
    if settings.seeds is not None and len(prompts) % len(settings.seeds):
        raise InputRefused(
            f"seeds has {len(settings.seeds)} and there are {len(prompts)} rows; give one seed a "
            "prompt"
        )
    if settings.guesses and len(prompts) > 1:
        return _each_alone(bundle, settings, prompts, real, streamer, first_row, source, forced)
    told = streamer is not None
    call = _call_of(bundle, settings, prompts, real, first_row, told, source, forced)
    if settings.num_beams > 1 and call.limit:
        if streamer is not None:
            raise InputRefused(
                "beam search knows its texts at the end only: streaming needs num_beams=1"
            )
        ids, lengths = search(call, prompts, real)
        prompts = np.repeat(prompts, settings.num_return_sequences, axis=0)
        return np.concatenate([prompts, ids], axis=1), lengths
    ending = _ending(bundle, settings, prompts, real)
    if streamer is not None:
        streamer.put(prompts)
    new = [np.zeros((len(prompts), 0), np.int32)]
    if call.limit:
        for ids in _chunks(call, prompts, real, ending):
            new.append(ids)
            for step in ids.T if streamer is not None else ():
                streamer.put(step)  # pyright: ignore[reportOptionalMemberAccess]
    if streamer is not None:
        streamer.end()
    return np.concatenate([prompts, *new], axis=1), ending.lengths


def streamed(
    bundle: Bundle, settings: GenerationOptions, prompt: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the new ids of one prompt [1, P], int32 [1, C], as they are made.

    Raises:
        InputRefused: as `continued`; beam search, which knows its texts at the end only.
    """
    if settings.num_beams > 1:
        raise InputRefused("beam search knows its texts at the end only: pass num_beams=1")
    real = np.ones_like(prompt)
    call = _call_of(bundle, settings, prompt, real, 0, True, None, Forced())
    ending = _ending(bundle, settings, prompt, real)
    return _chunks(call, prompt, real, ending) if call.limit else iter(())


def compiled(bundle: Bundle, settings: GenerationOptions, rows: int, length: int) -> None:
    """Compile what continues so many prompts of that length, so that a call need not wait."""
    prompts = np.zeros((1 if settings.guesses else rows, length), np.int32)
    real = np.ones_like(prompts)
    call = _call_of(bundle, settings, prompts, real, 0, False, None, Forced())
    filled, state = _begun(call, prompts, real)
    state, _ = _more(call, state, call.choice, 0)
    if filled.keep is not None:
        # A prompt that begins as this one did has a program of its own.
        filled.keep(state.layers)
        call.engine.fill(bundle, prompts, real, call.limit, call.source)


def _ending(bundle: Bundle, settings: GenerationOptions, prompts: np.ndarray, real) -> Endings:
    return Endings(
        len(prompts),
        settings.eos_token_id,
        settings.pad_token_id,
        _stop_strings(bundle, settings, prompts, real),
    )


def _each_alone(
    bundle: Bundle,
    settings: GenerationOptions,
    prompts: np.ndarray,
    real: np.ndarray,
    streamer: Streamer | None,
    first_row: int,
    source: Any,
    forced: Forced,
) -> tuple[np.ndarray, np.ndarray]:
    """Continue rows one after the other: each takes its own number of right guesses at a time."""
    if streamer is not None:
        raise InputRefused(f"{len(prompts)} rows at once cannot be streamed with guesses; pass one")
    copies, rows, lengths = len(prompts) // len(settings.seeds or prompts), [], []
    for at in range(len(prompts)):
        own, index = settings, first_row + at
        if settings.seeds is not None:
            own = dataclasses.replace(settings, seed=settings.seeds[at // copies], seeds=None)
            index = at % copies
        part = jax.tree.map(lambda leaf, at=at: leaf[at : at + 1], source)
        ids, count = continued(
            bundle,
            own,
            prompts[at : at + 1],
            real[at : at + 1],
            first_row=index,
            source=part,
            forced=forced,
        )
        rows.append(ids[0])
        lengths.append(int(count[0]))
    width = max(map(len, rows))
    pads = [np.full(width - len(row), settings.pad_token_id, np.int32) for row in rows]
    both = [np.concatenate(pair) for pair in zip(rows, pads, strict=True)]
    return np.stack(both), np.asarray(lengths)


class Call(NamedTuple):
    """What one `continued` is about; `fitting` says which ids may come, a token at a time."""

    bundle: Bundle
    settings: GenerationOptions
    limit: int
    first_row: int
    streamed: bool
    source: Any
    engine: Engine
    fixed: Fixed
    choice: Choice
    past: Past
    fitting: Fitting | None
    guesses: Guesses | None


def _call_of(
    bundle: Bundle,
    settings: GenerationOptions,
    prompts: np.ndarray,
    real: np.ndarray,
    first_row: int,
    streamed: bool,
    source: Any,
    forced: Forced,
) -> Call:
    width, vocab_size = prompts.shape[1], bundle.model.vocab_size
    longest = int(real.sum(axis=1).max())
    limit = settings.new_tokens(width, longest, bundle.model.position_limit)
    ids, kept = left_padded(prompts, real, width)
    ids = np.where(kept != 0, ids, NOTHING)
    if forced == Forced() and width == 1:
        forced = forced._replace(first=settings.forced_bos_token_id)
    if forced.last is None:
        forced = forced._replace(last=settings.forced_eos_token_id)
    fixed = Fixed.of(settings)
    read = _source_ids(source) if source is not None else ids
    choice = choice_of(settings, forced, vocab_size, prompts, limit, read)
    past = past_of(choice, fixed, ids, vocab_size, limit)
    engine = engine_of(bundle, settings)
    engine, source = guided(engine, settings, prompts, source)
    fitting = fitting_of(bundle, settings, prompts, real, first_row)
    guesses = guesses_of(bundle, settings, engine)
    return Call(
        bundle, settings, limit, first_row, streamed, source, engine, fixed, choice, past,
        fitting, guesses,
    )  # fmt: skip


def _source_ids(source: Any) -> np.ndarray | None:
    """Return the ids that an encoder reads, or None where it reads none."""
    if not isinstance(source, tuple):
        return None
    ids, mask = source
    return np.where(np.asarray(mask) != 0, np.asarray(ids, np.int32), NOTHING)


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


def _chunks(
    call: Call, prompts: np.ndarray, real: np.ndarray, ending: Endings
) -> Iterator[np.ndarray]:
    """Yield int32 [N, C] ids until every row has ended or the limit is reached."""
    engine, due = call.engine, call.settings.max_time
    due = None if due is None else time.monotonic() + due
    filled, state = _begun(call, prompts, real)
    made, ids = 1, np.asarray(state.tokens)[:, None]
    renewal = engine.renewal(int(real.sum(axis=1).max()))
    while True:
        ids = ending.cut(ids)
        yield ids
        late = due is not None and time.monotonic() > due
        if made == call.limit or ending.ended.all() or late:
            if filled.keep is not None:
                filled.keep(state.layers)
            return
        if renewal is not None:
            prompts = np.concatenate([prompts, ids], axis=1)
            real = np.concatenate([real, np.ones_like(ids)], axis=1)
        if made == renewal:
            filled = engine.fill(call.bundle, prompts, real, call.limit, call.source)
            bare = state._replace(layers=None, visible=None, slot=None, positions=None)
            state = _first(call.fixed, filled, bare, _allowing(call, ids))
            made, ids = made + 1, np.asarray(state.tokens)[:, None]
            continue
        steps = min(_size(call), call.limit - made)
        if renewal is not None and made < renewal:
            steps = min(steps, renewal - made)
        if ending.stops is not None:
            state = state._replace(finished=jnp.asarray(ending.ended))
        state, ids = _more(call, state, _allowing(call, ids), steps)
        made += ids.shape[1]


def _begun(call: Call, prompts: np.ndarray, real: np.ndarray) -> tuple[Filled, State]:
    """Read the prompts and choose each row's first token."""
    beyond = 0
    if call.guesses is not None:
        call.guesses.begin(prompts, real, call.limit)
        beyond = call.guesses.count
    filled = call.engine.fill(call.bundle, prompts, real, call.limit + beyond, call.source)
    return filled, _first(call.fixed, filled, _begin(call, len(prompts)), _allowing(call, None))


def _more(call: Call, state: State, choice: Choice, steps: int) -> tuple[State, np.ndarray]:
    """Make up to `steps` ids more: the rows after them, and the ids int32 [N, C]."""
    weights = call.engine.weights(call.bundle)
    if call.guesses is not None:
        return call.guesses.chunk(call.fixed, weights, state, choice, steps)
    state, out, taken = decode_chunk(call.engine, call.fixed, weights, state, choice, steps)
    return state, np.asarray(out)[:, : int(taken)]


def _allowing(call: Call, ids: np.ndarray | None) -> Choice:
    """Return the choice after the newest ids int32 [N, C], with what may come if that is told."""
    if call.fitting is None:
        return call.choice
    newest = None if ids is None else ids[:, -1]
    return call.choice._replace(allowed=call.fitting.allowed(newest))


def _size(call: Call) -> int:
    """Return after how many steps at most the host looks at the ids."""
    if call.fitting is not None:
        return 1
    if call.streamed or call.settings.max_time is not None:
        return STREAMED_CHUNK
    return STOPPING_CHUNK if call.settings.stop_strings else CHUNK


def _begin(call: Call, rows: int) -> State:
    """Return the rows before their first token, the cache left out."""
    settings = call.settings
    if settings.seeds is None:
        seeds, index = np.full(rows, settings.seed), call.first_row + np.arange(rows)
    else:
        copies = rows // len(settings.seeds)
        seeds = np.repeat(np.asarray(settings.seeds), copies)
        index = np.tile(np.arange(copies), len(settings.seeds))
    return State(
        layers=None,
        visible=None,
        slot=None,
        tokens=np.zeros(rows, np.int32),  # pyright: ignore[reportArgumentType]
        positions=None,
        finished=np.zeros(rows, bool),  # pyright: ignore[reportArgumentType]
        past=call.past,
        keys=row_keys(seeds.astype(np.uint32), index.astype(np.int32)),
        count=np.int32(0),  # pyright: ignore[reportArgumentType]
    )


def _first(fixed: Fixed, filled: Filled, state: State, choice: Choice) -> State:
    """Return the rows with the token that what was read leads to, and the cache it left."""
    state = first_token(fixed, filled.logits, state, choice)
    return state._replace(
        layers=filled.layers,
        visible=jax.device_put(np.array(filled.visible, bool)),
        slot=jnp.int32(filled.slot),
        positions=jnp.asarray(filled.lengths),
    )


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def decode_chunk(
    engine: Engine,
    fixed: Fixed,
    weights: Any,
    state: State,
    choice: Choice,
    steps: jax.Array | int,
) -> tuple[State, jax.Array, jax.Array]:
    """Make up to `steps` tokens a row, at most `CHUNK`; stop when every row has ended.

    Returns:
        The new state, int32 [N, CHUNK] ids, and how many of those columns were made.
    """

    def going(carry: tuple) -> jax.Array:
        state, _, taken = carry
        return (taken < steps) & ~jnp.all(state.finished)

    def advance(carry: tuple) -> tuple:
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
        state = choose(fixed, logits, state, choice)
        return state, out.at[:, taken].set(state.tokens), taken + 1

    out = jnp.zeros((len(state.tokens), CHUNK), jnp.int32)
    return jax.lax.while_loop(going, advance, (state, out, jnp.int32(0)))

"""Beam search: the likeliest continuations of each prompt, several followed at a time."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dew.inference.choice import Fixed, Past, ruled
from dew.inference.generation import GenerationOptions

IMPOSSIBLE = np.float32(-1e9)
"""What is added to a score that must not win; as in transformers, whose sums are followed here."""


class Beams(NamedTuple):
    """The texts of each row that are still growing, and the best of those that have ended.

    `running` and `ended` are int32 [N, B, T], with scores float32 [N, B]; `finished` says which of
    `ended` are texts, `lengths` how long they are, and `hopeful` [N, 1] whether a running one may
    yet be better.
    """

    running: np.ndarray
    scores: np.ndarray
    ended: np.ndarray
    ended_scores: np.ndarray
    finished: np.ndarray
    lengths: np.ndarray
    hopeful: np.ndarray


def search(call: Any, prompts: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Continue each prompt by beam search.

    Args:
        call: a `dew.inference.decode.Call`.
        prompts: int32 [N, P].
        real: [N, P], 1 where an id is real.

    Returns:
        int32 [N * num_return_sequences, T], the likeliest first, and each one's own length.

    Source: transformers 5's vectorised beam search, whose order of sums and whose rule of when to
    stop is kept, so that the same texts win.
    """
    engine, settings, limit = call.engine, call.settings, call.limit
    rows, count = len(prompts), settings.num_beams
    prompts, real = np.repeat(prompts, count, axis=0), np.repeat(real, count, axis=0)
    source = jax.tree.map(lambda part: np.repeat(part, count, axis=0), call.source)
    choice, past = _widened(call.choice, call.past, count)
    filled = engine.fill(call.bundle, prompts, real, limit, source)
    weights, logits, layers = engine.weights(call.bundle), filled.logits, filled.layers
    visible, positions = jnp.asarray(np.asarray(filled.visible, bool)), jnp.asarray(filled.lengths)
    keep = count * max(2, 1 + len(settings.eos_token_id))
    beams = _start(rows, settings, limit)
    for step in range(limit):
        forced = _forced(choice, step, limit)
        found = _candidates(
            call.fixed, keep, logits, jnp.asarray(beams.scores), past, choice, step, forced
        )
        values, picks = (np.asarray(part) for part in found)
        beam, tokens = np.divmod(picks, logits.shape[-1])
        beams, parents = _grown(beams, settings, values, beam, tokens.astype(np.int32), step, limit)
        if parents is None:
            break
        chosen = jnp.asarray(beams.running[:, :, step].reshape(-1))
        visible = visible.at[:, filled.slot + step].set(True)
        logits, layers, past = _advanced(
            engine,
            weights,
            layers,
            past,
            jnp.asarray(parents),
            chosen,
            positions + step,
            visible,
            jnp.int32(filled.slot + step),
            choice.width + step,
        )
    return _best(beams, settings)


def _widened(choice: Any, past: Past, count: int) -> tuple[Any, Past]:
    """Return what the rules read of the prompts, for each of their beams."""
    past = jax.tree.map(lambda part: jnp.repeat(part, count, axis=0), past)
    source, sourced = choice.source, choice.sourced
    if source is not None:
        source = jnp.repeat(source, count, axis=0)
    if sourced is not None:
        sourced = (jnp.repeat(jnp.asarray(sourced[0]), count, axis=0), sourced[1])
    return choice._replace(source=source, sourced=sourced), past


def _start(rows: int, settings: GenerationOptions, limit: int) -> Beams:
    count, shape = settings.num_beams, (rows, settings.num_beams)
    filler = settings.pad_token_id or next(iter(settings.eos_token_id), 0)
    texts = np.full((*shape, limit), filler, np.int32)
    scores = np.zeros(shape, np.float32)
    # All beams begin alike: only the first may put a token forward.
    scores[:, 1:] = IMPOSSIBLE
    return Beams(
        running=texts,
        scores=scores,
        ended=texts.copy(),
        ended_scores=np.full(shape, IMPOSSIBLE),
        finished=np.zeros(shape, bool),
        lengths=np.zeros((rows, count), np.int32),
        hopeful=np.ones((rows, 1), bool),
    )


def _grown(
    beams: Beams,
    settings: GenerationOptions,
    values: np.ndarray,
    beam: np.ndarray,
    tokens: np.ndarray,
    step: int,
    limit: int,
) -> tuple[Beams, np.ndarray | None]:
    """Return the beams with one token more, and each running one's parent; None at the end.

    Args:
        beams: before the token.
        settings: of the call.
        values: float32 [N, K], the scores of the best continuations, falling.
        beam: [N, K], the beam that each continues.
        tokens: int32 [N, K], its new token.
        step: how many tokens there were.
        limit: how many there may be.
    """
    count, eager = settings.num_beams, settings.early_stopping is True
    texts = _taken(beams.running, beam)
    texts[:, :, step] = tokens
    over = np.isin(tokens, settings.eos_token_id) | (step + 1 == limit)

    alive = values + over.astype(np.float32) * IMPOSSIBLE
    best = _order(alive, count)
    length = np.float32((step + 1) ** settings.length_penalty)
    closed = values / length
    closed += (beams.finished.all(axis=1, keepdims=True) & eager).astype(np.float32) * IMPOSSIBLE
    closed += (~beams.hopeful).astype(np.float32) * IMPOSSIBLE
    just = over & (np.arange(values.shape[1]) < count)
    closed += (~just).astype(np.float32) * IMPOSSIBLE

    scores = np.concatenate([beams.ended_scores, closed], axis=1)
    won = _order(scores, count)
    lengths = np.concatenate([beams.lengths, np.full(values.shape, step + 1, np.int32)], axis=1)
    grown = Beams(
        running=_taken(texts, best),
        scores=_taken(alive, best),
        ended=_taken(np.concatenate([beams.ended, texts], axis=1), won),
        ended_scores=_taken(scores, won),
        finished=_taken(np.concatenate([beams.finished, just], axis=1), won),
        lengths=_taken(lengths, won),
        hopeful=beams.hopeful,
    )
    grown = grown._replace(hopeful=_hopeful(grown, settings, step + 1, limit))
    done = (grown.finished.all() and eager) or not grown.hopeful.any() or over.all()
    return grown, None if done else _taken(beam, best)


def _hopeful(beams: Beams, settings: GenerationOptions, length: int, limit: int) -> np.ndarray:
    """Return [N, 1]: whether a running text may yet beat the worst of those that ended."""
    if settings.early_stopping == "never" and settings.length_penalty > 0.0:
        length = limit
    possible = beams.scores[:, :1] / np.float32(length**settings.length_penalty)
    worst = np.where(beams.finished, beams.ended_scores.min(axis=1, keepdims=True), IMPOSSIBLE)
    return beams.hopeful & (possible > worst).any(axis=1, keepdims=True)


def _best(beams: Beams, settings: GenerationOptions) -> tuple[np.ndarray, np.ndarray]:
    count = settings.num_return_sequences
    lengths = beams.lengths[:, :count].reshape(-1)
    texts = beams.ended[:, :count].reshape(len(lengths), -1)
    return texts[:, : int(lengths.max())], lengths


def _order(scores: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def _taken(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return `values` [N, K, ...] in the order of `index` [N, B]."""
    return values[np.arange(len(values))[:, None], index]


def _forced(choice: Any, step: int, limit: int) -> jax.Array | None:
    found = choice.first if step == 0 else None
    return choice.last[0] if choice.last is not None and step == limit - 1 else found


@partial(jax.jit, static_argnums=(0, 1))
def _candidates(
    fixed: Fixed,
    keep: int,
    logits: jax.Array,
    scores: jax.Array,
    past: Past,
    choice: Any,
    step: jax.Array | int,
    forced: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Return the best continuations of each row: scores and places in [B * V], both [N, keep]."""
    scored = ruled(jax.nn.log_softmax(logits, axis=-1), fixed, choice, past, jnp.asarray(step))
    if forced is not None:
        scored = jnp.where(jnp.arange(scored.shape[-1]) == forced, 0.0, -jnp.inf)
        scored = jnp.broadcast_to(scored, logits.shape)
    if fixed.renormalized:
        scored = jax.nn.log_softmax(scored, axis=-1)
    rows, beams = scores.shape
    summed = scored.reshape(rows, beams, -1) + scores[:, :, None]
    return jax.lax.top_k(summed.reshape(rows, -1), keep)


@partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def _advanced(
    engine: Any,
    weights: Any,
    layers: Any,
    past: Past,
    parents: jax.Array,
    tokens: jax.Array,
    positions: jax.Array,
    visible: jax.Array,
    slot: jax.Array,
    column: jax.Array,
) -> tuple[jax.Array, Any, Past]:
    """Return logits [N * B, V], cache and past after one more token of each beam.

    Args:
        engine: see `dew.inference.engine.Engine`.
        weights: what it reads.
        layers: its cache.
        past: what the rules read.
        parents: [N, B], the beam of its row that each goes on from.
        tokens: int32 [N * B].
        positions: int32 [N * B].
        visible: bool [N * B, S].
        slot: where the tokens go.
        column: where they go in `past`.
    """
    rows, beams = parents.shape
    index = (jnp.arange(rows)[:, None] * beams + parents).reshape(-1)
    layers = engine.reordered(layers, index)
    past = past.reordered(index).grown(tokens, column)
    logits, layers = engine.step(
        weights, layers, tokens=tokens, positions=positions, visible=visible, slot=slot
    )
    return logits, layers, past

"""What bears on the choice of the next token, as arrays that a jitted chunk takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dew.inference.generation import GenerationOptions
from dew.sampling.penalties import (
    ANY,
    NOTHING,
    Sequences,
    allow,
    bias_sequences,
    favour_ends,
    finite,
    forbid_repeated_ngrams,
)
from dew.sampling.text import Rules, forbid, penalize_repetition
from dew.sampling.times import Times, timed

ENDS = 4


class Forced(NamedTuple):
    """Ids that stand whatever the logits say: the first new one, and the last that may come.

    `times` are the ids of times, where Whisper's rule of them is followed.
    """

    first: int | None = None
    last: int | None = None
    times: Times | None = None


class Fixed(NamedTuple):
    """What fixes the program that chooses; `remembers` keeps the rows' ids for others."""

    sample: bool = False
    top_k: int | None = None
    ngram: int = 0
    source_ngram: int = 0
    finite: bool = False
    renormalized: bool = False
    remembers: bool = False

    @classmethod
    def of(cls, settings: GenerationOptions) -> Fixed:
        """Return what the options of a call fix."""
        return cls(
            settings.do_sample,
            settings.top_k or None,
            settings.no_repeat_ngram_size,
            settings.encoder_no_repeat_ngram_size,
            settings.remove_invalid_values,
            settings.renormalize_logits,
            settings.prompt_lookup_num_tokens is not None,
        )


class Choice(NamedTuple):
    """What a jitted chunk must know to choose a token; None leaves a rule out of the program.

    `source` is int32 [N, M], the ids that an encoder or the model itself was given to begin with,
    and `sourced` bool [N, V] says which ids are among them; `width` counts the prompts' columns.
    """

    ends: jax.Array
    pad: jax.Array
    width: jax.Array
    rules: Rules
    minimum: jax.Array | None = None
    penalty: jax.Array | None = None
    banned: jax.Array | None = None
    banned_first: tuple[jax.Array, jax.Array] | None = None
    first: jax.Array | None = None
    last: tuple[jax.Array, jax.Array] | None = None
    biased: Sequences | None = None
    bad: Sequences | None = None
    decay: tuple[jax.Array, jax.Array] | None = None
    source: jax.Array | None = None
    sourced: tuple[jax.Array, jax.Array] | None = None
    allowed: jax.Array | None = None
    times: Times | None = None


class Past(NamedTuple):
    """What the rules read of the rows so far; empty where none does.

    `seen` is bool [N, V], which ids a row holds; `ids` int32 [N, R], its prompt and then its new
    ids, `NOTHING` where there is none.
    """

    seen: jax.Array
    ids: jax.Array

    def grown(self, tokens: jax.Array, at: jax.Array) -> Past:
        """Return it with one more id [N] a row, in column `at`."""
        seen, ids = self
        if seen.shape[-1]:
            seen = seen.at[jnp.arange(len(tokens)), tokens].set(True)
        if ids.shape[-1]:
            ids = jax.lax.dynamic_update_slice(ids, tokens[:, None], (0, at))
        return Past(seen, ids)

    def reordered(self, index: jax.Array) -> Past:
        """Return it with its rows in the order of `index`."""
        return Past(self.seen[index], self.ids[index])


def choice_of(
    settings: GenerationOptions,
    forced: Forced,
    vocab_size: int,
    prompts: np.ndarray,
    limit: int,
    source: np.ndarray | None,
) -> Choice:
    """Return what the options of a call say.

    Args:
        settings: the options.
        forced: ids that the logits do not choose.
        vocab_size: of the model.
        prompts: int32 [N, P].
        limit: how many new ids there are at most.
        source: int32 [N, M], see `Choice`; None where there are no such ids.
    """
    minimum = settings.minimum(prompts.shape[1])
    # Filled up with an id that no token has, so that few or no ends share one program.
    ends = [*settings.eos_token_id]
    ends += [vocab_size] * (-len(ends) % ENDS or (0 if ends else ENDS))
    decay, favour = settings.exponential_decay_length_penalty, settings.encoder_repetition_penalty
    sourced = favour != 1.0 and source is not None
    repeats = settings.encoder_no_repeat_ngram_size and source is not None
    return Choice(
        ends=jnp.asarray(ends, jnp.int32),
        pad=jnp.int32(settings.pad_token_id),
        width=jnp.int32(prompts.shape[1]),
        rules=_rules(settings),
        minimum=jnp.int32(minimum) if minimum and settings.eos_token_id else None,
        penalty=_number(settings.repetition_penalty, 1.0),
        banned=_among(settings.suppress_tokens, vocab_size),
        banned_first=_first_banned(settings, forced, vocab_size),
        first=None if forced.first is None else jnp.int32(forced.first),
        last=None if forced.last is None else (jnp.int32(forced.last), jnp.int32(limit - 1)),
        biased=_sequences(settings.sequence_bias),
        bad=_sequences(tuple((word, -np.inf) for word in settings.bad_words)),
        decay=None if decay is None else (jnp.int32(decay[0]), jnp.float32(decay[1])),
        source=jnp.asarray(source) if repeats else None,
        sourced=(jnp.asarray(_seen(source, vocab_size)), jnp.float32(1 / favour))
        if sourced
        else None,
        times=jax.tree.map(jnp.int32, forced.times),
    )


def past_of(choice: Choice, fixed: Fixed, ids: np.ndarray, vocab_size: int, limit: int) -> Past:
    """Return what the rules are to read of rows that begin with `ids`.

    Args:
        choice: which rules there are.
        fixed: as `choice`.
        ids: int32 [N, P], `NOTHING` where there is none.
        vocab_size: of the model.
        limit: how many new ids there are at most.
    """
    told = any(part is not None for part in (choice.biased, choice.bad, choice.times))
    reads = told or fixed.ngram or fixed.source_ngram or fixed.remembers
    room = -(-(ids.shape[1] + limit) // 64) * 64 if reads else 0
    past = np.full((len(ids), room), NOTHING, np.int32)
    if reads:
        past[:, : ids.shape[1]] = ids
    penalized = choice.penalty is not None
    seen = _seen(ids, vocab_size) if penalized else np.zeros((len(ids), 0), bool)
    return Past(jnp.asarray(seen), jnp.asarray(past))


def ruled(
    logits: jax.Array, fixed: Fixed, choice: Choice, past: Past, count: jax.Array
) -> jax.Array:
    """Return `logits` [N, V] after the rules, in transformers' order, `count` new ids so far."""
    length = choice.width + count
    if choice.biased is not None:
        logits = bias_sequences(logits, past.ids, length, choice.biased)
    if choice.sourced is not None:
        logits = penalize_repetition(logits, *choice.sourced)
    if choice.penalty is not None:
        logits = penalize_repetition(logits, past.seen, choice.penalty)
    if fixed.ngram:
        logits = forbid_repeated_ngrams(logits, past.ids, length, past.ids, fixed.ngram)
    if choice.source is not None:
        logits = forbid_repeated_ngrams(logits, past.ids, length, choice.source, fixed.source_ngram)
    if choice.bad is not None:
        logits = bias_sequences(logits, past.ids, length, choice.bad)
    if choice.minimum is not None:
        logits = forbid(logits, choice.ends, count < choice.minimum)
    if choice.allowed is not None:
        logits = allow(logits, choice.allowed)
    if fixed.finite:
        logits = finite(logits)
    if choice.decay is not None:
        logits = favour_ends(logits, choice.ends, count, *choice.decay)
    if choice.banned is not None:
        logits = jnp.where(choice.banned, -jnp.inf, logits)
    if choice.banned_first is not None:
        banned, when = choice.banned_first
        logits = jnp.where(banned & (count == when), -jnp.inf, logits)
    if choice.times is not None:
        logits = timed(logits, past.ids, length, choice.width, choice.times)
    return logits


def _rules(settings: GenerationOptions) -> Rules:
    if not settings.do_sample:
        return Rules()
    return Rules(
        temperature=_number(settings.temperature, 1.0),
        top_p=_number(settings.top_p, 1.0),
        min_p=_number(settings.min_p, None),
        top_h=_number(settings.top_h, None),
        typical_p=_number(settings.typical_p, 1.0),
        epsilon=_number(settings.epsilon_cutoff, 0.0),
        eta=_number(settings.eta_cutoff, 0.0),
    )


def _number(value: float | None, idle: float | None) -> jax.Array | None:
    return jnp.float32(value) if value is not None and value != idle else None


def _sequences(biases: tuple[tuple[tuple[int, ...], float], ...]) -> Sequences | None:
    if not biases:
        return None
    # One id each leaves a width of 0, which no array of ids may have.
    width = max(max(len(ids) for ids, _ in biases) - 1, 1)
    before = np.full((len(biases), width), ANY, np.int32)
    for row, (ids, _) in zip(before, biases, strict=True):
        row[width - len(ids) + 1 :] = ids[:-1]
    last, bias = [ids[-1] for ids, _ in biases], [bias for _, bias in biases]
    return Sequences(
        jnp.asarray(before), jnp.asarray(last, jnp.int32), jnp.asarray(bias, jnp.float32)
    )


def _among(ids: tuple[int, ...], vocab_size: int) -> jax.Array | None:
    """Return bool [V], true at the ids; None where there are none."""
    if not ids:
        return None
    found = np.zeros(vocab_size, bool)
    found[list(ids)] = True
    return jnp.asarray(found)


def _seen(ids: Any, vocab_size: int) -> np.ndarray:
    """Return bool [N, V], which ids each row [N, P] holds."""
    seen = np.zeros((len(ids), vocab_size), bool)
    for row, own in zip(seen, ids, strict=True):
        row[own[own != NOTHING]] = True
    return seen


def _first_banned(
    settings: GenerationOptions, forced: Forced, vocab_size: int
) -> tuple[jax.Array, jax.Array] | None:
    """Return which ids may not come first, and after how many: a forced id is no choice."""
    banned = _among(settings.begin_suppress_tokens, vocab_size)
    return None if banned is None else (banned, jnp.int32(forced.first is not None))

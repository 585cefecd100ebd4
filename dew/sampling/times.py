"""Whisper's rule of times: they stand in pairs around what was said, and never go back."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Times(NamedTuple):
    """The ids of times.

    Attributes:
        begin: the id of the time 0; all ids from it on are times.
        end: the id that ends a text; ids below it are words.
        off: the id that asks for a text without times.
        latest: the last time that may come first, counted from 0; None for any.
    """

    begin: jax.Array | int
    end: jax.Array | int
    off: jax.Array | int
    latest: jax.Array | int | None = None


def timed(
    logits: jax.Array, ids: jax.Array, length: jax.Array, width: jax.Array, times: Times
) -> jax.Array:
    """Return logits [N, V] of which those that the rule forbids are -inf.

    A text begins with a time. Two times stand side by side, but for the first and that before the
    end; none is before an earlier one. Where times together are likelier than the likeliest word,
    a time comes.

    Args:
        logits: [N, V], after the other rules.
        ids: int32 [N, R], the rows so far in the columns before `length`.
        length: how many columns are filled.
        width: how many of them are not of the text.
        times: the ids.

    Source: Radford et al. 2022, arXiv:2212.04356; transformers 5.24's
        WhisperTimeStampLogitsProcessor.
    """
    vocabulary = jnp.arange(logits.shape[-1])
    is_time, count = vocabulary >= times.begin, length - width
    columns = jnp.arange(ids.shape[1])
    own = (columns >= width) & (columns < length)
    marks = (ids >= times.begin) & own
    last = _at(marks, length - 1) & (count >= 1)
    before = _at(marks, length - 2) | (count < 2)
    opened, closed = last & ~before, last & before
    newest = jnp.max(jnp.where(marks, ids * 0 + columns, -1), axis=-1)
    newest = jnp.take_along_axis(ids, jnp.maximum(newest, 0)[:, None], axis=-1)[:, 0]
    least = jnp.where(marks.any(axis=-1), newest + ~opened, times.begin)

    forbidden = vocabulary == times.off
    forbidden |= closed[:, None] & is_time
    forbidden |= opened[:, None] & (vocabulary < times.end)
    forbidden |= is_time & (vocabulary < least[:, None])
    first = ~is_time
    if times.latest is not None:
        first |= vocabulary > times.begin + times.latest
    forbidden |= (count == 0) & first
    logits = jnp.where(forbidden, -jnp.inf, logits)

    shares = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    together = jax.nn.logsumexp(jnp.where(is_time, shares, -jnp.inf), axis=-1)
    word = jnp.max(jnp.where(is_time, -jnp.inf, shares), axis=-1)
    return jnp.where((together > word)[:, None] & ~is_time, -jnp.inf, logits)


def _at(marks: jax.Array, column: jax.Array) -> jax.Array:
    """Return one column of bool [N, R], whose number only the device knows."""
    return jnp.take(marks, jnp.maximum(column, 0), axis=1)

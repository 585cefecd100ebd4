"""When each id of a text was said: the path of the decoder's looks through the encoder's places."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.inference.speech_segments import STRIDE, Segment

STEP = 0.02
"""Seconds of a place of the encoder, of every model as in transformers."""
FILTER = 7
"""Places that a look is smoothed over, where the checkpoint does not say."""


def id_times(bundle: Bundle, segments: Sequence[Segment], heads: Any, frames: int) -> list[float]:
    """Return when each id of a sound's segments was said, in seconds.

    Args:
        bundle: of a `SpeechToText`.
        segments: of one sound, in their order.
        heads: pairs of layer and head whose looks follow what is heard (`alignment_heads`).
        frames: how many frames of the sound are no padding.

    Raises:
        InputRefused: the checkpoint names no such heads.

    Source: transformers 5.24's Whisper generation; the path is that of Giorgino 2009, section 2.
    """
    if not heads:
        raise InputRefused(
            "the checkpoint's generation_config.json has no alignment_heads, so words have no "
            "times; take the file of a newer revision, or pass return_timestamps=True"
        )
    found: list[float] = []
    known: dict[int, NDArray[np.float32]] = {}
    for segment in segments:
        window = segment.window
        if window is None:
            continue
        if segment.frame not in known:
            looks = _looks(bundle, segment, heads)
            left = frames - segment.frame
            known[segment.frame] = _window_times(bundle, looks, window.prompt, left)
        own = known[segment.frame][window.prompt + segment.first :][: len(segment.ids)]
        offset = segment.frame * STEP / STRIDE
        found += (own + np.float32(offset)).tolist()
    return found


def _looks(bundle: Bundle, segment: Segment, heads: Any) -> NDArray[np.float32]:
    """Return how much each id but the last of a window looks at each place, [heads, L, P]."""
    from dew.inference.answering import encoded

    model, window = bundle.model, segment.window
    assert window is not None
    features = np.zeros((1, model.bands, model.frames), np.float32)
    part = segment.features[:, segment.frame : segment.frame + model.frames]
    features[0, :, : part.shape[1]] = part
    memory = encoded(model, bundle.variables, features)
    length = len(window.whole) - 1
    # Filled up to the longest text, so that one program does for all.
    tokens = np.zeros((1, model.position_limit), np.int32)
    tokens[0, :length] = window.whole[:length]
    chosen = tuple((int(layer), int(head)) for layer, head in heads)
    return np.asarray(_cross_looks(model, chosen, bundle.variables, memory, tokens))[:, :length]


@partial(jax.jit, static_argnums=(0, 1))
def _cross_looks(
    model: Any,
    heads: tuple[tuple[int, int], ...],
    variables: Any,
    memory: jax.Array,
    tokens: jax.Array,
) -> jax.Array:
    """Return the shares [heads, L, P] of each place in what each token reads."""
    length = tokens.shape[1]
    seen = jnp.tril(jnp.ones((length, length), bool))[None, None]
    (_, kept), captured = model.apply(
        variables,
        tokens,
        seen,
        memory,
        None,
        model.empty(1, length),
        0,
        method="decode",
        capture_intermediates=_is_query,
        mutable=["intermediates"],
    )
    query = captured["intermediates"]["decoder_blocks"]["cross"]["query"]["__call__"][0]
    scale = query.shape[-1] ** -0.5 if model.score_scale is None else model.score_scale
    layers, chosen = (jnp.array(part) for part in zip(*heads, strict=True))
    asked, keys = query[layers, 0, :, chosen], kept.read.keys[layers, 0, :, chosen]
    scores = jnp.einsum("alk,apk->alp", asked, keys, preferred_element_type=jnp.float32)
    return jax.nn.softmax(scores * scale, axis=-1)


def _is_query(module: Any, method: str) -> bool:
    return module.name == "query" and method == "__call__" and "cross" in module.path


def _window_times(
    bundle: Bundle, looks: NDArray[np.float32], prompt: int, frames: int
) -> NDArray[np.float32]:
    """Return the time of each id of a window, float32 [L + 1], its prompt's among them."""
    times = np.zeros(looks.shape[1] + 1, np.float32)
    looks = looks[:, prompt:, : frames // STRIDE]
    if not looks.shape[1]:
        return times
    width = int(bundle.config.get("median_filter_width") or FILTER)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = looks.std(axis=1, keepdims=True)
        smooth = _smoothed((looks - looks.mean(axis=1, keepdims=True)) / spread, width)
    rows, places = _path(-smooth.mean(axis=0).astype(np.float64))
    begins = places[np.flatnonzero(np.diff(rows, prepend=rows[0] - 1))] * STEP
    times[prompt:] = [*begins, begins[-1]]
    return times


def _smoothed(values: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return the median over `width` places around each of the last axis."""
    around = width // 2
    if values.shape[-1] <= around:
        return values
    padded = np.pad(values, ((0, 0), (0, 0), (around, around)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
    return np.sort(windows, axis=-1)[..., around]


def _path(costs: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rows and columns of the cheapest way through [L, P], from corner to corner.

    Both on, a row on or a column on: where it is not clear which is cheapest, a column on.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    steps = np.full((rows + 1, columns + 1), 2, np.int8)
    steps[:, 0] = 1
    steps[0] = 2
    for column in range(1, columns + 1):
        for row in range(1, rows + 1):
            both, down = total[row - 1, column - 1], total[row - 1, column]
            on = total[row, column - 1]
            step, best = 2, on
            if both < down and both < on:
                step, best = 0, both
            elif down < both and down < on:
                step, best = 1, down
            total[row, column] = costs[row - 1, column - 1] + best
            steps[row, column] = step
    row, column, way = rows, columns, []
    while row > 0 or column > 0:
        way.append((row - 1, column - 1))
        step = steps[row, column]
        row, column = row - (step != 2), column - (step != 1)
    found = np.array(way[::-1])
    return found[:, 0], found[:, 1]

"""Rows of tokens through a model, batched by length so that little padding is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from dew.errors import InputRefused
from dew.inference.bundle import Bundle
from dew.inference.weights_apart import APART, can_be_apart, variables_apart
from dew.nn.apart import apart
from dew.nn.dense import MANY_ROWS

SMALLEST_STEP = 8
FEW_STEPS, STEPS = 2, 8
"""How many lengths there are between a power of two and the next. With few of them 12 compiled
shapes reach 512 tokens; with the others, for passes of `MANY_BATCHES`, a batch is padded by an
eighth at most."""
MANY_BATCHES = 32
IN_FLIGHT = 4
BY_TOKEN = ("last_hidden_state", "logits", "start_logits", "end_logits")
"""The outputs that may have an axis of tokens behind that of the batch."""

Compute = Callable[[Any, Any, dict[str, Any]], dict[str, jax.Array]]


@dataclass(frozen=True)
class Row:
    """One row of tokens that a model is to read.

    Args:
        ids: the tokens.
        kinds: which of two texts each is of; empty where all are of the first.
        places: the tokens that the model is asked about, where the computation takes them.
    """

    ids: Sequence[int]
    kinds: Sequence[int] = ()
    places: Sequence[int] = ()


def padded_length(length: int, limit: int | None = None, *, steps: int = STEPS) -> int:
    """Return the length that a row of `length` tokens is padded to, at most `limit`."""
    step = max(SMALLEST_STEP, 2 ** max(0, (length - 1).bit_length() - 1) // steps)
    padded = -(-length // step) * step
    return padded if limit is None else max(length, min(padded, limit))


def length_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Return the rows of each batch: all rows once, those of like length together.

    Args:
        lengths: of the rows, in tokens.
        batch_size: the most rows in a batch.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


def padded_batch(
    rows: Sequence[Row], *, length: int, count: int, padding: int
) -> dict[str, np.ndarray]:
    """Return the model's inputs, each int32 [count, length], padded on the right.

    Rows that are wanted beyond those given repeat the last one.

    Args:
        rows: no longer than `length`.
        length: of each row.
        count: how many rows.
        padding: the id that stands in padding.

    Returns:
        `input_ids`, `attention_mask` and `token_type_ids`; and `places` [count, K] where a row
        has some, padded with 0.
    """
    ids = np.full((count, length), padding, np.int32)
    mask, kinds = np.zeros((count, length), np.int32), np.zeros((count, length), np.int32)
    most = max(len(row.places) for row in rows)
    places = np.zeros((count, 1 << (most - 1).bit_length() if most else 0), np.int32)
    for at in range(count):
        row = rows[min(at, len(rows) - 1)]
        size = len(row.ids)
        ids[at, :size] = row.ids
        mask[at, :size] = 1
        if row.kinds:
            kinds[at, :size] = row.kinds
        places[at, : len(row.places)] = row.places
    found = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
    return {**found, "places": places} if most else found


def row_outputs(
    bundle: Bundle,
    rows: Sequence[Row],
    *,
    names: Sequence[str] = (),
    batch_size: int = 32,
    compute: Compute | None = None,
) -> list[dict[str, np.ndarray]]:
    """Return the model's outputs for each row, as if it had been run alone.

    Args:
        bundle: an encoder.
        rows: any number, none longer than the model can take.
        names: the outputs that are wanted; none for all.
        batch_size: rows in a batch; they are sorted by length first.
        compute: what is computed of a native model, its variables and its inputs; None for the
            model's outputs.

    Returns:
        A dict a row: `last_hidden_state` [L, D], `logits` and so on, without a batch axis and
        without padding.

    Raises:
        InputRefused: the model has no such output.
    """
    results: list[dict[str, np.ndarray]] = [{} for _ in rows]
    waiting: list[tuple[list[int], int, dict[str, Any]]] = []
    for batch, inputs in _batches(bundle, rows, batch_size):
        # Dispatched only: the next batch is prepared while this one is computed.
        found = _run(bundle, inputs, tuple(names), compute)
        waiting.append((batch, inputs["input_ids"].shape[1], found))
        if len(waiting) > IN_FLIGHT:
            _collect(results, rows, *waiting.pop(0))
    for done in waiting:
        _collect(results, rows, *done)
    return results


def position_limit(bundle: Any) -> int | None:
    """Return how many tokens a text may have, None for any; a traced bundle knows it itself."""
    return bundle.position_limit if hasattr(bundle, "traced") else bundle.model.position_limit


def _batches(
    bundle: Bundle, rows: Sequence[Row], batch_size: int
) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Yield which rows are in each batch, and its inputs."""
    padding, limit = _padding_id(bundle), position_limit(bundle)
    lengths = [len(row.ids) for row in rows]
    steps = STEPS if len(rows) >= MANY_BATCHES * batch_size else FEW_STEPS
    for batch in length_batches(lengths, batch_size):
        chosen = [rows[row] for row in batch]
        # Few counts, as few lengths: each pair of them is compiled once.
        count = min(1 << (len(batch) - 1).bit_length(), batch_size)
        if padding is None:
            for row in batch:
                yield [row], padded_batch([rows[row]], length=lengths[row], count=1, padding=0)
            continue
        length = padded_length(lengths[batch[0]], limit, steps=steps)
        yield batch, padded_batch(chosen, length=length, count=count, padding=padding)


def _padding_id(bundle: Bundle) -> int | None:
    """Return the id of padding, None where a row must not have any.

    transformers' classifiers of decoders read the last token that is not padding, by its id.
    """
    if hasattr(bundle, "traced") and bundle.config.get("pad_token_id") is None:
        return None
    own = bundle.config.get("pad_token_id") if hasattr(bundle, "traced") else None
    return own if own is not None else getattr(bundle.tokenizer, "pad_token_id", None) or 0


def _run(
    bundle: Any, inputs: dict[str, np.ndarray], names: tuple[str, ...], compute: Compute | None
) -> dict[str, Any]:
    if hasattr(bundle, "traced"):
        taken = {name: value for name, value in inputs.items() if name != "places"}
        return _wanted(bundle(**bundle.taken(**taken)), names)
    known = (*bundle.model.input_names, "places")
    taken = {name: value for name, value in inputs.items() if name in known}
    few = inputs["input_ids"].size < MANY_ROWS and can_be_apart(bundle)
    variables = variables_apart(bundle) if few else bundle.variables
    return _compiled(bundle.model, names, compute)(variables, taken)


@lru_cache(maxsize=64)
def _compiled(model: Any, names: tuple[str, ...], compute: Compute | None) -> Any:
    """Return the jitted computation; bundles of one architecture share it."""

    def outputs(variables: Any, inputs: dict[str, Any]) -> dict[str, jax.Array]:
        if compute is not None:
            return _wanted(compute(model, variables, inputs), names)
        return _wanted(model.apply(variables, **inputs, method="outputs"), names)

    def run(variables: Any, inputs: dict[str, Any]) -> dict[str, jax.Array]:
        if APART not in variables:
            return outputs(variables, inputs)
        with apart(variables[APART]):
            return outputs({"params": variables["params"]}, inputs)

    return jax.jit(run)


def _collect(
    results: list[dict[str, np.ndarray]],
    rows: Sequence[Row],
    batch: Sequence[int],
    length: int,
    found: dict[str, Any],
) -> None:
    """Lay a batch's outputs into the results of its rows."""
    for name, values in found.items():
        host = np.asarray(values)
        by_token = host.ndim > 1 and host.shape[1] == length and name in BY_TOKEN
        for place, row in enumerate(batch):
            one = host[place]
            results[row][name] = one[: len(rows[row].ids)] if by_token else one


def _wanted(found: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    if not names:
        return dict(found)
    lacking = [name for name in names if name not in found]
    if lacking:
        raise InputRefused(
            f"the model gives no {lacking[0]}; it gives {', '.join(found)}: see load(..., task=...)"
        )
    return {name: found[name] for name in names}

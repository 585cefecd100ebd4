"""What a model makes of held-out rows before and after a run, for its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PROMPT_TOKENS = 12
NEW_TOKENS = 32
CONFUSED_ROWS = 2_000


@dataclass(frozen=True)
class Sample:
    """One held-out row.

    Args:
        asked: what the model was given.
        wanted: what the data says.
        before: what the model made of it as it was loaded.
        after: and once it was trained.
    """

    asked: str
    wanted: str
    before: str
    after: str


def written_samples(before: Any, after: Any, rows: Any, *, count: int) -> list[Sample]:
    """Return how two models continue the beginnings of token rows.

    A row begins with its tokens before the first that it is trained on, or else with its first
    twelve.

    Args:
        before, after: bundles with a tokenizer.
        rows: of tokens; see `dew.data.Rows`.
        count: how many, at most.
    """
    out = []
    tokenizer = before.tokenizer
    for number in range(min(count, len(rows))):
        row = rows.take(np.array([number]))
        real = row["segments"][0] == 1 if "segments" in row else np.ones(row["text"].shape[1], bool)
        tokens = row["text"][0][real]
        begins = PROMPT_TOKENS
        if "weights" in row and (row["weights"][0][real] > 0).any():
            begins = max(1, int(np.argmax(row["weights"][0][real] > 0)))
        if len(tokens) <= begins:
            continue
        prompt = tokens[None, :begins]
        told = [
            tokenizer.decode(
                bundle.generate(prompt, max_new_tokens=NEW_TOKENS)[0, begins:].tolist()
            )
            for bundle in (before, after)
        ]
        wanted = tokenizer.decode(tokens[begins : begins + NEW_TOKENS].tolist())
        out.append(Sample(tokenizer.decode(prompt[0].tolist()), wanted, *told))
    return out


def labelled_samples(
    before: Any, after: Any, rows: Any, names: Sequence[str], *, count: int
) -> list[Sample]:
    """Return how two classifiers label the first rows.

    Args:
        before, after: bundles that give `logits` [N, C].
        rows: with `input_ids` and `labels` [N].
        names: of the classes.
        count: how many, at most.
    """
    if not len(rows):
        return []
    some = rows.take(np.arange(min(count, len(rows))))
    told = [_labels(bundle, some, names) for bundle in (before, after)]
    out = []
    for number, label in enumerate(some["labels"].tolist()):
        ids = some["input_ids"][number][some["attention_mask"][number] > 0].tolist()
        text = before.tokenizer.decode(ids)
        out.append(Sample(text, names[int(label)], told[0][number], told[1][number]))
    return out


def confused(bundle: Any, rows: Any, classes: int, *, batch: int = 16) -> np.ndarray:
    """Return how often each class (row) was taken for each other (column), int64 [C, C].

    Args:
        bundle: gives `logits` [N, C].
        rows: with `labels` [N]; the first two thousand are looked at.
        classes: C.
        batch: rows at a time.
    """
    from bridges.finetune.table_data import table_batches

    some = rows.select(np.arange(min(len(rows), CONFUSED_ROWS)))
    counts = np.zeros((classes, classes), np.int64)
    for part in table_batches(some, batch=batch):
        found = _logits(bundle, part).argmax(axis=-1)
        kept = part["weights"] > 0
        np.add.at(counts, (part["labels"][kept], found[kept]), 1)
    return counts


def _labels(bundle: Any, batch: Any, names: Sequence[str]) -> list[str]:
    logits = _logits(bundle, batch)
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return [f"{names[row.argmax()]} ({row.max():.0%})" for row in shares]


def _logits(bundle: Any, batch: Any) -> np.ndarray:
    """Return the logits of a batch's inputs, float64 [N, C]."""
    names = getattr(bundle.model, "input_names", ())
    if hasattr(bundle, "taken"):
        inputs = bundle.taken(**batch)
    else:
        inputs = {name: batch[name] for name in names if name in batch}
    return np.asarray(bundle(**inputs)["logits"], np.float64)

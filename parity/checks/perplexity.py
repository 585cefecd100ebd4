"""Is the perplexity of a text the one transformers gives, on the same windows?"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parity import reference, reference_training
from parity.check import Finding
from parity.packing import single_rows, unpacked
from parity.subject import Subject
from parity.training import language_objective

LARGEST = 1e-4
WINDOW = 128
ROWS = 4
RANDOM_TOKENS = 1000
Batch = dict[str, np.ndarray]


class Perplexity:
    """exp of the summed losses over the number of scored tokens.

    Torch's side is float32, as users run it. A perplexity is one number of many roundings, so the
    bound is a relative one: 1e-4 is a tenth of the last digit that papers print.
    """

    name = "perplexity"
    tolerance = f"relative difference <= {LARGEST:g}"

    def inputs(self, subject: Subject, seed: int) -> list[Batch]:
        """Return the windows that `bridges.dataset` cuts the subject's text into."""
        return windows(subject, seed)

    def ours(self, subject: Subject, inputs: list[Batch]) -> float:
        """Return what `evaluate` and the metric make of the windows."""
        import jax

        from dew.evaluation.perplexity import Perplexity as Metric
        from dew.evaluation.run import evaluate

        metrics: list[Any] = [Metric()]
        objective = language_objective(subject, inputs[0]["text"].shape[1] - 1)
        found = evaluate(
            objective,
            subject.bundle.variables,
            inputs,
            key=jax.random.key(0),
            metrics=metrics,
        )
        return found.scores["val/perplexity"]

    def reference(self, subject: Subject, inputs: list[Batch]) -> float:
        """Return exp of the summed losses of transformers' model over their count."""
        model = subject.checkpoint.model(reference.SINGLE)
        nats, count = 0.0, 0
        for batch in inputs:
            rows = single_rows(unpacked(batch))
            losses = reference_training.token_losses(model, rows)
            nats += float(losses.astype(np.float64).sum())
            count += int((rows.attention_mask[:, 1:] * rows.attention_mask[:, :-1]).sum())
        return math.exp(nats / count)

    def compare(self, ours: float, reference: float) -> Finding:
        """Ask for a relative difference within the bound."""
        difference = abs(ours - reference) / reference
        figures = {"dew": ours, "transformers": reference, "relative": difference}
        passed = bool(difference <= LARGEST)
        reason = "" if passed else f"dew scores {ours:.6g}, transformers {reference:.6g}"
        return Finding(passed, figures, reason)


def windows(subject: Subject, seed: int) -> list[Batch]:
    """Return the subject's text as batches of `bridges.dataset`, at most `WINDOW` tokens a row.

    A subject without a tokenizer is scored on random ids.
    """
    import bridges
    from dew.data import DataPartition

    length = min(WINDOW, subject.longest)
    with tempfile.TemporaryDirectory() as folder:
        if subject.bundle.tokenizer is None:
            path = Path(folder) / "tokens.npy"
            np.save(path, subject.token_stream(RANDOM_TOKENS, seed))
        else:
            path = Path(folder) / "text.txt"
            path.write_text(subject.text, encoding="utf-8")
        data = bridges.dataset(
            path,
            subject.bundle.tokenizer,
            seq_len=length,
            batch=ROWS,
            eval_source=path,
            vocab_size=subject.vocab_size,
        )
        open_windows = data.val
        if open_windows is None:
            raise ValueError("bridges.dataset gave no validation windows")
        return [dict(batch) for batch in open_windows(DataPartition())]

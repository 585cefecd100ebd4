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
STRIDED_WINDOWS = 6
Batch = dict[str, np.ndarray]


class Perplexity:
    """exp of the summed losses over the number of scored tokens, in windows side by side and not.

    Strided windows overlap: each token is scored once, in the first window that holds it, and the
    rest of a window is context that does not count. Torch's side is Hugging Face's recipe for
    that, with labels of -100.

    Torch's side is float32, as users run it. A perplexity is one number of many roundings, so the
    bound is a relative one: 1e-4 is a tenth of the last digit that papers print.
    """

    name = "perplexity"
    tolerance = f"relative difference <= {LARGEST:g}"

    def inputs(self, subject: Subject, seed: int) -> dict[str, Any]:
        """Return the windows that `bridges.dataset` cuts the subject's text into, and a stream."""
        length = min(WINDOW, subject.longest) - 1
        stride = max(length // 3, 1)
        # Some tokens more, so that the last window is a short one.
        tokens = length + (STRIDED_WINDOWS - 1) * stride + stride // 2 + 1
        return {
            "windows": windows(subject, seed),
            "stream": subject.token_stream(tokens, seed),
            "length": length,
            "stride": stride,
        }

    def ours(self, subject: Subject, inputs: dict[str, Any]) -> dict[str, float]:
        """Return what `evaluate` and the metric make of both."""
        from dew.data.windows import WindowRows

        rows = WindowRows(np.asarray(inputs["stream"]), inputs["length"], inputs["stride"])
        places = np.array_split(np.arange(len(rows)), -(-len(rows) // ROWS))
        strided = [rows.take(part) for part in places]
        return {
            "side by side": _evaluated(subject, inputs["windows"]),
            "strided": _evaluated(subject, strided),
        }

    def reference(self, subject: Subject, inputs: dict[str, Any]) -> dict[str, float]:
        """Return exp of the summed losses of transformers' model over their count."""
        model = subject.checkpoint.model(reference.SINGLE)
        nats, count = 0.0, 0
        for batch in inputs["windows"]:
            rows = single_rows(unpacked(batch))
            losses = reference_training.token_losses(model, rows)
            nats += float(losses.astype(np.float64).sum())
            count += int((rows.attention_mask[:, 1:] * rows.attention_mask[:, :-1]).sum())
        stream = np.asarray(inputs["stream"])
        strided = reference_training.strided_loss(
            model, stream, window=inputs["length"] + 1, stride=inputs["stride"]
        )
        return {"side by side": math.exp(nats / count), "strided": math.exp(strided)}

    def compare(self, ours: dict[str, float], reference: dict[str, float]) -> Finding:
        """Ask for relative differences within the bound."""
        figures: dict[str, Any] = {}
        wrong, worst = [], 0.0
        for name, expected in reference.items():
            worst = max(worst, abs(ours[name] - expected) / expected)
            figures |= {f"dew, {name}": ours[name], f"transformers, {name}": expected}
            if not abs(ours[name] - expected) <= LARGEST * expected:
                wrong.append(f"{name}: dew scores {ours[name]:.6g}, transformers {expected:.6g}")
        return Finding(not wrong, {**figures, "relative": worst}, "; ".join(wrong))


def _evaluated(subject: Subject, batches: list[Batch]) -> float:
    import jax

    from dew.evaluation.perplexity import Perplexity as Metric
    from dew.evaluation.run import evaluate

    metrics: list[Any] = [Metric()]
    objective = language_objective(subject, batches[0]["text"].shape[1] - 1)
    found = evaluate(
        objective, subject.bundle.variables, batches, key=jax.random.key(0), metrics=metrics
    )
    return found.scores["val/perplexity"]


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

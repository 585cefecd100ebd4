"""Are dew's text pipelines sooner than transformers' own? float32, each side from strings to dicts.

"2,000 sentences": vectors by MiniLM, 32 a batch. dew sorts them by length; transformers takes them
as they come, and once more sorted, as sentence-transformers does.
"one sentence": text-classification of one sentence after the other, each waited for; the median is
the p50 latency. The sentences are of 4 to 40 words, so that several compiled lengths are used.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from embeddings import BATCH, WORDS, encoder_flops, torch_vectors
from timing import Pace, run_benchmark

SENTENCES, SINGLE = 2000, 64
EAGER, SORTED = "transformers", "transformers, sorted"
DISTILBERT = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForSequenceClassification"],
    "vocab_size": 30522,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "max_position_embeddings": 512,
    "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
    "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
}
"""The sizes of transformers' own default for text-classification, with random weights."""


@dataclass(frozen=True)
class Work:
    """One question: the model's folder, its sizes, and the sentences."""

    folder: Path
    layers: int
    features: int
    mlp_features: int
    classifies: bool
    sentences: tuple[str, ...]

    def flops(self) -> float:
        """Return the FLOPs of the real tokens of one run."""
        whole = encoder_flops(self.sentences, self.layers, self.features, self.mlp_features)
        return whole / len(self.sentences) if self.classifies else whole


def sentences(count: int, shortest: int, longest: int) -> tuple[str, ...]:
    """Return sentences of uneven lengths, the same in every process."""
    generator = np.random.default_rng(0)
    words = WORDS.split()
    counts = np.exp(generator.normal(2.4, 0.7, count)).astype(int).clip(shortest, longest)
    return tuple(" ".join(generator.choice(words, number)) for number in counts)


def dew(work: Work) -> Callable[[], Any]:
    """Return a run of dew's."""
    import dew

    if work.classifies:
        return _one_by_one(dew.pipeline("text-classification", model=work.folder), work.sentences)
    task = dew.pipeline("sentence-similarity", model=work.folder, batch_size=BATCH)
    return lambda: task.representations(work.sentences)


def transformers(work: Work) -> Callable[[], Any]:
    """Return a run of transformers', the sentences as they come."""
    if work.classifies:
        import transformers

        task = transformers.pipeline("text-classification", model=str(work.folder), device="cpu")
        return _one_by_one(task, work.sentences)
    return torch_vectors(work.folder, work.sentences)


def transformers_sorted(work: Work) -> Callable[[], Any]:
    """Return a run of transformers', the longest sentences first."""
    return torch_vectors(work.folder, sorted(work.sentences, key=len, reverse=True))


def _one_by_one(task: Callable[[str], Any], given: Sequence[str]) -> Callable[[], Any]:
    for text in given:
        task(text)
    waiting = cycle(given)
    return lambda: task(next(waiting))


def classifier(folder: Path, tokenizer: Path, config: dict[str, Any]) -> Path:
    """Write a classifier with random weights and the tokenizer of another folder."""
    from parity import random_models

    if not (folder / "tokenizer.json").is_file():
        random_models.save_random(config, folder, seed=0)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((tokenizer / name).read_bytes())
    return folder


SIDES = {"dew": dew, EAGER: transformers, SORTED: transformers_sorted}


def main() -> None:
    """Measure every side, and print the table."""
    from bridges.assets import fetch

    minilm = fetch("minilm")
    root = Path(tempfile.gettempdir()) / "dew-benchmark-classifiers"
    own = json.loads((minilm / "config.json").read_text())
    small = {**own, "architectures": ["BertForSequenceClassification"]}
    many, few = sentences(SENTENCES, 3, 80), sentences(SINGLE, 4, 40)
    shapes = {
        "2,000 sentences": Work(minilm, 6, 384, 1536, False, many),
        "one sentence, MiniLM": Work(
            classifier(root / "minilm", minilm, small), 6, 384, 1536, True, few
        ),
        "one sentence, DistilBERT": Work(
            classifier(root / "distilbert", minilm, DISTILBERT), 6, 768, 3072, True, few
        ),
    }
    run_benchmark(
        __file__,
        shapes,
        SIDES,
        against=EAGER,
        work=lambda name: shapes[name].flops(),
        description=__doc__ or "",
        pace={
            name: Pace(warm=2, block=32, least=256) if work.classifies else Pace(1, 5, 5)
            for name, work in shapes.items()
        },
        without={
            name: ("transformers, sorted",) for name, work in shapes.items() if work.classifies
        },
    )


if __name__ == "__main__":
    main()

"""Does dew embed texts faster than transformers? 256 texts of uneven lengths, MiniLM, float32.

Every side is given the same strings, 32 a batch, and returns unit vectors [256, 384]; tokenizing
counts. transformers takes the texts as they come, and once more sorted by length, as
sentence-transformers does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from timing import run_benchmark

BATCH, TEXTS, LONGEST = 32, 256, 256
EAGER = "transformers eager"
WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had
an they which one you were all her she there would their we him been has when who will no more if
out so up said what its about than into them can only other time new some could these two may first
then do any like my now over such our man me even most made after also did many off before must
well back through years where much your way down should because long each just state those people
mister how too little world good very make year still see own work men day get here old life both
"""


@dataclass(frozen=True)
class Encoder:
    """One sentence encoder: its folder, and what a token costs it."""

    folder: Path
    layers: int
    features: int
    mlp_features: int

    def flops(self) -> float:
        """Return the FLOPs of one pass over the texts' real tokens."""
        return encoder_flops(texts(), self.layers, self.features, self.mlp_features)


def encoder_flops(given: Sequence[str], layers: int, features: int, mlp_features: int) -> float:
    """Return the FLOPs of one pass of an encoder over texts, a token a word and two more."""
    dense = 4 * features**2 + 2 * features * mlp_features
    lengths = np.array([len(text.split()) + 2 for text in given], np.float64)
    attention = 4 * features * np.square(lengths).sum()
    return float(layers * (2 * dense * lengths.sum() + attention))


def texts() -> list[str]:
    """Return texts of 3 to 200 words, most of them short; the same in every process."""
    generator = np.random.default_rng(0)
    words = WORDS.split()
    counts = np.clip(np.exp(generator.normal(3.3, 0.9, TEXTS)).astype(int), 3, 200)
    return [" ".join(generator.choice(words, count)) for count in counts]


def dew(encoder: Encoder) -> Callable[[], Any]:
    """Return a run of dew's, sorted by length and padded to few lengths."""
    import bridges
    from bridges.sentence_pooling import read_pooling
    from dew.inference.embedding import sentence_embeddings

    bundle, given = bridges.load(encoder.folder), texts()
    pooling = read_pooling(encoder.folder)
    return lambda: sentence_embeddings(bundle, given, pooling=pooling, batch_size=BATCH)


def torch_eager(encoder: Encoder) -> Callable[[], Any]:
    """Return a run of transformers', the texts as they come."""
    return torch_vectors(encoder.folder, texts())


def torch_sorted(encoder: Encoder) -> Callable[[], Any]:
    """Return a run of transformers', the longest texts first."""
    return torch_vectors(encoder.folder, sorted(texts(), key=len, reverse=True))


def torch_vectors(folder: Path, given: Sequence[str]) -> Callable[[], Any]:
    """Return a run that makes unit vectors of texts with transformers, in the order given."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    def run() -> Any:
        found = []
        for first in range(0, len(given), BATCH):
            inputs = tokenizer(
                list(given[first : first + BATCH]),
                padding=True,
                truncation=True,
                max_length=LONGEST,
                return_tensors="pt",
            )
            with torch.inference_mode():
                states = model(**inputs).last_hidden_state
                real = inputs["attention_mask"][..., None].to(states.dtype)
                mean = (states * real).sum(1) / real.sum(1)
                found.append(torch.nn.functional.normalize(mean))
        return torch.cat(found).numpy()

    return run


SIDES = {"dew": dew, EAGER: torch_eager, "transformers, sorted": torch_sorted}


def main() -> None:
    """Measure every side, and print the table."""
    from bridges.assets import fetch

    shapes = {"MiniLM": Encoder(fetch("minilm"), 6, 384, 1536)}
    run_benchmark(
        __file__,
        shapes,
        SIDES,
        against=EAGER,
        work=lambda name: shapes[name].flops(),
        description=__doc__ or "",
    )


if __name__ == "__main__":
    main()

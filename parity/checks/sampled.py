"""Do the same draws give transformers' tokens, under temperature, top-k and top-p?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parity import reference
from parity.check import Finding
from parity.generating import Prompts, prompts, room
from parity.reference_sampling import sampled
from parity.subject import Subject

NEW_TOKENS = 8
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 0.9, "top_k": 12, "top_p": 0.9},
)
# Two candidates may be as good as equal; which is drawn is then a matter of rounding on any side.
MARGIN = 1e-4


@dataclass(frozen=True)
class Asked:
    """The prompts, the options of each way, and the noise [rows, tokens, candidates] of each."""

    prompt: Prompts
    ways: list[dict[str, Any]]
    noise: list[np.ndarray]
    ends: list[int]


class Sampled:
    """The ids that are drawn after left-padded prompts of uneven lengths.

    A draw is the largest of the processed scores plus Gumbel noise, -log(-log u) of a uniform u:
    both sides get the same noise. Ends are forbidden, so that every row is as long.
    """

    name = "sampled"
    tolerance = (
        f"{NEW_TOKENS} tokens equal in {len(WAYS)} ways of drawing, up to a draw whose two best "
        f"candidates are within {MARGIN:g}"
    )

    def inputs(self, subject: Subject, seed: int) -> Asked:
        """Return prompts, ways, and the noise that dew's seed stands for."""
        prompt = prompts(subject, seed)[1]
        count = room(subject, prompt, NEW_TOKENS)
        rows = len(prompt["input_ids"])
        ways = [{**way, "max_new_tokens": count, "seed": seed + n} for n, way in enumerate(WAYS)]
        noise = [
            drawn_noise(way["seed"], rows, count, min(way.get("top_k", 0) or size, size))
            for way in ways
            for size in (subject.vocab_size,)
        ]
        return Asked(prompt, ways, noise, _ends(subject))

    def ours(self, subject: Subject, inputs: Asked) -> list[np.ndarray]:
        """Return the bundle's tokens, prompts included."""
        return [
            np.asarray(
                subject.bundle.generate(
                    **inputs.prompt,
                    do_sample=True,
                    repetition_penalty=1.0,
                    min_new_tokens=way["max_new_tokens"],
                    **{"top_k": 0, "top_p": 1.0, **way},
                )
            )
            for way in inputs.ways
        ]

    def reference(
        self, subject: Subject, inputs: Asked
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the tokens that transformers' processed scores and the noise give, in float64.

        Beside them is how far each drawn one was above the second.
        """
        model = subject.checkpoint.model(reference.EXACT)
        found = [
            sampled(model, inputs.prompt, noise, ends=inputs.ends, **way)
            for way, noise in zip(inputs.ways, inputs.noise, strict=True)
        ]
        return [tokens for tokens, _ in found], [margins for _, margins in found]

    def compare(
        self, ours: list[np.ndarray], reference: tuple[list[np.ndarray], list[np.ndarray]]
    ) -> Finding:
        """Ask for the same ids, but behind a draw that was as good as a tie."""
        tokens, ties = 0, 0
        for way, (found, wanted, margins) in enumerate(zip(ours, *reference, strict=True)):
            if found.shape != wanted.shape:
                reason = f"dew gives shape {found.shape}, transformers {wanted.shape}"
                return Finding(False, {"tokens": tokens}, reason)
            start = wanted.shape[1] - margins.shape[1]
            tokens += int(margins.size)
            for row, differs in enumerate(found != wanted):
                if not differs.any():
                    continue
                place = int(differs.argmax())
                if margins[row, place - start] <= MARGIN:
                    ties += 1
                    continue
                reason = (
                    f"way {way}, row {row}, place {place}: dew {found[row, place]}, "
                    f"transformers {wanted[row, place]}"
                )
                return Finding(False, {"tokens": tokens, "ties": ties}, reason)
        return Finding(True, {"tokens": tokens, "ties": ties})


def drawn_noise(seed: int, rows: int, count: int, candidates: int) -> np.ndarray:
    """Return the noise that dew draws, float32 [rows, count, candidates].

    Args:
        seed: of `generate`.
        rows: how many texts.
        count: how many tokens of each.
        candidates: how many ids a draw is among: those of top-k, in the order of their ids.
    """
    import jax

    def one(key: jax.Array, step: jax.Array) -> jax.Array:
        return jax.random.gumbel(jax.random.fold_in(key, step), (candidates,), "float32")

    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
        jax.random.key(seed), jax.numpy.arange(rows)
    )
    steps = jax.numpy.arange(count)
    return np.asarray(jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(keys, steps))


def _ends(subject: Subject) -> list[int]:
    from dew.inference.generation import generation_options

    return list(generation_options(subject.bundle, {}).eos_token_id)

"""Does greedy decoding give transformers' tokens, alone and in a left-padded batch?"""

from __future__ import annotations

import numpy as np

from parity import reference
from parity.check import Finding
from parity.generating import Prompts, prompts, room, same_tokens
from parity.subject import Subject

NEW_TOKENS = 64


class Greedy:
    """The ids of 64 greedy tokens, after one prompt and after a batch of uneven ones."""

    name = "greedy"
    tolerance = f"{NEW_TOKENS} tokens equal"

    def inputs(self, subject: Subject, seed: int) -> list[Prompts]:
        """Return one prompt, and three of uneven lengths padded on the left."""
        return prompts(subject, seed)

    def ours(self, subject: Subject, inputs: list[Prompts]) -> list[np.ndarray]:
        """Return the bundle's tokens, prompts included."""
        return [
            np.asarray(
                subject.bundle.generate(
                    **prompt, max_new_tokens=room(subject, prompt, NEW_TOKENS), do_sample=False
                )
            )
            for prompt in inputs
        ]

    def reference(self, subject: Subject, inputs: list[Prompts]) -> list[np.ndarray]:
        """Return the tokens of transformers' `generate` in float32."""
        model = subject.checkpoint.model(reference.SINGLE)
        return [
            reference.generated(model, prompt, max_new_tokens=room(subject, prompt, NEW_TOKENS))
            for prompt in inputs
        ]

    def compare(self, ours: list[np.ndarray], reference: list[np.ndarray]) -> Finding:
        """Ask for the same ids."""
        return same_tokens(ours, reference)

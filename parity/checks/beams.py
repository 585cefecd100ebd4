"""Does beam search give transformers' tokens, with ends that come early and late?"""

from __future__ import annotations

from typing import Any

import numpy as np

from parity import reference
from parity.check import Finding
from parity.generating import Prompts, prompts, room, same_tokens
from parity.subject import Subject

NEW_TOKENS = 12
# Ends that are common among random ids, so that texts end early and at different lengths.
ENDS = list(range(3, 12))
WAYS: tuple[dict[str, Any], ...] = (
    {"num_beams": 3},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 2.0, "early_stopping": True},
)


class Beams:
    """The ids of beam search over left-padded prompts of uneven lengths."""

    name = "beams"
    tolerance = f"up to {NEW_TOKENS} tokens equal, in {len(WAYS)} ways of searching"

    def inputs(self, subject: Subject, seed: int) -> tuple[Prompts, list[dict[str, Any]]]:
        """Return the prompts, and the options of each way."""
        prompt = prompts(subject, seed)[1]
        shared: dict[str, Any] = {"max_new_tokens": room(subject, prompt, NEW_TOKENS)}
        if "input_ids" in prompt:
            shared |= {"eos_token_id": ENDS, "pad_token_id": subject.padding_id}
        return prompt, [{**shared, **way} for way in WAYS]

    def ours(
        self, subject: Subject, inputs: tuple[Prompts, list[dict[str, Any]]]
    ) -> list[np.ndarray]:
        """Return the bundle's tokens, best texts first."""
        prompt, ways = inputs
        return [
            np.asarray(subject.bundle.generate(**prompt, do_sample=False, **options))
            for options in ways
        ]

    def reference(
        self, subject: Subject, inputs: tuple[Prompts, list[dict[str, Any]]]
    ) -> list[np.ndarray]:
        """Return the tokens of transformers' `generate` in float32."""
        prompt, ways = inputs
        model = subject.checkpoint.model(reference.SINGLE)
        return [reference.generated(model, prompt, **options) for options in ways]

    def compare(self, ours: list[np.ndarray], reference: list[np.ndarray]) -> Finding:
        """Ask for the same ids."""
        return same_tokens(ours, reference)

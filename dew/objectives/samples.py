"""`Samples`: what a language model's preview writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.artifacts import TextSamples, collective_host
from dew.errors import InputRefused
from dew.sampling.rollout import rollout
from dew.typing import Variables


@dataclass(frozen=True)
class Samples:
    """The prompts that a preview continues, and how.

    Args:
        prompts: token ids, a row a prompt; each has one or more.
        max_new_tokens: how many tokens follow at most.
        count: continuations of each prompt.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: keep only the k likeliest tokens, or None.
        top_p: keep only the likeliest tokens that hold this probability, or None.
        ends: ids that end a row.
        decode: turns ids into the text that a tracker shows, or None.

    Raises:
        InputRefused: no prompt, an empty one, or a number out of its range.
    """

    prompts: Sequence[Sequence[int]]
    max_new_tokens: int = 32
    count: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    ends: tuple[int, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def __post_init__(self) -> None:
        if not len(self.prompts) or not all(len(prompt) for prompt in self.prompts):
            raise InputRefused("samples need one prompt or more, each of one token or more")
        if self.max_new_tokens < 1 or self.count < 1 or self.temperature < 0:
            raise InputRefused(
                f"samples of max_new_tokens={self.max_new_tokens}, count={self.count}, "
                f"temperature={self.temperature}: the first two are 1 or more, the last 0 or more"
            )

    @property
    def length(self) -> int:
        """The positions that the longest row needs."""
        return max(len(prompt) for prompt in self.prompts) + self.max_new_tokens

    def draw(
        self, model: Any, variables: Variables, key: jax.Array
    ) -> tuple[TextSamples, ...] | None:
        """Return `count` rows for each prompt, on the host of process 0; None elsewhere.

        A row holds what was written, without its prompt; after its end stands 0.

        Args:
            model: a `CausalTransformer`.
            variables: as the model takes them.
            key: of the draws.
        """
        width = max(len(prompt) for prompt in self.prompts)
        rows = [prompt for prompt in self.prompts for _ in range(self.count)]
        tokens, mask = np.zeros((2, len(rows), width), np.int32)
        for index, prompt in enumerate(rows):
            tokens[index, width - len(prompt) :] = prompt
            mask[index, width - len(prompt) :] = 1
        drawn = rollout(
            model,
            variables,
            jnp.asarray(tokens),
            jnp.asarray(mask),
            steps=self.max_new_tokens,
            key=key,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            ends=self.ends,
        )
        made = collective_host(
            (drawn.tokens[:, width:], drawn.mask[:, width:]),
            phase="samples of a language model",
            held_by="first",
        )
        if made is None:
            return None
        written, real = (np.asarray(part).reshape(-1, self.count, part.shape[1]) for part in made)
        return tuple(
            self._shown(prompt, written[index], real[index])
            for index, prompt in enumerate(self.prompts)
        )

    def _shown(self, prompt: Sequence[int], tokens: np.ndarray, real: np.ndarray) -> TextSamples:
        if self.decode is None:
            return TextSamples(tokens)
        rows = [row[kept > 0].tolist() for row, kept in zip(tokens, real, strict=True)]
        decode = self.decode
        return TextSamples(tokens, decode(list(prompt)), tuple(decode(row) for row in rows))

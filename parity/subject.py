"""The subject of a check: one checkpoint, as dew loads it and as transformers does.

The losses of a model that is no native causal one are those of the next token where it has logits
by token, and the mean squares of its first output where it has not: by token, or by row where that
is all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dew.errors import InputRefused
from parity.corpus import TEXT
from parity.packing import Documents, Tokens
from parity.reference import Checkpoint, inputs_by_name

LONGEST = 48
UNLIMITED = 1 << 20


@dataclass
class Subject:
    """A checkpoint under examination.

    Args:
        name: what reports call it.
        source: its folder, or its GGUF file.
        bundle: what `bridges.load` made of it, with float32 weights and activations.
        checkpoint: the same files for transformers.
        text: the text that token ids are taken from where the checkpoint has a tokenizer.
    """

    name: str
    source: Path
    bundle: Any
    checkpoint: Checkpoint
    text: str = field(default=TEXT, repr=False)

    @property
    def context(self) -> int:
        """The longest sequence that the checks use, in tokens.

        Dynamic rotary scaling only shows past the trained context, so there it is passed.
        """
        if not self.packs:
            return min(LONGEST, self.longest)
        limit = self.bundle.model.position_limit
        return min(LONGEST, limit if limit is not None else 3 * self.bundle.model.max_seq_len // 2)

    @property
    def traced(self) -> bool:
        """Whether the model was traced from torch."""
        from bridges.torch.checkpoint import TracedBundle

        return isinstance(self.bundle, TracedBundle)

    @property
    def packs(self) -> bool:
        """Whether the model is a native causal one, which takes documents packed into rows."""
        return not self.traced and "text-generation" in self.bundle.tasks

    @property
    def longest(self) -> int:
        """How many tokens the model was made for."""
        if self.packs:
            return self.bundle.model.max_seq_len
        limit = (self.bundle if self.traced else self.bundle.model).position_limit
        return UNLIMITED if limit is None else limit

    @property
    def vocab_size(self) -> int:
        """How many ids the model has."""
        if not self.traced:
            return self.bundle.model.vocab_size
        config = self.bundle.config
        return (config | (config.get("text_config") or {}))["vocab_size"]

    def given(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
        """Return the model's inputs for a batch [N, L]; positions count the real tokens."""
        if self.packs:
            return {"input_ids": input_ids, "attention_mask": attention_mask}
        positions = (attention_mask.cumsum(-1) - 1).clip(0)
        named = inputs_by_name(input_ids, attention_mask, positions, self.bundle.config)
        return {name: value for name, value in named.items() if name in self.input_names}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        return tuple(self.bundle.stored["inputs"] if self.traced else self.bundle.model.input_names)

    def why_not(self, check: str) -> str:
        """Return why a check cannot be asked of this subject, or nothing."""
        if check == "tokenizer" and self.bundle.tokenizer is None:
            return "the checkpoint has no tokenizer"
        if check == "perplexity" and "text-generation" not in self.bundle.tasks:
            return f"{self.bundle.family} is no causal language model"
        writes = {"text-generation", "text2text-generation"} & set(self.bundle.tasks)
        if check == "greedy" and not (self.bundle.stored["generates"] if self.traced else writes):
            return f"{self.bundle.family} has no generate in transformers either"
        return ""

    def token_stream(self, length: int, seed: int) -> np.ndarray:
        """Return `length` token ids: the text's from a place drawn by `seed`, or random ones."""
        generator = np.random.default_rng(seed)
        processor = self.bundle.tokenizer
        if processor is None:
            return generator.integers(0, self.vocab_size, length).astype(np.int32)
        ids = np.asarray(processor.encode(self.text, add_special_tokens=False), np.int32)
        start = int(generator.integers(0, len(ids)))
        return np.resize(np.roll(ids, -start), length)

    def batch(self, length: int, seed: int) -> Tokens:
        """Return three rows of `length` tokens: whole, padded on the left, padded on the right."""
        ids = self.token_stream(3 * length, seed).reshape(3, length)
        mask = np.ones_like(ids)
        mask[1, : length // 4] = 0
        mask[2, length - length // 3 :] = 0
        return Tokens(np.where(mask == 1, ids, self.padding_id), mask)

    def documents(self, seed: int) -> Documents:
        """Return four documents of uneven lengths, two of which fill a row of the context."""
        length = min(self.context, self.longest)
        cut = length // 3
        sizes = (cut, length + 1 - cut, length // 2, 2)
        ids = self.token_stream(sum(sizes), seed)
        parts = np.split(ids, np.cumsum(sizes)[:-1])
        return Documents(tuple(parts), length)

    def by_torch_name(self, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return weights or gradients, laid out as the bundle's `params`, by torch name.

        The moves of a weight table are linear and keep every number, so that what holds for a
        weight holds for its gradient.
        """
        if self.traced:
            return {name: np.asarray(value) for name, value in params.items()}
        from bridges.family import family_of
        from bridges.table import out_of_tree

        family = family_of(self.bundle.config)
        found = dict(out_of_tree(family.rows(self.bundle.model), params))
        prefix = family.base_prefix if self.bundle.stored.bare else ""
        return {name.removeprefix(prefix): value for name, value in found.items()}

    @property
    def padding_id(self) -> int:
        """The id that stands in padding; any will do, since nothing may depend on it."""
        processor = self.bundle.tokenizer
        found = None if processor is None else processor.pad_token_id
        return 0 if found is None else found


def load_subject(source: str | Path, *, name: str | None = None, text: str = TEXT) -> Subject:
    """Return the subject behind a folder or a GGUF file, refusing what dew does not know.

    Args:
        source: a Hugging Face folder or one GGUF file.
        name: what reports call it; None takes the last part of `source`.
        text: where token ids are taken from.

    Raises:
        InputRefused: files that `bridges.load` refuses, config keys that it does not know included,
            and models that read no text.
    """
    import bridges

    path = Path(source)
    bundle = bridges.load(str(path), dtype="float32", param_dtype="float32", strict=True)
    subject = Subject(name or path.name, path, bundle, Checkpoint(path), text)
    if "input_ids" not in subject.input_names:
        raise InputRefused(
            f"parity checks models of text; {bundle.family} takes "
            f"{', '.join(subject.input_names[:3])} and no input_ids"
        )
    subject.checkpoint.own_class = not subject.packs
    return subject

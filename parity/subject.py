"""The subject of a check: one checkpoint, as dew loads it and as transformers does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dew.errors import InputRefused
from parity.corpus import TEXT
from parity.packing import Documents
from parity.reference import Checkpoint

LONGEST = 48
UNLIMITED = 1 << 20
UNEVEN = frozenset({"input_ids", "decoder_input_ids", "input_values"})
"""Inputs whose rows may be of unequal lengths."""
READ = {"input_ids", "pixel_values", "input_features", "input_values"}


@dataclass
class Subject:
    """A checkpoint under examination.

    Args:
        name: what reports call it.
        source: its folder, or its GGUF file.
        bundle: what `bridges.load` made of it, with float32 weights and activations.
        checkpoint: the same files for transformers.
        text: the text that token ids are taken from where the checkpoint has a tokenizer.
        image_size: height and width of the images that it is asked about, in pixels; None takes
            the config's.
    """

    name: str
    source: Path
    bundle: Any
    checkpoint: Checkpoint
    text: str = field(default=TEXT, repr=False)
    image_size: tuple[int, int] | None = None

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
    def causal(self) -> bool:
        """Whether the model is a causal language model, whose loss is that of the next token."""
        return "text-generation" in self.bundle.tasks

    @property
    def packs(self) -> bool:
        """Whether the model is a native causal one, which takes documents packed into rows."""
        return self.causal and not self.traced

    @property
    def longest(self) -> int:
        """How many tokens the model was made for."""
        if self.packs:
            return self.bundle.model.max_seq_len
        limit = getattr(self.bundle if self.traced else self.bundle.model, "position_limit", None)
        return UNLIMITED if limit is None else limit

    @property
    def vocab_size(self) -> int:
        """How many ids the model has."""
        if not self.traced:
            return self.bundle.model.vocab_size
        return self.text_config["vocab_size"]

    @property
    def text_config(self) -> dict[str, Any]:
        """The config of the part that reads text."""
        return self.bundle.config | (self.bundle.config.get("text_config") or {})

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        return tuple(self.bundle.stored["inputs"] if self.traced else self.bundle.model.input_names)

    def why_not(self, check: str) -> str:
        """Return why a check cannot be asked of this subject, or nothing."""
        names = set(self.input_names)
        if check == "tokenizer" and self.bundle.tokenizer is None:
            return "the checkpoint has no tokenizer"
        if check == "perplexity" and not self.causal:
            return f"{self.bundle.family} is no causal language model"
        if check == "sampled" and not self.causal:
            return f"{self.bundle.family} is no causal language model"
        if check in ("dtypes", "adapters") and self.traced:
            return f"{self.bundle.family} has no native family, and what is traced is asked not"
        if check == "adapters" and not self.adaptable:
            return f"{self.bundle.family} has no linear maps in its layers"
        if check == "processor" and not self.prepares:
            return "the checkpoint has no processor of images or sounds"
        if check in ("greedy", "beams") and not self.writes:
            return f"{self.bundle.family} has no generate in transformers either"
        masked = names & {"attention_mask", "decoder_attention_mask"}
        if check == "padding" and not (masked and names & UNEVEN):
            return f"{self.bundle.family} takes no attention_mask"
        return ""

    @property
    def adaptable(self) -> bool:
        """Whether low-rank adapters fit a native model's layers."""
        from bridges.adapters import places

        return not self.traced and any(place.layers for place in places(self.bundle))

    @property
    def prepares(self) -> bool:
        """Whether the checkpoint brings what prepares images or sounds."""
        from parity.checks.processor import parts_of

        return any(part is not None for part in parts_of(self.bundle.processor))

    @property
    def writes(self) -> bool:
        """Whether the model continues token ids."""
        if self.traced:
            return self.bundle.stored["generates"] and "input_ids" in self.input_names
        hears = "decoder_input_ids" in self.input_names
        writing = {"text-generation", "text2text-generation"}
        writing |= {"automatic-speech-recognition"} if hears else set()
        return bool(writing & set(self.bundle.tasks))

    def token_stream(self, length: int, seed: int) -> np.ndarray:
        """Return `length` token ids: the text's from a place drawn by `seed`, or random ones."""
        generator = np.random.default_rng(seed)
        processor = self.bundle.tokenizer
        if processor is None:
            return generator.integers(0, self.vocab_size, length).astype(np.int32)
        ids = np.asarray(processor.encode(self.text, add_special_tokens=False), np.int32)
        start = int(generator.integers(0, len(ids)))
        return np.resize(np.roll(ids, -start), length)

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
            found = {name: np.asarray(value) for name, value in params.items()}
            stored = self.bundle.stored.get("stored", {})
            # transformers 5 renames some tensors as it loads them; torch's side goes by the files.
            renamed = {stored[name][0]: value for name, value in found.items() if name in stored}
            return found | renamed
        from bridges.family import family_of
        from bridges.table import out_of_tree

        family = family_of(self.bundle.config)
        found = dict(out_of_tree(family.rows(self.bundle.model), params))
        prefix = family.base_prefix if self.bundle.stored.bare else ""
        return {name.removeprefix(prefix): value for name, value in found.items()}

    @property
    def padding_id(self) -> int:
        """The id that stands in padding; nothing depends on it but how encoders find padding."""
        processor = self.bundle.tokenizer
        named = self.text_config.get("pad_token_id")
        found = named if processor is None else processor.pad_token_id
        return found if isinstance(found, int) and 0 <= found < self.vocab_size else 0


def load_subject(
    source: str | Path,
    *,
    name: str | None = None,
    text: str = TEXT,
    image_size: tuple[int, int] | None = None,
) -> Subject:
    """Return the subject behind a folder or a GGUF file, refusing what dew does not know.

    Args:
        source: a Hugging Face folder or one GGUF file.
        name: what reports call it; None takes the last part of `source`.
        text: where token ids are taken from.
        image_size: of the images that it is asked about, see `Subject`.

    Raises:
        InputRefused: files that `bridges.load` refuses, config keys that it does not know included,
            and models that read neither text nor images nor sound.
    """
    import bridges

    path = Path(source)
    bundle = bridges.load(str(path), dtype="float32", param_dtype="float32", strict=True)
    subject = Subject(name or path.name, path, bundle, Checkpoint(path), text, image_size)
    if not READ & set(subject.input_names):
        raise InputRefused(
            f"parity checks models that take {', '.join(sorted(READ))}; {bundle.family} takes "
            f"{', '.join(subject.input_names[:3])}"
        )
    subject.checkpoint.own_class = not subject.packs
    subject.checkpoint.fixed = not subject.traced
    return subject

"""A subject in the reference's process: what the other process knows of it, and the torch side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.reference import Checkpoint
from parity.subject import Subject, load_subject

KNOWN = (
    *("context", "longest", "vocab_size", "padding_id", "input_names"),
    *("traced", "causal", "packs", "writes"),
)
"""The properties of a subject that its bundle gives, and the reference is told."""


@dataclass(frozen=True)
class Facts:
    """What is told of a subject.

    Args:
        name: what reports call it.
        source: its folder, or its GGUF file.
        text: where token ids are taken from.
        image_size: of the images that it is asked about, or None.
        own_class: see `parity.reference.Checkpoint`.
        fixed: see there.
        known: the properties of `KNOWN`, by name.
    """

    name: str
    source: Path
    text: str
    image_size: tuple[int, int] | None
    own_class: bool
    fixed: bool
    known: dict[str, Any]


def facts_of(subject: Subject) -> Facts:
    """Return what the reference is told of a subject."""
    return Facts(
        subject.name,
        subject.source.resolve(),
        subject.text,
        subject.image_size,
        subject.checkpoint.own_class,
        subject.checkpoint.fixed,
        {name: getattr(subject, name) for name in KNOWN},
    )


class FarSubject:
    """A subject without dew's side, which is loaded if something asks for it.

    Args:
        facts: what is told of it.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.name, self.source = facts.name, facts.source
        self.text, self.image_size = facts.text, facts.image_size
        self.checkpoint = Checkpoint(facts.source, facts.own_class, facts.fixed)
        self._whole: Subject | None = None

    @property
    def loaded(self) -> bool:
        """Whether something asked for what only dew's side knows."""
        return self._whole is not None

    def __getattr__(self, name: str) -> Any:
        """Return what is told of the subject, else what dew's side makes of its files."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self.facts.known:
            return self.facts.known[name]
        if self._whole is None:
            facts = self.facts
            self._whole = load_subject(
                facts.source, name=facts.name, text=facts.text, image_size=facts.image_size
            )
        return getattr(self._whole, name)

"""What each module of a torch model is, as a plain value that a later start reads without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

LINEAR, CONV1D = "Linear", "Conv1D"


@dataclass(frozen=True)
class ModuleKinds:
    """The modules that hold parameters of their own.

    Attributes:
        kinds: name to `LINEAR` for torch's linear layers and their subclasses, `CONV1D` for
            transformers' (a linear map stored [inputs, outputs]), else the class's name.
        output: the name of the output embedding, or None.
        canonical: every name of a parameter to the one that it is kept under.
    """

    kinds: Mapping[str, str]
    output: str | None
    canonical: Mapping[str, str]

    @classmethod
    def of(cls, module: Any) -> ModuleKinds:
        """Return the kinds of a torch module's parts."""
        from torch import nn

        from bridges.torch.tracing import canonical_names

        kinds: dict[str, str] = {}
        for name, part in module.named_modules():
            if any(True for _ in part.named_parameters(recurse=False)):
                kinds[name] = LINEAR if isinstance(part, nn.Linear) else type(part).__name__
        head = getattr(module, "get_output_embeddings", lambda: None)()
        output = next((n for n, part in module.named_modules() if part is head), None)
        return cls(kinds, None if head is None else output, canonical_names(module))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ModuleKinds:
        """Return what `to_record` gave, of a checkpoint's record."""
        return cls(record["kinds"], record["output"], record["canonical"])

    def to_record(self) -> dict[str, Any]:
        """Return the kinds as JSON takes them, without the canonical names."""
        return {"kinds": dict(self.kinds), "output": self.output}

    def weight(self, module: str) -> str:
        """Return the name of the parameter that holds a module's weight."""
        name = f"{module}.weight" if module else "weight"
        return self.canonical.get(name, name)

    @cached_property
    def shared(self) -> dict[str, list[str]]:
        """Each module whose weight others hold too, with those others."""
        holders: dict[str, list[str]] = {}
        for alias, first in self.canonical.items():
            owner, _, leaf = alias.rpartition(".")
            if leaf == "weight":
                holders.setdefault(first, []).append(owner)
        return {
            owner: [other for other in owners if other != owner]
            for owners in holders.values()
            if len(owners) > 1
            for owner in owners
        }

"""Several named adapters beside one base model, of which one at most is active."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from bridges.adapter_weighted import refuse_sum, summed_native
from dew.errors import InputRefused, UnknownName, nearest, shown
from dew.inference.bundle import Bundle
from dew.nn.lora import LoRA, merged
from dew.nn.quantized import widened

LOW = "lora"


class NamedAdapters(ABC):
    """What a bundle with adapters offers; the names of its methods are PEFT's.

    A bundle is a value: each method returns another one, and both share the base model's arrays.

    Attributes:
        base: the bundle without any.
        adapters: name to what each is made of.
        active: the name of the one that computes; None where none does.
        is_merged: whether the active one stands in the weights instead of beside them.
    """

    base: Any
    adapters: Mapping[str, Any]
    active: str | None
    is_merged: bool

    @abstractmethod
    def with_adapters(self, adapters: Mapping[str, Any], active: str | None) -> Self:
        """Return a bundle of the same base with these adapters, of which `active` computes."""

    @abstractmethod
    def merge_adapter(self) -> Self:
        """Return the bundle with the active adapter in its weights; the base is kept beside."""

    def set_adapter(self, name: str) -> Self:
        """Return the bundle with another adapter active.

        Raises:
            UnknownName: there is none of that name.
        """
        return self.with_adapters(self.adapters, self._known(name))

    def disable_adapter(self) -> Self:
        """Return the bundle with no adapter active: it computes as the base does, to the bit."""
        return self.with_adapters(self.adapters, None)

    def delete_adapter(self, name: str) -> Self:
        """Return the bundle without one adapter; if it was the active one, none is.

        Raises:
            UnknownName: there is none of that name.
        """
        self._known(name)
        rest = {other: value for other, value in self.adapters.items() if other != name}
        return self.with_adapters(rest, None if self.active == name else self.active)

    def add_weighted_adapter(
        self, adapters: Sequence[str], weights: Sequence[float], name: str, combination_type: str
    ) -> Self:
        """Return the bundle with one more adapter, the weighted sum of some.

        Args:
            adapters: names of those that are added up.
            weights: of each.
            name: of the sum.
            combination_type: "cat", the exact sum of the products; the rank is the sum of theirs.

        Raises:
            UnknownName: there is none of a name.
            InputRefused: another way to combine them; adapters that do not add up.
        """
        refuse_sum(len(adapters), weights, combination_type)
        made = self.summed([self.adapters[self._known(other)] for other in adapters], weights)
        return self.with_adapters({**self.adapters, name: made}, self.active)

    @abstractmethod
    def summed(self, parts: Sequence[Any], weights: Sequence[float]) -> Any:
        """Return the weighted sum of adapters."""

    def unmerge_adapter(self) -> Self:
        """Return the bundle with the adapter beside the weights again, which are the base's."""
        return self.with_adapters(self.adapters, self.active)

    def _known(self, name: str) -> str:
        if name not in self.adapters:
            known = ", ".join(self.adapters) or "none"
            raise UnknownName(
                f"no adapter {shown(name)}{nearest(name, self.adapters)}; the bundle has {known}"
            )
        return name


@dataclasses.dataclass(frozen=True)
class Trained:
    """One adapter of a native model.

    Attributes:
        lora: its settings.
        params: its trained parameters, as `LoRA.init` lays them out.
    """

    lora: LoRA
    params: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class AdaptedBundle(NamedAdapters, Bundle):
    """A native model with adapters; see `NamedAdapters`.

    With one active, `variables` hold the base's params, but for leaves that were trained whole,
    and the adapter under "lora"; `adapter` is its `LoRA`.
    """

    base: Any = None
    adapters: Mapping[str, Trained] = dataclasses.field(default_factory=dict)
    active: str | None = None
    is_merged: bool = False

    @classmethod
    def over(cls, base: Bundle, adapters: Mapping[str, Trained], active: str | None) -> Self:
        """Return a bundle of a plain one and adapters."""
        fields = {f.name: getattr(base, f.name) for f in dataclasses.fields(Bundle)}
        rest = {"base": base, "adapters": dict(adapters), "active": active}
        if active is None:
            return cls(**{**fields, "adapter": None}, **rest)
        lora, params = adapters[active].lora, adapters[active].params
        variables = {
            **base.variables,
            "params": lora.with_whole(base.variables["params"], params),
            LOW: lora.collection(params),
        }
        model = scaled(base.model, lora.scale)
        return cls(**{**fields, "variables": variables, "model": model, "adapter": lora}, **rest)

    def with_adapters(self, adapters: Mapping[str, Any], active: str | None) -> Self:
        """Return a bundle of the same base with these adapters, of which `active` computes."""
        return self.over(self.base, adapters, active)

    def summed(self, parts: Sequence[Any], weights: Sequence[float]) -> Trained:
        """Return the weighted sum of adapters."""
        return Trained(*summed_native([(part.lora, part.params) for part in parts], weights))

    def merge_adapter(self) -> Self:
        """Return the bundle with the active adapter in its weights; the base is kept beside.

        Raises:
            InputRefused: no adapter is active.
        """
        plain = merged_bundle(self)
        return dataclasses.replace(
            self, model=plain.model, variables=plain.variables, adapter=None, is_merged=True
        )

    def generate(
        self, input_ids: Any = None, attention_mask: Any = None, **options: Any
    ) -> np.ndarray:
        """Continue each prompt; see `Bundle.generate`."""
        if LOW not in self.variables or not (self.adapter.sites or self.adapter.dora):
            return super().generate(input_ids, attention_mask, **options)
        return self._plain.generate(input_ids, attention_mask, **options)

    @cached_property
    def _plain(self) -> Bundle:
        """The model whose kernels hold the adapter: what a decode engine of plain maps takes."""
        return merged_bundle(self)


def scaled(model: Any, scale: float) -> Any:
    """Return the model with the factor of adapters that do not bring their own, if it has one."""
    if "adapter_scale" not in {field.name for field in dataclasses.fields(model)}:
        return model
    return model.clone(adapter_scale=scale)


def plain_of(bundle: Bundle) -> Bundle:
    """Return the bundle without adapters."""
    if isinstance(bundle, AdaptedBundle):
        return bundle.base
    if LOW not in bundle.variables and bundle.adapter is None:
        return bundle
    rest = {name: value for name, value in bundle.variables.items() if name != LOW}
    return bundle.replace(model=scaled(bundle.model, 1.0), variables=rest, adapter=None)


def merged_bundle(bundle: Bundle) -> Bundle:
    """Return a plain bundle whose kernels hold the active adapter, summed in float32.

    Raises:
        InputRefused: a bundle without an adapter, or with none active.
    """
    if bundle.adapter is None or LOW not in bundle.variables:
        raise InputRefused("the bundle has no adapter to merge")
    scale = getattr(bundle.model, "adapter_scale", 1.0)
    params = merged(bundle.variables["params"], bundle.variables[LOW], scale)
    plain = plain_of(bundle)
    return plain.replace(variables={**plain.variables, "params": widened(params)})

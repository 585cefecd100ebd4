"""Models that learn by their named outputs: classifiers, taggers, readers, native and traced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bridges.finetune.learner import Learner, NativeText, TracedText
from dew.errors import InputRefused
from dew.objectives.criteria import ClassLoss, Criterion


@dataclass(frozen=True)
class NativeOutputs(NativeText):
    """A model of a native family that is trained by its outputs; see `Learner`.

    Args:
        criterion: what they are held to.
    """

    criterion: Criterion = field(default_factory=ClassLoss)

    def objective(self, seq_len: int) -> Any:
        """Return the criterion's loss over the model's own parameters."""
        from dew.objectives.outputs import OutputsObjective

        model = self._model()

        def forward(variables: Any, inputs: Mapping[str, Any], key: Any) -> Any:
            return model.apply(variables, **inputs, method="outputs"), {}

        axes = {"params": model.parameter_axes()}
        return OutputsObjective(forward, model.input_names, self.criterion, axes=axes)

    def adapter_objective(self, seq_len: int, asked: Any) -> Any:
        """Refuse."""
        raise InputRefused("an adapter is trained on text alone so far; leave out --use_peft")


@dataclass(frozen=True)
class TracedOutputs(TracedText):
    """A traced model that is trained by its outputs, in torch's training mode; see `Learner`.

    Args:
        criterion: what they are held to.
    """

    criterion: Criterion = field(default_factory=ClassLoss)

    def objective(self, seq_len: int) -> Any:
        """Return the criterion's loss over the model's own parameters."""
        from dew.objectives.outputs import OutputsObjective
        from dew.training.state import wide

        bundle = self.bundle
        dtypes = {name: leaf.dtype for name, leaf in bundle.variables["params"].items()}

        def forward(variables: Any, inputs: Mapping[str, Any], key: Any) -> Any:
            options = {} if key is None else {"train": True, "rngs": {"dropout": key}}
            # The model was traced for the dtypes that it was loaded in.
            params = {n: leaf.astype(dtypes[n]) for n, leaf in variables["params"].items()}
            held, given = {**variables, "params": params}, bundle.taken(**inputs)
            return bundle.model.apply(held, **given, mutable=["buffers"], **options)

        def begin(variables: Any) -> Any:
            return {**variables, "params": wide(variables["params"])}

        axes = {"params": dict(bundle.axes)}
        return OutputsObjective(
            forward, self.input_names, self.criterion, axes=axes, begin=begin
        )


def outputs_learner(bundle: Any, criterion: Criterion, *, remat: bool = False) -> Learner:
    """Return how a bundle learns by its outputs.

    Args:
        bundle: from `bridges.load`, or without values for a plan.
        criterion: what its outputs are held to.
        remat: recompute activations in the backward pass.
    """
    from bridges.torch.checkpoint import TracedBundle

    kind = TracedOutputs if isinstance(bundle, TracedBundle) else NativeOutputs
    return kind(bundle, remat, criterion)

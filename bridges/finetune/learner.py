"""What a run trains: a loaded model with the objectives it can have, native and traced alike.

`learner_of` is the one place where a run's road is chosen, from the bundle. All else in this
package asks the learner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dew.errors import InputRefused, shown

NARROW = ("bfloat16", "float16")


@dataclass(frozen=True)
class LowRank:
    """An adapter that was asked for.

    Args:
        rank: of the adapter.
        alpha: the adapter is scaled by alpha / rank.
        targets: module names as in the checkpoint, or one regular expression over whole names;
            empty for every linear map of the layers.
        dropout: the share of a map's inputs that the adapter does not see in a step.
        rslora: scale by alpha / sqrt(rank) instead.
        dora: train each output's magnitude too.
        saved: modules that are trained whole beside the adapter. The head of a classifier is in
            any case, as PEFT's task types have it.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    dropout: float = 0.0
    rslora: bool = False
    dora: bool = False
    saved: tuple[str, ...] = ()

    def settings(self, heads: tuple[str, ...] = ()) -> Any:
        """Return PEFT's settings.

        Args:
            heads: modules of the task that are trained whole.
        """
        from bridges.adapter_settings import ALL, AdapterSettings, is_name

        targets: Any = self.targets
        if not targets or [name.lower() for name in targets] == [ALL]:
            targets = None
        elif len(targets) == 1 and not is_name(targets[0]):
            targets = targets[0]
        return AdapterSettings(
            rank=self.rank,
            alpha=self.alpha,
            targets=targets,
            dropout=self.dropout,
            rslora=self.rslora,
            dora=self.dora,
            saved=tuple(dict.fromkeys((*self.saved, *heads))),
        )


@dataclass(frozen=True)
class Learner(ABC):
    """One loaded model, as a run asks for it.

    Args:
        bundle: the model as it was loaded.
        remat: recompute activations in the backward pass.

    Attributes:
        masks_documents: whether several documents can share a row and not see each other.
    """

    bundle: Any
    remat: bool = False
    masks_documents: ClassVar[bool] = True

    @property
    def no_export(self) -> str | None:
        """Why the whole model cannot be written after training; None where it can."""
        return None

    @property
    def note(self) -> str | None:
        """What a user should know before the first step, in one line; None where nothing."""
        return None

    @property
    @abstractmethod
    def position_limit(self) -> int | None:
        """How many positions the model has; None where it names no number."""

    @property
    @abstractmethod
    def vocab_size(self) -> int | None:
        """How many ids the model has; None where it names no number."""

    @property
    @abstractmethod
    def input_names(self) -> tuple[str, ...]:
        """The inputs that the model takes, by Hugging Face's names."""

    @abstractmethod
    def shapes(self) -> Mapping[str, Any]:
        """Return the shapes of the variables."""

    @abstractmethod
    def objective(self, seq_len: int) -> Any:
        """Return the objective over all of the model's parameters."""

    @abstractmethod
    def adapter_objective(self, seq_len: int, asked: LowRank) -> Any:
        """Return the objective over an adapter's parameters, the model's frozen."""

    @abstractmethod
    def adapted(self, params: Any, asked: LowRank) -> Any:
        """Return the bundle with a trained adapter laid over it."""

    @abstractmethod
    def decays(self, params: Any) -> Any:
        """Return which of the model's parameters decay: all but biases and scales of norms."""


def learner_of(bundle: Any, *, remat: bool = False) -> Learner:
    """Return how a bundle learns to write text.

    Args:
        bundle: from `bridges.load`, or without values for a plan.
        remat: recompute activations in the backward pass.

    Raises:
        InputRefused: a model that is no causal language model.
    """
    from bridges.torch.checkpoint import TracedBundle

    if isinstance(bundle, TracedBundle):
        _refuse_traced(bundle)
        return TracedText(bundle, remat)
    if "text-generation" not in bundle.tasks:
        raise InputRefused(_no_causal_model(bundle))
    return NativeText(bundle, remat)


@dataclass(frozen=True)
class NativeText(Learner):
    """A model of a native family that writes text; see `Learner`."""

    @property
    def position_limit(self) -> int | None:
        """The model's."""
        return self.bundle.model.position_limit

    @property
    def vocab_size(self) -> int | None:
        """The model's."""
        return self.bundle.model.vocab_size

    @property
    def input_names(self) -> tuple[str, ...]:
        """The model's."""
        return tuple(self.bundle.model.input_names)

    def shapes(self) -> Mapping[str, Any]:
        """Return the shapes of the variables."""
        return {"params": self.bundle.model.parameter_shapes(), **self.bundle.variables}

    def objective(self, seq_len: int) -> Any:
        """Return next-token prediction over the model's own parameters."""
        from dew.objectives.lm import LMObjective

        return LMObjective(self._model(), seq_len)

    def adapter_objective(self, seq_len: int, asked: LowRank) -> Any:
        """Return next-token prediction over adapters."""
        from dew.objectives.lm import LoRAObjective

        return LoRAObjective(self._model(), seq_len, self._lora(asked))

    def adapted(self, params: Any, asked: LowRank) -> Any:
        """Return the bundle with a trained adapter laid over it."""
        from bridges.adapters import laid_over

        return laid_over(self.bundle, self._lora(asked), params)

    def decays(self, params: Any) -> Any:
        """Return which parameters decay, by the names of dew's leaves."""
        from dew.training.optimizers import decayed

        return decayed(params)

    def _model(self) -> Any:
        return self.bundle.model.clone(remat=self.remat)

    def _lora(self, asked: LowRank) -> Any:
        from bridges.adapters import lora_of, task_heads

        return lora_of(self.bundle, asked.settings(task_heads(self.bundle)))


@dataclass(frozen=True)
class TracedText(Learner):
    """A traced model that writes text; see `Learner`.

    Its forward knows which tokens are real and nothing of documents, so each document has a row
    of its own. No dropout that its config names is drawn.
    """

    masks_documents = False

    @property
    def position_limit(self) -> int | None:
        """The config's."""
        return self.bundle.position_limit

    @property
    def vocab_size(self) -> int | None:
        """The config's."""
        return self.bundle.vocab_size

    @property
    def no_export(self) -> str | None:
        """Say so where transformers joins or splits the checkpoint's tensors as it loads them."""
        if self.bundle.stored["direct"]:
            return None
        return (
            f"{self.bundle.family}: transformers joins or splits this checkpoint's tensors as it "
            "loads them, and dew has no way back to write the whole model"
        )

    @property
    def note(self) -> str | None:
        """Say so where loading rounded the weights: a traced model computes in one dtype."""
        record = self.bundle.stored
        pairs = [
            (theirs, record["dtypes"].get(record["canonical"].get(name, name)))
            for name, (_, theirs) in record.get("stored", {}).items()
        ]
        rounded = [ours for theirs, ours in pairs if theirs == "float32" and ours in NARROW]
        if not rounded:
            return None
        return (
            f"dtype: {self.bundle.family} is traced, so its float32 weights begin rounded to "
            f"{rounded[0]}; what is trained is float32 from there on"
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """Those of torch's forward."""
        return tuple(self.bundle.stored["inputs"])

    def shapes(self) -> Mapping[str, Any]:
        """Return the shapes of the variables."""
        return self.bundle.variables

    def objective(self, seq_len: int) -> Any:
        """Return next-token prediction over the model's own parameters."""
        from bridges.torch.objectives import TracedLMObjective

        return TracedLMObjective(self.bundle, seq_len, remat=self.remat)

    def adapter_objective(self, seq_len: int, asked: LowRank) -> Any:
        """Return next-token prediction over adapters."""
        from bridges.torch.objectives import AdapterObjective

        return AdapterObjective(self.objective(seq_len), self._adapter(asked))

    def adapted(self, params: Any, asked: LowRank) -> Any:
        """Return the bundle with a trained adapter laid over it."""
        from bridges.torch.lora import adapted

        return adapted(self.bundle, self._adapter(asked), params)

    def decays(self, params: Mapping[str, Any]) -> dict[str, bool]:
        """Return which parameters decay, by torch's names and classes.

        Source: `Trainer.get_decay_parameter_names` of transformers 5.24.
        """
        kinds = self.bundle.stored["kinds"]

        def kept(name: str) -> bool:
            kind = kinds.get(name.rpartition(".")[0], "")
            return "bias" not in name.lower() and "norm" not in kind.lower()

        return {name: kept(name) for name in params}

    def _adapter(self, asked: LowRank) -> Any:
        from bridges.torch.adapted_modules import task_heads
        from bridges.torch.lora import adapter_from

        return adapter_from(self.bundle, asked.settings(task_heads(self.bundle)))


def _refuse_traced(bundle: Any) -> None:
    """Refuse a traced model whose next token cannot be learnt from those before it."""
    if not bundle.stored["generates"] or bundle.config.get("is_encoder_decoder"):
        raise InputRefused(_no_causal_model(bundle))
    if bundle.stored["reads_ahead"]:
        raise InputRefused(
            f"{bundle.family} as its config has it reads later tokens too, so that the next one "
            'would not be predicted but looked up; set "is_decoder": true in its config.json, if '
            "it was trained to write"
        )


def _no_causal_model(bundle: Any) -> str:
    return (
        f"{bundle.source or bundle.family} is no causal language model: its config.json names "
        f"{shown(bundle.config.get('architectures'))} of model type {shown(bundle.family)}; "
        "give a checkpoint that writes text"
    )

"""Models that learn by their named outputs: classifiers, taggers, readers, native and traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bridges.finetune.learner import Learner, LowRank, NativeText, TracedText
from dew.errors import InputRefused
from dew.nn.convolution import FOLLOWED
from dew.nn.dropout import streams
from dew.nn.heads import SentencePooling
from dew.objectives.criteria import ClassLoss, Criterion
from dew.objectives.outputs import Writer

MadeWriter = Callable[[Any], Writer]
"""`writer(bundle)`: an adapter lies over another bundle than the one that was loaded."""


def learnt_outputs(model: Any, variables: Any, inputs: Mapping[str, Any], key: Any) -> Any:
    """Return a native model's outputs, and the collections that changed.

    Args:
        model: the linen module.
        variables: its variables.
        inputs: by Hugging Face's names.
        key: draws the dropout; None where the model does not learn.
    """
    follows = key is not None and bool(getattr(model, "follow", 0.0))
    made = model.apply(
        variables,
        **inputs,
        method="outputs",
        rngs=streams(model, key),
        mutable=[FOLLOWED] if follows else False,
    )
    return made if follows else (made, {})


@dataclass(frozen=True)
class NativeOutputs(NativeText):
    """A model of a native family that is trained by its outputs; see `Learner`.

    Args:
        criterion: what they are held to.
        writer: makes of a bundle what it writes in evaluation; or None.
    """

    criterion: Criterion = field(default_factory=ClassLoss)
    writer: MadeWriter | None = None

    @property
    def position_limit(self) -> int | None:
        """The model's, where it reads tokens."""
        return getattr(self.bundle.model, "position_limit", None)

    @property
    def vocab_size(self) -> int | None:
        """The model's, where it reads tokens."""
        return getattr(self.bundle.model, "vocab_size", None)

    def objective(self, seq_len: int) -> Any:
        """Return the criterion's loss over the model's own parameters."""
        from dew.objectives.outputs import OutputsObjective

        model = self._model()

        def forward(variables: Any, inputs: Mapping[str, Any], key: Any) -> Any:
            return learnt_outputs(model, variables, inputs, key)

        axes = {"params": model.parameter_axes()}
        names, criterion = model.input_names, self.criterion
        return OutputsObjective(forward, names, criterion, axes=axes, writer=self._written())

    def _written(self) -> Writer | None:
        return None if self.writer is None else self.writer(self.bundle)

    def _model(self) -> Any:
        model = self.bundle.model
        if hasattr(model, "remat"):
            return model.clone(remat=self.remat)
        if self.remat:
            raise InputRefused(
                f"activation_checkpointing: {self.bundle.family} keeps all its activations; leave "
                "it out, and take a smaller batch with gradient_accumulation_steps"
            )
        return model

    def adapter_objective(self, seq_len: int, asked: LowRank) -> Any:
        """Return the loss over adapters and the task's head, the rest of the model frozen."""
        from bridges.adapter_bundle import scaled
        from dew.objectives.adapted import AdaptedObjective

        lora = self._lora(asked)
        held = self.bundle.replace(model=scaled(self.bundle.model, lora.scale))
        return AdaptedObjective(replace(self, bundle=held).objective(seq_len), lora)


@dataclass(frozen=True)
class TracedOutputs(TracedText):
    """A traced model that is trained by its outputs, in torch's training mode; see `Learner`.

    Args:
        criterion: what they are held to.
        writer: makes of a bundle what it writes in evaluation; or None.
    """

    criterion: Criterion = field(default_factory=ClassLoss)
    writer: MadeWriter | None = None

    def objective(self, seq_len: int) -> Any:
        """Return the criterion's loss over the model's own parameters."""
        from dew.objectives.outputs import OutputsObjective

        learner = self

        class Outputs(OutputsObjective):
            """The outputs of a traced module, which takes low-rank sums beside its own maps."""

            def low_rank(self, adapter: Any) -> OutputsObjective:
                """Return this objective over params that hold an adapter's leaves too."""
                from bridges.torch.low_rank import LowRankModule

                return made(LowRankModule(learner.bundle.model, adapter))

        def made(module: Any) -> OutputsObjective:
            forward, begin = learner.forward(module)
            return Outputs(
                forward,
                learner.input_names,
                learner.criterion,
                axes={"params": dict(learner.bundle.axes)},
                begin=begin,
                writer=None if learner.writer is None else learner.writer(learner.bundle),
            )

        return made(self.bundle.model)

    def forward(self, module: Any = None) -> tuple[Any, Any]:
        """Return how the outputs come of a batch, and what the variables become before that.

        Args:
            module: what computes them; None for the bundle's own.
        """
        from dew.training.state import wide

        bundle = self.bundle
        model = bundle.model if module is None else module
        dtypes = {name: leaf.dtype for name, leaf in bundle.variables["params"].items()}

        def forward(variables: Any, inputs: Mapping[str, Any], key: Any) -> Any:
            options = {} if key is None else {"train": True, "rngs": {"dropout": key}}
            # The model was traced for the dtypes that it was loaded in.
            own = variables["params"].items()
            params = {n: leaf.astype(dtypes.get(n, leaf.dtype)) for n, leaf in own}
            held, given = {**variables, "params": params}, bundle.taken(**inputs)
            return model.apply(held, **given, mutable=["buffers"], **options)

        def begin(variables: Any) -> Any:
            return {**variables, "params": wide(variables["params"])}

        return forward, begin


def outputs_learner(
    bundle: Any, criterion: Criterion, *, remat: bool = False, writer: MadeWriter | None = None
) -> Learner:
    """Return how a bundle learns by its outputs.

    Args:
        bundle: from `bridges.load`, or without values for a plan.
        criterion: what its outputs are held to.
        remat: recompute activations in the backward pass.
        writer: makes of a bundle what it writes in evaluation; or None.
    """
    from bridges.torch.checkpoint import TracedBundle

    kind = TracedOutputs if isinstance(bundle, TracedBundle) else NativeOutputs
    return kind(bundle, remat, criterion, writer)


@dataclass(frozen=True)
class NativeAnswers(NativeOutputs):
    """A native model with an encoder and a decoder that learns to write; see `Learner`."""

    def objective(self, seq_len: int) -> Any:
        """Return the loss of the labels, a chunk of the vocabulary's logits at a time."""
        from dew.objectives.answers import AnswerObjective

        model = self._model()
        axes = {"params": model.parameter_axes()}
        return AnswerObjective(model, writer=self._written(), axes=axes)

    def decays(self, params: Any) -> Any:
        """Return which parameters decay: no bias, those by distance and of the logits among them.

        Source: `Trainer.get_decay_parameter_names` of transformers 5.24, which goes by the names
        `relative_attention_bias` and `final_logits_bias`.
        """
        import jax

        from dew.objectives.answers import BIASES

        return {
            name: jax.tree.map(lambda kept, own=name: kept and own not in BIASES, part)
            for name, part in super().decays(params).items()
        }


def answers_learner(
    bundle: Any, *, remat: bool = False, writer: MadeWriter | None = None
) -> Learner:
    """Return how a bundle with an encoder and a decoder learns to write.

    Args:
        bundle: from `bridges.load`, or without values for a plan.
        remat: recompute activations in the backward pass.
        writer: makes of a bundle what it writes in evaluation; or None.
    """
    from bridges.torch.checkpoint import TracedBundle
    from dew.objectives.answers import LabelLoss

    kind = TracedOutputs if isinstance(bundle, TracedBundle) else NativeAnswers
    return kind(bundle, remat, LabelLoss(), writer)


@dataclass(frozen=True)
class Grouping:
    """What a model of sentence vectors learns from.

    Args:
        texts: how many texts a row has.
        kind: of the loss; see `dew.objectives.sentences.SentencesObjective`.
        pooling: how a text's vector is made of its tokens' states.
    """

    texts: int
    kind: str
    pooling: SentencePooling


@dataclass(frozen=True)
class NativeSentences(NativeOutputs):
    """A native encoder that learns vectors of texts; see `Learner`.

    Args:
        grouping: what of.
    """

    grouping: Grouping | None = None

    def objective(self, seq_len: int) -> Any:
        """Return the loss of the vectors."""
        assert self.grouping is not None
        model = self._model()

        def embed(variables: Any, inputs: Mapping[str, Any], key: Any) -> Any:
            found, changed = learnt_outputs(model, variables, inputs, key)
            return _vectors(found, inputs, self.grouping), changed

        return _sentences(self, embed, {"params": model.parameter_axes()}, dict)


@dataclass(frozen=True)
class TracedSentences(TracedOutputs):
    """A traced encoder that learns vectors of texts; see `Learner`.

    Args:
        grouping: what of.
    """

    grouping: Grouping | None = None

    def objective(self, seq_len: int) -> Any:
        """Return the loss of the vectors."""
        assert self.grouping is not None
        forward, begin = self.forward()

        def embed(variables: Any, inputs: Mapping[str, Any], key: Any) -> Any:
            found, changed = forward(variables, inputs, key)
            return _vectors(found, inputs, self.grouping), changed

        return _sentences(self, embed, {"params": dict(self.bundle.axes)}, begin)


def sentences_learner(bundle: Any, grouping: Grouping, *, remat: bool = False) -> Learner:
    """Return how a bundle learns vectors of texts.

    Args:
        bundle: from `bridges.load` without a head, or without values for a plan.
        grouping: what of.
        remat: recompute activations in the backward pass.
    """
    from bridges.torch.checkpoint import TracedBundle

    kind = TracedSentences if isinstance(bundle, TracedBundle) else NativeSentences
    return kind(bundle, remat, grouping=grouping)


def _vectors(found: Mapping[str, Any], inputs: Mapping[str, Any], grouping: Any) -> Any:
    from dew.nn.heads import sentence_embedding

    hidden, mask = found["last_hidden_state"], inputs.get("attention_mask")
    return sentence_embedding(hidden, mask, grouping.pooling)


def _sentences(learner: Any, embed: Any, axes: Mapping[str, Any], begin: Any) -> Any:
    from dew.objectives.sentences import SentencesObjective

    grouping = learner.grouping
    return SentencesObjective(
        embed, learner.input_names, grouping.texts, kind=grouping.kind, axes=axes, begin=begin
    )

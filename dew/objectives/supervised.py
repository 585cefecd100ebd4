"""Classifiers and regressors: any flax module, from fields of a batch to its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dew.artifacts import Artifacts, Representations, TokenScores
from dew.errors import InputRefused, UnknownName, nearest
from dew.inputs import Field, InputSpec
from dew.objectives.base import Aux, EMASpec, Objective, Ratio, Step
from dew.typing import Variables

Loss = Callable[[jax.Array, jax.Array], jax.Array]
"""Maps outputs and labels to the loss of each label."""


class Module(Protocol):
    """What `Supervised` needs of a model: a flax linen module has it."""

    def init(self, rngs: Any, *inputs: Any, **options: Any) -> Any:
        """Return fresh variables."""
        ...

    def apply(self, variables: Any, *inputs: Any, **options: Any) -> Any:
        """Return the outputs; with `mutable`, also the collections that changed."""
        ...


class Supervised(Objective):
    """The weighted mean loss of a model's outputs against labels.

    A batch holds the input fields, the labels, and optionally `weights`: float, of the labels'
    shape or of its first axes. A negative label of a classifier does not count, so rows padded
    with -100 are left out. Collections other than `params`, such as running statistics, are
    replaced by what the model makes of them while it trains.

    Args:
        model: called as `model.apply(variables, *inputs)`.
        inputs: the field or fields that the model takes, in order.
        labels: the field of the classes, integers of any shape, or of the targets.
        loss: "cross_entropy" (outputs [..., C] against classes [...]), "squared_error" (outputs
            and labels of one shape), or a function from both to the loss of each label.
        training: keyword arguments of the model's call in `loss`, such as `{"train": True}`.
        scoring: those in `evaluate` and `init`.
        dtypes: of each input as `init` traces it; what is not named is float32.
        ema: leaves to average, or None.
    """

    def __init__(
        self,
        model: Module,
        inputs: Field | tuple[Field, ...],
        labels: Field,
        *,
        loss: str | Loss = "cross_entropy",
        training: Mapping[str, Any] | None = None,
        scoring: Mapping[str, Any] | None = None,
        dtypes: Mapping[str, str] | None = None,
        ema: EMASpec | None = None,
    ) -> None:
        self.model = model
        self.fields = inputs if isinstance(inputs, tuple) else (inputs,)
        self.labels = labels
        self.classifies = loss == "cross_entropy"
        self.losses = _loss(loss)
        self.training = dict(training or {})
        self.scoring = dict(scoring or {})
        self.dtypes = dict(dtypes or {})
        self.ema = ema
        self.inputs = InputSpec(self.fields[0], others=(*self.fields[1:], labels))

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return `variables`, or fresh ones drawn with `key`."""
        if variables is not None:
            return variables
        examples = [
            jnp.zeros((1, *field.shape), self.dtypes.get(field.key, "float32"))
            for field in self.fields
        ]
        return self.model.init(key, *examples, **self.scoring)

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> tuple[Ratio, Aux]:
        """Return sum(weight * loss) over sum(weight), and the accuracy of a classifier."""
        changing = [name for name in variables if name not in ("params", *self.frozen)]
        outputs, changed = self.model.apply(
            variables,
            *(batch[field.key] for field in self.fields),
            mutable=changing,
            rngs={"dropout": step.key},
            **self.training,
        )
        losses, weights = self._weighed(outputs, batch)
        total = jnp.sum(jnp.where(weights > 0, weights * losses, 0.0))
        metrics: dict[str, Any] = {}
        if self.classifies:
            right = jnp.argmax(outputs, axis=-1) == batch[self.labels.key]
            metrics["accuracy"] = Ratio(jnp.sum(weights * right), jnp.sum(weights))
        return Ratio(total, jnp.sum(weights)), Aux(metrics, dict(changed))

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts:
        """Return what a pass scores: one row a label.

        A classifier gives its logits as `Representations` [N, C], with label -1 where the weight
        is 0; all others give each label's loss and weight as `TokenScores` [N, 1].
        """
        outputs = self.model.apply(
            variables, *(batch[field.key] for field in self.fields), **self.scoring
        )
        losses, weights = self._weighed(outputs, batch)
        if self.classifies:
            labels = jnp.where(weights > 0, batch[self.labels.key], -1).reshape(-1)
            logits = outputs.reshape(-1, outputs.shape[-1]).astype(jnp.float32)
            return Representations(logits, labels.astype(jnp.int32))
        return TokenScores(losses.reshape(-1, 1), weights.reshape(-1, 1))

    def _weighed(
        self, outputs: jax.Array, batch: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Return each label's loss and weight, float32 of one shape."""
        labels = batch[self.labels.key]
        losses = self.losses(outputs, labels)
        weights = jnp.ones(losses.shape, jnp.float32)
        if batch.get("weights") is not None:
            given = batch["weights"]
            if given.shape != losses.shape[: given.ndim]:
                raise InputRefused(
                    f"weights {given.shape} do not fit losses {losses.shape}: expected the labels' "
                    "shape or its first axes"
                )
            extra = (1,) * (losses.ndim - given.ndim)
            weights = weights * given.reshape(*given.shape, *extra)
        return losses, weights * (labels >= 0) if self.classifies else weights


def cross_entropy(logits: jax.Array, classes: jax.Array) -> jax.Array:
    """Return -log softmax(logits) at each class, float32 [...], in nats.

    Args:
        logits: [..., C].
        classes: integers [...] in [0, C); a negative one gives a finite loss that must not count.

    Raises:
        InputRefused: shapes that do not fit, or classes that are not integers.
    """
    if logits.shape[:-1] != classes.shape or not jnp.issubdtype(classes.dtype, jnp.integer):
        raise InputRefused(
            f"cross_entropy: outputs {logits.shape} against {classes.dtype} labels "
            f"{classes.shape}; expected outputs [..., C] and integer labels [...]"
        )
    scores = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    at_class = jnp.take_along_axis(scores, jnp.maximum(classes, 0)[..., None], axis=-1)
    return -at_class[..., 0]


def squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Return (output - target)², float32, of the targets' shape.

    Args:
        outputs: of the targets' shape, or with one more axis of length 1 at the end.
        targets: any shape.

    Raises:
        InputRefused: shapes that do not fit; they are never broadcast.
    """
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs[..., 0]
    if outputs.shape != targets.shape:
        raise InputRefused(
            f"squared_error: outputs {outputs.shape} against labels {targets.shape}; expected one "
            "shape"
        )
    return jnp.square(outputs.astype(jnp.float32) - targets.astype(jnp.float32))


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "squared_error": squared_error}
"""Name to loss, as `Supervised` spells it."""


def _loss(loss: str | Loss) -> Loss:
    if not isinstance(loss, str):
        return loss
    if loss not in LOSSES:
        raise UnknownName(
            f"loss {loss!a:.200} is not known{nearest(loss, LOSSES)}"
            f" Known: {', '.join(sorted(LOSSES))}."
        )
    return LOSSES[loss]

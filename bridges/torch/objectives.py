"""Objectives of traced models: the next token, and adapters beside any objective's frozen base."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bridges.torch.checkpoint import TracedBundle
from bridges.torch.lora import Adapter
from bridges.torch.low_rank import LowRankModule, leaves
from bridges.torch.samples import check_samples, written_samples
from dew.artifacts import Artifacts, TokenScores
from dew.errors import InputRefused, shown
from dew.inputs import Field, InputSpec
from dew.objectives.base import Aux, EMASpec, Objective, Ratio, Step
from dew.objectives.lm import target_weights
from dew.objectives.samples import Samples
from dew.objectives.supervised import cross_entropy
from dew.training.state import wide
from dew.typing import Variables

FROZEN = "frozen"


class TracedLMObjective(Objective):
    """Mean cross entropy of each counted token given those before it, of a traced bundle.

    A batch is that of `dew.objectives.lm.LMObjective`. Padding (`segments` 0) is masked; documents
    that share a row see each other, as in torch's trainers, since a traced model takes no document
    mask: give each a row of its own where they must not. Parameters are float32 at least, and
    the model computes with them in the dtypes that it was loaded in.

    Args:
        bundle: a causal language model, from `bridges.load`; it gives the variables too.
        seq_len: L, the number of predictions of a row.
        train: run torch's training mode, in which dropout draws.
        remat: keep the results of linear maps alone for the backward pass, and compute what
            stands between them again: less memory, more time.
        samples: what a preview writes, with the averaged leaves where there are any; None
            previews nothing.
        ema: leaves to average, or None.

    Raises:
        InputRefused: `seq_len` is below 1 or beyond the model's positions.
    """

    def __init__(
        self,
        bundle: TracedBundle,
        seq_len: int,
        *,
        train: bool = False,
        remat: bool = False,
        samples: Samples | None = None,
        ema: EMASpec | None = None,
    ) -> None:
        limit = bundle.position_limit
        if seq_len < 1 or (limit is not None and seq_len > limit):
            raise InputRefused(
                f"seq_len {seq_len} does not fit a model of {limit} positions; choose 1 to {limit}"
            )
        check_samples(bundle, samples)
        self.bundle = bundle
        self.model = bundle.model
        self.train = train
        self.remat = remat
        self.samples = samples
        self.ema = ema
        self.inputs = InputSpec(Field("text", (seq_len + 1,)))
        self._dtypes = {name: leaf.dtype for name, leaf in bundle.variables["params"].items()}

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return `variables`, or the bundle's own, with wide parameters: nothing is drawn."""
        given = self.bundle.variables if variables is None else variables
        return {**given, "params": wide(given["params"])}

    def logical_axes(self) -> Mapping[str, Any]:
        """Return the axes that the bundle was laid out by."""
        return {"params": dict(self.bundle.axes)}

    def low_rank(self, adapter: Adapter) -> TracedLMObjective:
        """Return this objective over params that hold an adapter's `low_rank.leaves` too."""
        made = copy.copy(self)
        made.model = LowRankModule(self.model, adapter)
        return made

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> tuple[Ratio, Aux]:
        """Return the summed losses in nats over the summed weights of the targets."""
        options = {"train": self.train, "rngs": {"dropout": step.key}}
        scores, changed = self._scores(variables, batch, **options)
        total = jnp.sum(jnp.where(scores.weights > 0, scores.weights * scores.losses, 0.0))
        return Ratio(total, jnp.sum(scores.weights)), Aux({}, dict(changed))

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> TokenScores:
        """Return each target's loss and weight, [B, L] both."""
        return self._scores(variables, batch)[0]

    def preview(
        self,
        variables: Variables,
        batch: Mapping[str, jax.Array],
        step: Step,
        *,
        scored: Artifacts | None = None,
    ) -> Artifacts | None:
        """Return what the model writes after each prompt of `samples`, on process 0."""
        if self.samples is None:
            return None
        by = variables if step.ema is None else step.ema
        held = {**by, "params": self._narrow(by["params"])}
        return written_samples(self.bundle, self.samples, held, step.key)

    def _scores(
        self, variables: Variables, batch: Mapping[str, jax.Array], **options: Any
    ) -> tuple[TokenScores, Mapping[str, Any]]:
        targets, weights = target_weights(batch)
        ids, segments = batch["text"][:, :-1], batch.get("segments")
        real = jnp.ones_like(ids) if segments is None else (segments[:, :-1] != 0).astype(ids.dtype)
        given = self.bundle.taken(input_ids=ids, attention_mask=real)

        def run(params: Any) -> Any:
            held = {**variables, "params": self._narrow(params)}
            return self.model.apply(held, **given, mutable=["buffers"], **options)

        if self.remat:
            saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            run = jax.checkpoint(run, policy=saved)
        output, changed = run(variables["params"])
        if "logits" not in output:
            raise InputRefused(
                f"{self.bundle.family} gives {', '.join(output)} and no logits: its architecture "
                f"{shown(self.bundle.config.get('architectures'))} has no language-model head"
            )
        return TokenScores(cross_entropy(output["logits"], targets), weights), changed

    def _narrow(self, params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the parameters in the dtypes that the model was traced for."""
        return {
            name: leaf.astype(self._dtypes.get(name, leaf.dtype)) for name, leaf in params.items()
        }


class AdapterObjective(Objective):
    """Any objective of a traced model, with adapters trained and the base frozen.

    `params` holds the adapters, `frozen` the base's params, in the dtypes that they were loaded
    in; gradients reach A and B alone. Where the objective has a `low_rank` form, as
    `TracedLMObjective`, the low-rank products are sums of their own beside the linear maps; else
    they are added to the weights on the fly. Other collections, such as buffers, are the
    objective's.

    Args:
        objective: of the base model, as `TracedLMObjective` or `Supervised`.
        adapter: which modules, from `bridges.torch.lora.adapter_of`.
        ema: adapters to average, or None; the objective's own is not taken.

    Raises:
        InputRefused: a dropout, and the objective has no `low_rank` form.
    """

    frozen = (FROZEN,)

    def __init__(
        self, objective: Objective, adapter: Adapter, *, ema: EMASpec | None = None
    ) -> None:
        low_rank = getattr(objective, "low_rank", None)
        if low_rank is None and adapter.dropout:
            raise InputRefused(
                f"LoRA dropout is {adapter.dropout}, but {type(objective).__name__} adds the "
                "adapter to the weights, where there is no input to drop; leave it 0"
            )
        self.objective = objective
        self.adapter = adapter
        self.ema = ema
        self.inputs = objective.inputs
        self._low_rank = None if low_rank is None else low_rank(adapter)

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Return adapters drawn with `key` beside the base of `variables["params"]`.

        Variables that already hold a `frozen` collection come back as they are.
        """
        if variables is not None and FROZEN in variables:
            return variables
        base = dict(self.objective.init(key, variables))
        params = base.pop("params")
        if variables is not None:
            params = variables["params"]  # what is frozen need not be wide
        return {**base, "params": self.adapter.init(key, params), FROZEN: params}

    def logical_axes(self) -> Mapping[str, Any]:
        """Return the base's axes; the adapters are small."""
        axes = dict(self.objective.logical_axes())
        return {**axes, FROZEN: axes.pop("params")} if "params" in axes else axes

    def applied(self, variables: Variables) -> Variables:
        """Return the variables as the base's objective takes them: the adapters merged."""
        base = jax.lax.stop_gradient(variables[FROZEN])
        return self._over(variables, self.adapter.laid_over(base, variables["params"]))

    def loss(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> jax.Array | Ratio | tuple[jax.Array | Ratio, Aux]:
        """Return the base's loss, differentiable in the adapters."""
        objective, held, told = self._computing(variables, step)
        return objective.loss(held, batch, told)

    def evaluate(
        self, variables: Variables, batch: Mapping[str, jax.Array], step: Step
    ) -> Artifacts | None:
        """Return what metrics score of a batch."""
        objective, held, told = self._computing(variables, step)
        return objective.evaluate(held, batch, told)

    def preview(
        self,
        variables: Variables,
        batch: Mapping[str, jax.Array],
        step: Step,
        *,
        scored: Artifacts | None = None,
    ) -> Artifacts | None:
        """Return what a tracker draws."""
        told = _with_average(step, self.applied)
        return self.objective.preview(self.applied(variables), batch, told, scored=scored)

    def _computing(self, variables: Variables, step: Step) -> tuple[Objective, Variables, Step]:
        if self._low_rank is None:
            return self.objective, self.applied(variables), _with_average(step, self.applied)
        return self._low_rank, self._beside(variables), _with_average(step, self._beside)

    def _beside(self, variables: Variables) -> Variables:
        """Return the variables of the low-rank form: the adapters' leaves beside the base's."""
        base = jax.lax.stop_gradient(variables[FROZEN])
        return self._over(variables, {**base, **leaves(variables["params"])})

    def _over(self, variables: Variables, params: Mapping[str, Any]) -> Variables:
        rest = {name: value for name, value in variables.items() if name != FROZEN}
        return {**rest, "params": params}


def _with_average(step: Step, applied: Callable[[Variables], Variables]) -> Step:
    return step if step.ema is None else dataclasses.replace(step, ema=applied(step.ema))

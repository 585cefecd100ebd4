"""dew's side of the checks that train: the objective's mean loss, its gradient, the train step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dew.objectives.base import Objective, Ratio
from parity import inputs as model_inputs
from parity.packing import Directed, Documents, Tokens, packed, single_rows
from parity.recipes import ACCUMULATION, UPDATES, WARMUP, Recipe
from parity.reference import AdamW, flat_outputs
from parity.subject import Subject

LENGTH = 24


def asked(subject: Subject, seed: int) -> Documents | Directed:
    """Return what the subject's loss is of: documents where it is causal, else all its outputs."""
    if subject.causal:
        return subject.documents(seed)
    length = min(LENGTH, subject.context)
    # On the left, the first token that some heads read would be padding, untrained in torch.
    return model_inputs.directed(subject, model_inputs.batch(subject, length, seed, left=False))


def by_torch(asked: Documents | Directed) -> Tokens | Directed:
    """Return what torch's loss is of: each document in a row of its own."""
    return single_rows(asked) if isinstance(asked, Documents) else asked


def training_batch(subject: Subject, asked: Documents | Directed) -> dict[str, np.ndarray]:
    """Return the batch that the subject's objective takes.

    A native causal model gets documents packed, two to a row; others each in a row of its own.
    """
    if isinstance(asked, Directed):
        return dict(asked.inputs)
    if subject.packs:
        return packed(asked)
    rows = single_rows(asked)
    return {"text": rows.input_ids, "segments": rows.attention_mask}


def language_objective(subject: Subject, length: int) -> Objective:
    """Return what trains the subject on the next of `length` tokens."""
    from bridges.torch.objectives import TracedLMObjective
    from dew.objectives.lm import LMObjective

    if subject.traced:
        return TracedLMObjective(subject.bundle, length)
    return LMObjective(subject.bundle.model, length)


def _objective(subject: Subject, asked: Documents | Directed) -> Objective:
    if isinstance(asked, Directed):
        return _EveryOutput(subject, asked.ways)
    length = asked.length if subject.packs else max(map(len, asked.sequences)) - 1
    return language_objective(subject, length)


class _EveryOutput(Objective):
    """The sum of a model's outputs, each times a direction."""

    def __init__(self, subject: Subject, ways: Mapping[str, np.ndarray]) -> None:
        self.subject = subject
        self.ways = dict(ways)

    def loss(self, variables: Any, batch: Mapping[str, Any], step: Any) -> Any:
        """Return the sum."""
        import jax.numpy as jnp

        found = flat_outputs(self.subject.bundle.apply(variables, **batch))
        parts = [jnp.sum(found[name] * way) for name, way in self.ways.items()]
        return jnp.sum(jnp.stack(parts))


def mean_loss_and_gradients(
    subject: Subject, asked: Documents | Directed
) -> tuple[float, dict[str, Any]]:
    """Return the loss and its gradient by every parameter.

    Args:
        subject: whose bundle is differentiated.
        asked: what the loss is of; of documents it is in nats per counted target.
    """
    import jax
    import jax.numpy as jnp

    from dew.objectives.base import Step

    objective = _objective(subject, asked)
    rest = {name: value for name, value in subject.bundle.variables.items() if name != "params"}
    step = Step(step=jnp.int32(0), key=jax.random.key(0), ema=None)

    @jax.jit
    @jax.value_and_grad
    def mean_loss(params: Any, batch: Any) -> Any:
        found = objective.loss({**rest, "params": params}, batch, step)
        return Ratio.of(found[0] if isinstance(found, tuple) else found).value

    batch = training_batch(subject, asked)
    loss, gradients = mean_loss(subject.bundle.variables["params"], batch)
    return float(loss), gradients


def adamw_steps(
    subject: Subject, asked: Sequence[Documents | Directed], settings: AdamW
) -> tuple[list[float], dict[str, Any]]:
    """Take one step of the trainer a batch, and return the mean loss before each and the weights.

    Args:
        subject: whose bundle is trained; it is not changed.
        asked: what the loss of each step is of; all of one shape.
        settings: the optimizer's numbers; every parameter is decayed.
    """
    import jax

    from dew.training.adam import adamw
    from dew.training.state import first_state
    from dew.training.step import microstep

    objective = _objective(subject, asked[0])
    optimizer = adamw(
        settings.learning_rate,
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    step = jax.jit(microstep(objective, optimizer, accumulation=1), donate_argnums=0)
    state = first_state(
        dict(subject.bundle.variables), optimizer, key=jax.random.key(0), ema=None, accumulation=1
    )
    # A copy, which each step may overwrite: the bundle is asked for more.
    state = jax.tree.map(lambda leaf: leaf.copy(), state)
    losses = []
    for part in asked:
        state, report = step(state, {}, training_batch(subject, part))
        losses.append(float(report["total"]) / float(report["mass"]))
    return losses, state.params["params"]


def loss_curve(
    subject: Subject, windows: Sequence[Sequence[Documents | Directed]], recipe: Recipe
) -> list[float]:
    """Train a subject's weights, and return its loss before each update.

    Args:
        subject: whose bundle is trained; it is not changed.
        windows: the microbatches of each update, in turn as often as there are updates; all of
            one shape.
        recipe: how.
    """
    import jax

    from dew.training.optimizers import optimizer
    from dew.training.schedules import learning_rate
    from dew.training.state import first_state
    from dew.training.step import microstep

    objective = _objective(subject, windows[0][0])
    named: dict[str, Any] = dict(recipe.arguments)
    given = {"epsilon": named.pop("eps")} if recipe.name == "adamw" else {}
    chain = optimizer(
        recipe.name,
        learning_rate(recipe.learning_rate, recipe.schedule, WARMUP, UPDATES),
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        arguments=named,
        **given,
    )
    step = jax.jit(microstep(objective, chain, accumulation=ACCUMULATION))
    state = first_state(
        dict(subject.bundle.variables),
        chain,
        key=jax.random.key(0),
        ema=None,
        accumulation=ACCUMULATION,
    )
    losses = []
    for update in range(UPDATES):
        reports = []
        for part in windows[update % len(windows)]:
            state, report = step(state, {}, training_batch(subject, part))
            reports.append(report)
        total, mass = (sum(float(part[name]) for part in reports) for name in ("total", "mass"))
        losses.append(total / mass)
    return losses


def undecayed_names(subject: Subject) -> list[str]:
    """Return the names, in the files, of the weights that dew's optimizers leave undecayed."""
    import jax

    from dew.training.optimizers import decayed

    params = subject.bundle.variables["params"]
    decays = jax.tree.map(
        lambda leaf, kept: np.full(leaf.shape, float(kept), np.float32), params, decayed(params)
    )
    named = subject.by_torch_name(decays)
    return [name for name, value in named.items() if not value.any()]

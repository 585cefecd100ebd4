"""Classifiers and regressors of any flax module, against torch's losses."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from dew import Trainer, metrics
from dew.data import Dataset
from dew.errors import InputRefused, UnknownName
from dew.evaluation import evaluate
from dew.evaluation.mean_loss import MeanLoss
from dew.inputs import Field
from dew.objectives.base import Step
from dew.objectives.supervised import Supervised, cross_entropy, squared_error
from dew.training.progress import Silent

STEP = Step(jnp.zeros((), jnp.int32), jax.random.key(0))
KEY = jax.random.key(4)


class Linear(nn.Module):
    """x kernel + bias, after a batch norm and dropout."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        x = nn.Dropout(0.25, deterministic=not train)(x)
        return nn.Dense(self.features)(x)


def classifier(**options) -> Supervised:
    return Supervised(
        Linear(3), Field("x", (4,)), Field("label", ()), training={"train": True}, **options
    )


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return {"x": x, "label": np.argmax(x[:, :3], axis=1).astype(np.int32)}


@pytest.mark.torch
def test_losses_equal_torchs_to_float32():
    """Oracle: torch.nn.functional in float64, ignored labels included."""
    import torch

    generator = np.random.default_rng(0)
    logits = generator.normal(size=(5, 2, 7)) * 4
    classes = generator.integers(0, 7, (5, 2))
    classes[1, 0] = -100
    wanted = torch.nn.functional.cross_entropy(
        torch.tensor(logits).movedim(-1, 1), torch.tensor(classes), reduction="none"
    )
    ours = cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(classes, jnp.int32))
    kept = classes >= 0
    np.testing.assert_allclose(np.asarray(ours)[kept], wanted.numpy()[kept], rtol=2e-6, atol=1e-6)
    targets = generator.normal(size=(5, 2))
    wanted = torch.nn.functional.mse_loss(
        torch.tensor(logits[..., 0]), torch.tensor(targets), reduction="none"
    )
    ours = squared_error(jnp.asarray(logits[..., :1]), jnp.asarray(targets))
    np.testing.assert_allclose(ours, wanted.numpy(), rtol=2e-6, atol=1e-6)


@pytest.mark.torch
def test_the_gradient_of_a_weighted_loss_equals_torchs():
    import torch

    objective = Supervised(nn.Dense(3), Field("x", (4,)), Field("label", ()))
    variables = objective.init(KEY)
    weights = np.array([1, 0.5, 0, 2, 1, 1], np.float32)
    batch = {**rows(6), "weights": weights}
    batch["label"][4] = -100
    gradient = jax.grad(lambda v: objective.loss(v, batch, STEP)[0].value)(variables)["params"]
    kernel = torch.tensor(np.asarray(variables["params"]["kernel"], np.float64).T)
    bias = torch.tensor(np.asarray(variables["params"]["bias"], np.float64))
    kernel.requires_grad_(True)
    logits = torch.tensor(batch["x"].astype(np.float64)) @ kernel.T + bias
    losses = torch.nn.functional.cross_entropy(
        logits, torch.tensor(batch["label"]).long(), reduction="none"
    )
    counted = torch.tensor(weights) * (torch.tensor(batch["label"]) >= 0)
    ((losses * counted).sum() / counted.sum()).backward()
    np.testing.assert_allclose(gradient["kernel"], kernel.grad.numpy().T, atol=1e-6)


def test_rows_without_weight_change_neither_loss_nor_score():
    """P056: oracle, the same rows without the filler ones."""
    objective = classifier()
    variables = objective.init(KEY)
    real, filled = rows(5), rows(8)
    filled["x"][5:] = np.nan
    filled["x"][:5], filled["label"][:5] = real["x"], real["label"]
    filled["weights"] = np.array([1] * 5 + [0] * 3, np.float32)
    plain = Supervised(Linear(3), Field("x", (4,)), Field("label", ()))
    ratio, aux = plain.loss(variables, filled, STEP)
    wanted, wanted_aux = plain.loss(variables, real, STEP)
    assert float(ratio.mass) == 5
    assert float(ratio.value) == pytest.approx(float(wanted.value), rel=1e-6)
    assert float(aux.metrics["accuracy"].value) == float(wanted_aux.metrics["accuracy"].value)
    score = {"key": KEY, "metrics": (metrics.accuracy(),)}
    assert (
        evaluate(objective, variables, [filled], **score).scores
        == evaluate(objective, variables, [real], **score).scores
    )


def test_a_classifier_learns_and_its_running_statistics_move():
    objective = classifier()
    data = Dataset(
        train=lambda partition: map(lambda n: rows(32, n), itertools.count()),
        val=lambda partition: iter([rows(32, 900), rows(16, 901)]),
        records=32,
        batch=32,
    )
    seen = {}
    trainer = Trainer(objective, optax.adam(0.05), key=KEY)
    state = trainer.fit(
        data,
        steps=60,
        log_every=15,
        eval_every=60,
        metrics=(metrics.accuracy(),),
        on_report=lambda scalars, step: seen.update({step: seen.get(step, {}) | dict(scalars)}),
        progress=Silent(),
    )
    assert seen[60]["train/loss"] < 0.75 * seen[15]["train/loss"]
    assert seen[60]["train/accuracy"] > 0.6
    assert seen[60]["val/accuracy"] > 0.9
    spread = state.params["batch_stats"]["BatchNorm_0"]["var"]
    np.testing.assert_allclose(spread, np.ones(4), atol=0.6)
    assert not np.allclose(spread, np.ones(4), atol=1e-3)


def test_a_regressor_scores_its_mean_squared_error():
    """Closed form: a kernel of zero predicts the bias."""
    objective = Supervised(nn.Dense(1), Field("x", (4,)), Field("y", ()), loss="squared_error")
    variables = {"params": {"kernel": jnp.zeros((4, 1)), "bias": jnp.full((1,), 2.0)}}
    batches = [{"x": np.ones((n, 4), np.float32), "y": np.arange(n) * 1.0} for n in (3, 2)]
    event = evaluate(objective, variables, batches, key=KEY, metrics=(MeanLoss("mse"),))
    assert event.scores == {"val/mse": pytest.approx((4 + 1 + 0 + 4 + 1) / 5)}
    ratio, _ = objective.loss(variables, batches[0], STEP)
    assert float(ratio.value) == pytest.approx(5 / 3)


def test_what_does_not_fit_is_refused_and_never_broadcast():
    objective = Supervised(nn.Dense(2), Field("x", (4,)), Field("y", ()), loss="squared_error")
    variables = objective.init(KEY)
    batch = {"x": np.ones((3, 4), np.float32), "y": np.ones(3, np.float32)}
    with pytest.raises(InputRefused, match=r"outputs \(3, 2\) against labels \(3,\)"):
        objective.loss(variables, batch, STEP)
    with pytest.raises(InputRefused, match=r"'label' is \(3, 1\); expected \(batch, \)"):
        classifier().inputs.check({**batch, "label": np.ones((3, 1), np.int32)})
    with pytest.raises(InputRefused, match="float32 labels"):
        classifier().loss(classifier().init(KEY), {**batch, "label": batch["y"]}, STEP)
    with pytest.raises(InputRefused, match=r"weights \(2,\) do not fit losses \(3,\)"):
        classifier().loss(
            classifier().init(KEY), {**rows(3), "weights": np.ones(2, np.float32)}, STEP
        )
    with pytest.raises(UnknownName, match="did you mean 'cross_entropy'"):
        classifier(loss="crossentropy")

"""Each named optimizer does what torch's does, or what its paper's lines say."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.config import OptimConfig
from dew.config.values import ConfigRefused
from dew.errors import InputRefused
from dew.training.optimizers import OPTIMIZERS, optimizer
from dew.training.schedules import learning_rate

UPDATES = 8
SETTINGS = {
    "adam": {},
    "adamw": {"weight_decay": 0.1},
    "sgd": {"weight_decay": 0.1, "momentum": 0.9},
}


def gradients(number: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(number)
    return {"kernel": draw.normal(size=(3, 4)), "bias": draw.normal(size=4)}


def ours(transform: optax.GradientTransformation) -> dict[str, np.ndarray]:
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), gradients(99))
    state = transform.init(params)
    for number in range(UPDATES):
        step = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), gradients(number))
        updates, state = transform.update(step, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.torch
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_a_named_optimizer_walks_as_torch_does(name, limit):
    # The oracle is torch in float64, with no decay on the bias.
    import torch

    settings = SETTINGS[name]
    params = {key: torch.tensor(value, requires_grad=True) for key, value in gradients(99).items()}
    groups = [
        {"params": [params["kernel"]], "weight_decay": settings.get("weight_decay", 0.0)},
        {"params": [params["bias"]], "weight_decay": 0.0},
    ]
    cls = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    rest = {"momentum": 0.9} if name == "sgd" else {}
    reference = cls(groups, lr=0.01, **rest)
    for number in range(UPDATES):
        for key, value in gradients(number).items():
            params[key].grad = torch.tensor(value)
        if limit:
            torch.nn.utils.clip_grad_norm_(params.values(), limit)
        reference.step()
    found = ours(optimizer(name, lambda n: 0.01, max_grad_norm=limit, **settings))
    for key, value in params.items():
        np.testing.assert_allclose(found[key], value.detach().numpy(), rtol=2e-6, atol=1e-7)


def test_lion_is_the_papers_algorithm():
    # Chen et al. 2023, arXiv:2302.06675, algorithm 2, in float64.
    value, moment = gradients(99)["kernel"], 0.0
    for number in range(UPDATES):
        gradient = gradients(number)["kernel"]
        step = np.sign(0.9 * moment + 0.1 * gradient) + 0.1 * value
        value, moment = value - 0.01 * step, 0.99 * moment + 0.01 * gradient
    found = ours(optimizer("lion", lambda n: 0.01, weight_decay=0.1, beta2=0.99))
    np.testing.assert_allclose(found["kernel"], value, rtol=1e-5, atol=1e-6)


def test_every_choice_of_a_configuration_is_built():
    for name in OPTIMIZERS:
        for schedule in ("constant", "cosine"):
            config = OptimConfig(optimizer=name, schedule=schedule, learning_rate=0.5)
            params = {"kernel": jnp.zeros(2)}
            state = config.build(10).init(params)
            updates, state = config.build(10).update({"kernel": jnp.ones(2)}, state, params)
            assert float(state[-1].learning_rate) == 0.5
            assert np.all(np.asarray(updates["kernel"]) < 0)


def test_an_unknown_optimizer_or_schedule_offers_the_nearest():
    with pytest.raises(InputRefused, match="did you mean 'adam"):
        optimizer("adma", lambda n: 1.0)
    with pytest.raises(InputRefused, match="did you mean 'cosine'"):
        learning_rate(1.0, "cosin", 0, 10)
    with pytest.raises(InputRefused, match="choose adamw"):
        optimizer("adam", lambda n: 1.0, weight_decay=0.1)


def test_a_configuration_holds_further_arguments():
    config = OptimConfig(
        optimizer="sgd",
        schedule="cosine_with_min_lr",
        learning_rate=0.5,
        layer_decay=0.5,
        max_grad_value=0.1,
        optimizer_kwargs={"momentum": 0.9, "nesterov": True},
        schedule_kwargs={"min_lr": 0.25},
    )
    assert OptimConfig(**config.to_dict()) == config
    params = {"layers": {"kernel": jnp.ones((2, 3))}}
    updates, state = config.build(10).update(params, config.build(10).init(params), params)
    # Clipped to 0.1; Nesterov's first step is 1.9 gradients; the layers lie 2 and 1 below the top.
    rows = np.asarray([[0.25], [0.5]]) * np.ones((2, 3))
    np.testing.assert_allclose(updates["layers"]["kernel"], -0.5 * 0.19 * rows, rtol=1e-6)
    assert float(state[-1].learning_rate) == 0.5


def test_a_configuration_refuses_arguments_that_do_not_fit():
    for fields, said in (
        ({"optimizer_kwargs": {"momentum": 0.9}}, "optimizer adamw: unknown 'momentum'"),
        ({"schedule_kwargs": {"min_lr": 0.1}}, "schedule constant: unknown 'min_lr'"),
        ({"layer_decay": 0.0}, "layer_decay is 0.0; expected above 0"),
        ({"schedule": "warmup_stable_decay"}, "num_decay_steps is missing"),
    ):
        with pytest.raises(ConfigRefused, match=said):
            OptimConfig(**fields)

"""The optimizer of `dew finetune` is torch's AdamW under Hugging Face's schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bridges.finetune.optimizer import AdamW
from dew.training.optimizers import clip_as_torch, decayed
from dew.training.schedules import learning_rate


def rates(schedule: str, warmup: float, total: int) -> list[float]:
    rate = learning_rate(1.0, schedule, warmup, total)
    return [round(float(rate(update)), 6) for update in range(total + 1)]


def test_linear_schedule_reaches_its_ends():
    # By hand: 0 to 1 over two updates, then down to 0 over eight.
    assert rates("linear", 2, 10) == [0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0]


def test_p054_ten_linear_updates_end_on_nine_tenths_of_a_rise():
    # CASES P054: linear 0 -> 1 over 10 counts updates, so the last of ten has rate 0.9.
    assert rates("constant_with_warmup", 10, 10)[9] == 0.9


def test_a_warmup_below_one_is_a_share_of_all_updates():
    assert rates("linear", 0.2, 10) == rates("linear", 2, 10)


def test_constant_ignores_warmup_and_cosine_is_half_way_at_the_middle():
    assert set(rates("constant", 5, 10)) == {1.0}
    assert rates("cosine", 0, 10)[5] == 0.5


@pytest.mark.torch
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "constant_with_warmup"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_schedules_equal_those_of_transformers(schedule, warmup):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = transformers.get_scheduler(schedule, optimizer, warmup, 10)
    ours = learning_rate(1.0, schedule, warmup, 10)
    for update in range(10):
        np.testing.assert_allclose(float(ours(update)), theirs.get_last_lr()[0], atol=1e-6)
        optimizer.step()
        theirs.step()


def test_biases_and_norms_do_not_decay():
    params = {"norm": {"scale": 1}, "mlp": {"up": {"kernel": 1, "bias": 1}}, "lora": {"a": 1}}
    assert decayed(params) == {
        "norm": {"scale": False},
        "mlp": {"up": {"kernel": True, "bias": False}},
        "lora": {"a": True},
    }


def test_gradients_below_the_limit_are_left_as_they_are():
    gradients = {"w": jnp.asarray([0.3, 0.4])}
    clipped, _ = clip_as_torch(1.0).update(gradients, optax.EmptyState())
    np.testing.assert_array_equal(clipped["w"], gradients["w"])


def test_p057_a_small_update_is_not_lost():
    # CASES P057: parameter 1.0, rate 1e-3, 100 updates: 0.90 in float32.
    optimizer = AdamW(1e-3, "constant", 0, 100).transform()
    params = {"w": jnp.ones((1,), jnp.float32)}
    state = optimizer.init(params)
    for _ in range(100):
        changes, state = optimizer.update({"w": jnp.ones((1,))}, state, params)
        params = optax.apply_updates(params, changes)
    np.testing.assert_allclose(params["w"], 0.90, atol=1e-4)


@pytest.mark.torch
def test_ten_updates_equal_torchs():
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(5, 3)).astype(np.float32)
    scale = generator.normal(size=(3,)).astype(np.float32)
    ours = AdamW(1e-2, "linear", 2, 10, weight_decay=0.1, max_grad_norm=1.0).transform()
    params = {"kernel": jnp.asarray(kernel), "scale": jnp.asarray(scale)}
    state = ours.init(params)
    theirs = [torch.nn.Parameter(torch.tensor(value)) for value in (kernel, scale)]
    groups = [{"params": theirs[:1], "weight_decay": 0.1}, {"params": theirs[1:]}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)
    rate = learning_rate(1e-2, "linear", 2, 10)
    update = jax.jit(ours.update)
    for step in range(10):
        gradients = [generator.normal(size=value.shape).astype(np.float32) for value in theirs]
        changes, state = update(
            {"kernel": jnp.asarray(gradients[0]), "scale": jnp.asarray(gradients[1])}, state, params
        )
        params = optax.apply_updates(params, changes)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = float(rate(step))
        optimizer.step()
    # Float32 on both sides; ten updates of at most 1e-2 leave a few ulps of the parameters.
    for value, parameter in zip((params["kernel"], params["scale"]), theirs, strict=True):
        np.testing.assert_allclose(value, parameter.detach().numpy(), rtol=2e-6, atol=2e-7)

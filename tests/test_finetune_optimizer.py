"""The optimizer of `dew finetune` has torch's numbers under Hugging Face's names."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dew.training.optimizers
import dew.training.schedules
from bridges.commands.finetune import COMMAND
from bridges.finetune.optimizer import Optim, optim_of, pairs_of
from bridges.finetune.optimizer_names import NARROW_OPTIMS, OPTIMS, SCHEDULES
from dew.cli.options import parse
from dew.errors import InputRefused
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
    optimizer = Optim(1e-3, "constant", 0, 100).transform()
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
    ours = Optim(1e-2, "linear", 2, 10, weight_decay=0.1, max_grad_norm=1.0).transform()
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


def built(*words: str) -> Optim:
    return optim_of(parse(COMMAND, ["--model", "m", "--data", "d", *words]), 100)


def test_the_names_are_those_that_dew_has():
    assert set(OPTIMS.values()) == set(dew.training.optimizers.OPTIMIZERS) - {"adam"}
    assert set(SCHEDULES) == set(dew.training.schedules.SCHEDULES)
    assert set(NARROW_OPTIMS.values()) <= set(OPTIMS)


@pytest.mark.torch
def test_every_name_but_muon_is_one_of_transformers():
    training_args = pytest.importorskip("transformers.training_args")
    names = {each.value for each in training_args.OptimizerNames}
    assert {*OPTIMS, *NARROW_OPTIMS} - names == {"muon"}


def test_flags_reach_the_optimizer():
    optim = built(
        *("--optim", "sgd", "--optim_args", "momentum=0.9,nesterov=true", "--lr", "0.1"),
        *("--lr_scheduler_type", "cosine_with_min_lr", "--lr_scheduler_kwargs", '{"min_lr": 1e-2}'),
        *("--adam_beta1", "0.8", "--max_grad_norm", "0", "--layer_decay", "0.5"),
    )
    assert optim.arguments == {"momentum": 0.9, "nesterov": True}
    assert (optim.beta1, optim.max_grad_norm, optim.layer_decay) == (0.8, 0.0, 0.5)
    assert round(float(optim.rate()(100)), 6) == 0.01
    params = {"embed": {"table": jnp.ones(2)}, "layers": {"kernel": jnp.ones((1, 2))}}
    transform = optim.transform()
    state = transform.init(params)
    for _ in range(2):
        moved, state = transform.update(params, state, params)
    # Nesterov's second step: 1 + 0.9 * (1 + 0.9); the table lies two layers below the head.
    rate = float(optim.rate()(1))
    np.testing.assert_allclose(moved["layers"]["kernel"], -rate * 2.71 / 2, rtol=1e-6)
    np.testing.assert_allclose(moved["embed"]["table"], -rate * 2.71 / 4, rtol=1e-6)


@pytest.mark.parametrize("name", {ours: theirs for theirs, ours in OPTIMS.items()}.values())
def test_every_optimizer_builds_what_lowers_a_weight(name):
    transform = built("--optim", name, "--lr", "0.5").transform()
    params = {"mlp": {"kernel": jnp.ones((2, 3))}}
    moved, state = transform.update(params, transform.init(params), params)
    assert np.all(np.asarray(moved["mlp"]["kernel"]) < 0)
    (told,) = optax.tree_utils.tree_get_all_with_path(state, "learning_rate")
    assert float(told[1]) == 0.5


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ((), {}),
        (("momentum=0.9", "nesterov=true"), {"momentum": 0.9, "nesterov": True}),
        (("momentum=0.9, nesterov=true",), {"momentum": 0.9, "nesterov": True}),
        (("eps=[1e-30,1e-3]", "beta1=null"), {"eps": [1e-30, 1e-3], "beta1": None}),
        (('{"min_lr": 1e-6', '"num_cycles": 2}'), {"min_lr": 1e-6, "num_cycles": 2}),
        (("{}",), {}),
    ],
)
def test_pairs_are_read(texts, found):
    assert pairs_of("optim_args", texts) == found


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("momentum",), "'momentum' is no pair"),
        (("=1",), "is no pair"),
        (("a=1", "a=2"), "a stands twice"),
        (("{a: 1",), "not readable as YAML"),
        (("{1: 2}",), "expected an object"),
        (("a=!!python/none x",), "tag"),
    ],
)
def test_what_is_no_pair_is_refused(texts, said):
    with pytest.raises(InputRefused, match=said):
        pairs_of("optim_args", texts)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--optim", "adamw_hf"), "did you mean 'adamw"),
        (("--lr_scheduler_type", "greedy"), "expected one of linear"),
        (("--optim_args", "momentum=0.9"), "it takes no argument"),
        (("--lr_scheduler_kwargs", "min_lr=0.1"), "it takes no argument"),
        (("--lr_scheduler_type", "warmup_stable_decay"), "num_decay_steps is missing"),
        (("--layer_decay", "0"), "layer_decay is 0"),
    ],
)
def test_what_optimizer_or_schedule_does_not_take_is_refused(words, said):
    with pytest.raises(InputRefused, match=said):
        built(*words)

"""Named optimizers against torch's and transformers' own, the float64 run being the truth."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.errors import InputRefused
from dew.training.optimizers import optimizer
from parity.rounding import deviations, judged

UPDATES = 20
RATE = 0.01
DECAY = 0.1
SHAPES = {
    "layers": {
        "mlp": {"up": {"kernel": (2, 6, 4), "bias": (2, 4)}},
        "attention": {"out": {"kernel": (2, 2, 3, 6)}, "query": {"kernel": (2, 6, 2, 3)}},
    },
    "embed": {"table": (9, 6)},
    "logit": {"scale": ()},
}


def drawn(number: int) -> dict:
    """Return values of `SHAPES` in float32: the parameters (0), or the gradients of an update."""
    draw = np.random.default_rng(number)
    return jax.tree.map(
        lambda shape: np.asarray(draw.normal(size=shape), np.float32),
        SHAPES,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def as_torch(tree: dict) -> dict[str, np.ndarray]:
    """Return the leaves as torch has them: each layer's own, a weight [out, in]."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        layers = enumerate(leaf) if name.startswith("layers") else [("", leaf)]
        for number, value in layers:
            value = np.asarray(value)
            if name.endswith("out/kernel"):
                value = value.reshape(-1, value.shape[-1])
            elif name.endswith("query/kernel"):
                value = value.reshape(value.shape[0], -1)
            found[f"{name}{number}"] = value.T if name.endswith("kernel") else value
    return found


def ours(transform: optax.GradientTransformation) -> dict[str, np.ndarray]:
    params = jax.tree.map(jnp.asarray, drawn(0))
    state, update = transform.init(params), jax.jit(transform.update)
    for number in range(UPDATES):
        changes, state = update(jax.tree.map(jnp.asarray, drawn(number + 1)), state, params)
        params = optax.apply_updates(params, changes)
    return as_torch(params)


def theirs(build, dtype: str) -> dict[str, np.ndarray]:
    """Return the parameters after torch's updates; `build` takes (name, parameter) pairs."""
    import torch

    params = {
        name: torch.nn.Parameter(torch.tensor(value, dtype=getattr(torch, dtype)))
        for name, value in as_torch(drawn(0)).items()
    }
    optimizers = build(params)
    for number in range(UPDATES):
        for name, value in as_torch(drawn(number + 1)).items():
            params[name].grad = torch.tensor(value, dtype=params[name].dtype)
        for each in optimizers:
            each.step()
    return {name: value.detach().numpy() for name, value in params.items()}


def groups(params: dict) -> list[dict]:
    """Return torch's groups: kernels and tables decay, biases and norms do not."""
    weights = {name for name in params if "bias" not in name and "scale" not in name}
    return [
        {"params": [v for n, v in params.items() if n in weights], "weight_decay": DECAY},
        {"params": [v for n, v in params.items() if n not in weights], "weight_decay": 0.0},
    ]


def hold(transform: optax.GradientTransformation, build) -> None:
    exact, single = theirs(build, "float64"), theirs(build, "float32")
    finding = judged(deviations(ours(transform), single, exact))
    assert finding.passed, finding.reason


@pytest.mark.torch
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {
            "beta1": 0.9,
            "clip_threshold": 1.5,
            "scale_parameter": True,
            "eps": [1e-12, 0.05],
            "decay_rate": -0.5,
        },
        {"scale_parameter": True, "relative_step": True},
        {"relative_step": True, "warmup_init": True, "beta1": 0.8},
    ],
)
def test_adafactor_is_that_of_transformers(arguments):
    from transformers.optimization import Adafactor

    def build(params):
        named = {"scale_parameter": False, "relative_step": False, **arguments}
        rate = None if named["relative_step"] else RATE
        return [Adafactor(groups(params), lr=rate, **named)]

    transform = optimizer("adafactor", lambda n: RATE, weight_decay=DECAY, arguments=arguments)
    hold(transform, build)


@pytest.mark.torch
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.8, "dampening": 0.3},
    ],
)
def test_sgd_is_that_of_torch(arguments):
    import torch

    transform = optimizer("sgd", lambda n: RATE, weight_decay=DECAY, arguments=arguments)
    hold(transform, lambda params: [torch.optim.SGD(groups(params), lr=RATE, **arguments)])


@pytest.mark.torch
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 2},
        {
            "adjust_lr_fn": "spectral_unclamped",
            "momentum": 0.8,
            "ns_steps": 1,
            "ns_coefficients": [2.0, -1.5, 0.5],
        },
    ],
)
def test_muon_is_that_of_torch_and_adamw_moves_the_rest(arguments):
    import torch

    def build(params):
        inside = [v for n, v in params.items() if "kernel" in n]
        rest = groups({n: v for n, v in params.items() if "kernel" not in n})
        muon = torch.optim.Muon(inside, lr=RATE, weight_decay=DECAY, **arguments)
        return [muon, torch.optim.AdamW(rest, lr=RATE)]

    transform = optimizer("muon", lambda n: RATE, weight_decay=DECAY, arguments=arguments)
    hold(transform, build)


@pytest.mark.torch
def test_lion_is_the_papers_algorithm_to_the_float64_rule():
    # torch has no Lion: Chen et al. 2023, arXiv:2302.06675, algorithm 2, in its tensors.
    import torch

    class Lion(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for value in group["params"]:
                    moment = self.state[value].setdefault("moment", torch.zeros_like(value))
                    turn = (moment * 0.9).add_(value.grad, alpha=0.1).sign_()
                    value.mul_(1 - RATE * group["weight_decay"]).add_(turn, alpha=-RATE)
                    moment.mul_(0.99).add_(value.grad, alpha=0.01)

    transform = optimizer("lion", lambda n: RATE, weight_decay=DECAY, beta2=0.99)
    hold(transform, lambda params: [Lion(groups(params), {})])


@pytest.mark.torch
def test_a_value_is_clipped_as_torch_clips_it():
    import torch

    class Clipped(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                torch.nn.utils.clip_grad_value_(group["params"], 0.3)
            super().step()

    transform = optimizer("sgd", lambda n: RATE, weight_decay=DECAY, max_grad_value=0.3)
    hold(transform, lambda params: [Clipped(groups(params), lr=RATE)])


@pytest.mark.torch
@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_layers_have_the_rates_of_torchs_groups(name):
    import torch
    from transformers.optimization import Adafactor

    def share(leaf: str) -> float:
        if leaf.startswith("layers"):
            return 0.5 ** (2 - int(leaf[-1]))
        return 0.5**3 if leaf.startswith("embed") else 1.0

    def build(params):
        parts = [
            {**group, "params": [value], "lr": RATE * share(leaf)}
            for leaf, value in params.items()
            for group in groups({leaf: value})
            if group["params"]
        ]
        if name == "adamw":
            return [torch.optim.AdamW(parts)]
        # A group's moving average holds its rate; torch's averages are of changes too.
        more = {"scale_parameter": False, "relative_step": False, "beta1": 0.9}
        return [Adafactor(parts, lr=RATE, **more)]

    arguments = {"beta1": 0.9} if name == "adafactor" else {}
    transform = optimizer(
        name, lambda n: RATE, weight_decay=DECAY, layer_decay=0.5, arguments=arguments
    )
    hold(transform, build)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("adamw", {"momentum": 0.9}, "it takes no argument"),
        ("sgd", {"nesteroff": True}, "did you mean 'nesterov'"),
        ("sgd", {"nesterov": True}, "nesterov needs a momentum"),
        ("sgd", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "no dampening"),
        ("adafactor", {"warmup_init": True}, "warmup_init is of relative_step"),
        ("adafactor", {"eps": [1e-30]}, "a list of 2 numbers"),
        ("muon", {"adjust_lr_fn": "none"}, "expected one of original"),
        ("muon", {"ns_steps": 100}, "a whole number from 0 to 99"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(name, arguments, said):
    with pytest.raises(InputRefused, match=said):
        optimizer(name, lambda n: RATE, arguments=arguments)

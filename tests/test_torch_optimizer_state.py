"""Torch's optimizer state in optax and back: the next updates are torch's, in both directions.

The right values are those of torch.optim; "rounding" is a few units of float32's last place.
"""

from __future__ import annotations

import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from helpers import hf_gpt2, hf_llama
from torch import nn

import bridges
from bridges import optimizer_state
from bridges.family import family_of
from bridges.table import into_tree, out_of_tree
from bridges.torch.named_leaves import _Held
from dew import Dataset, Trainer
from dew.errors import InputRefused, WeightMismatch
from dew.inputs import Field
from dew.objectives.supervised import Supervised
from dew.training.optimizers import optimizer as dew_optimizer
from dew.training.progress import Silent

pytestmark = pytest.mark.torch

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw_numbers": lambda p: torch.optim.AdamW(
        p, lr=3e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3
    ),
    "adamw_maximize": lambda p: torch.optim.AdamW(p, lr=1e-2, maximize=True, foreach=True),
    "adam_l2": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "sgd_nesterov": lambda p: torch.optim.SGD(
        p, lr=1e-2, momentum=0.8, nesterov=True, weight_decay=0.1, maximize=True
    ),
}


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def gradients(module, seed):
    """Return seeded gradients by name; the same for torch and for JAX."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=tuple(p.shape)).astype(np.float32)
        for name, p in module.named_parameters()
    }


def step_torch(optimizer, module, seeds):
    for seed in seeds:
        found = gradients(module, seed)
        for name, parameter in module.named_parameters():
            parameter.grad = torch.from_numpy(found[name]) if parameter.requires_grad else None
        optimizer.step()


def values(module):
    return {name: jnp.array(p.detach().numpy()) for name, p in module.named_parameters()}


def step_jax(optimizer, state, params, module, seeds):
    for seed in seeds:
        found = {name: jnp.asarray(g) for name, g in gradients(module, seed).items()}
        updates, state = optimizer.update({name: found[name] for name in params}, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def close(ours, theirs):
    assert set(ours) == set(theirs)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-6, atol=3e-7, err_msg=name)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 3])
def test_jax_goes_on_where_torch_stopped(name, before):
    module = small()
    theirs = OPTIMIZERS[name](module.named_parameters())
    step_torch(theirs, module, range(before))
    params, saved = values(module), theirs.state_dict()
    ours = optimizer_state.optimizer(saved)
    state = optimizer_state.to_jax(saved, ours.init(params))
    step_torch(theirs, module, range(10, 13))  # in place: what JAX holds must not move
    params, state = step_jax(ours, state, params, module, range(10, 13))
    close(params, values(module))
    if "adam" in name:
        assert [int(n) for _, n in optax.tree_utils.tree_get_all_with_path(state, "count")] == [
            before + 3,
            before + 3,
        ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torch_goes_on_where_jax_stopped(name):
    module = small()
    theirs = OPTIMIZERS[name](module.parameters())
    names = optimizer_state.parameter_names(theirs, module)
    ours = optimizer_state.optimizer(theirs.state_dict(), names)
    params = values(module)
    params, state = step_jax(ours, ours.init(params), params, module, range(3))
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(params[key])))
    theirs.load_state_dict(optimizer_state.to_torch(state, theirs.state_dict(), names))
    held = jax.tree.map(np.array, state)
    step_torch(theirs, module, range(10, 13))
    jax.tree.map(np.testing.assert_array_equal, held, jax.tree.map(np.array, state))
    params, _ = step_jax(ours, state, params, module, range(10, 13))
    close(params, values(module))


def test_there_and_back_is_the_same_state():
    module = small()
    theirs = torch.optim.AdamW(module.named_parameters(), lr=1e-2)
    step_torch(theirs, module, range(2))
    saved = theirs.state_dict()
    state = optimizer_state.to_jax(saved, optimizer_state.optimizer(saved).init(values(module)))
    fresh = torch.optim.AdamW(module.named_parameters(), lr=1e-2)
    back = optimizer_state.to_torch(state, fresh.state_dict())
    torch.testing.assert_close(back["state"], saved["state"], rtol=0, atol=0)
    assert back["param_groups"] == saved["param_groups"]


def two_groups(module, **options):
    decayed = [p for p in module.parameters() if p.ndim > 1]
    rest = [p for p in module.parameters() if p.ndim == 1]
    return torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.2},
            {"params": rest, "weight_decay": 0.0, "lr": 2e-2, "betas": (0.7, 0.9)},
        ],
        lr=1e-2,
        **options,
    )


def test_groups_keep_their_own_numbers_both_ways():
    module = small()
    theirs = two_groups(module)
    names = optimizer_state.parameter_names(theirs, module)
    assert names[:2] == ["0.weight", "2.weight"]
    step_torch(theirs, module, range(3))
    params, saved = values(module), theirs.state_dict()
    ours = optimizer_state.optimizer(saved, names)
    state = optimizer_state.to_jax(saved, ours.init(params), names)
    step_torch(theirs, module, range(10, 13))
    params, state = step_jax(ours, state, params, module, range(10, 13))
    close(params, values(module))
    back = optimizer_state.to_torch(state, saved, names)
    for number, entry in theirs.state_dict()["state"].items():
        assert back["state"][number]["step"] == 6
        close(
            {"nu": back["state"][number]["exp_avg_sq"].numpy()},
            {"nu": entry["exp_avg_sq"].numpy()},
        )


def test_dews_own_optimizers_are_filled_with_their_counters():
    module = small()
    theirs = torch.optim.AdamW(module.named_parameters(), lr=1e-2, weight_decay=0.0)
    step_torch(theirs, module, range(3))
    params, saved = values(module), theirs.state_dict()
    rates = []
    ours = dew_optimizer("adamw", lambda n: rates.append(n) or 1e-2, max_grad_norm=1e9)
    state = optimizer_state.to_jax(saved, ours.init(params))
    assert int(state[-1].count) == 3
    step_torch(theirs, module, range(10, 12))
    params, _ = step_jax(ours, state, params, module, range(10, 12))
    assert [int(rate) for rate in rates] == [3, 4]
    close(params, values(module))


def test_sgd_does_not_know_its_updates_and_takes_them():
    module = small()
    theirs = torch.optim.SGD(module.named_parameters(), lr=1e-2, momentum=0.9)
    step_torch(theirs, module, range(3))
    saved = theirs.state_dict()
    ours = optimizer_state.optimizer(saved)
    fresh = ours.init(values(module))
    assert int(optimizer_state.to_jax(saved, fresh)[-1].count) == 0
    assert int(optimizer_state.to_jax(saved, fresh, updates=3)[-1].count) == 3


def test_a_file_is_read_without_running_its_code(tmp_path):
    module = small()
    theirs = torch.optim.AdamW(module.named_parameters(), lr=1e-2)
    step_torch(theirs, module, range(2))
    torch.save(theirs.state_dict(), tmp_path / "optimizer.pt")
    ours = optimizer_state.optimizer(tmp_path / "optimizer.pt")
    state = optimizer_state.to_jax(str(tmp_path / "optimizer.pt"), ours.init(values(module)))
    assert int(state[0].count) == 2
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(mark), "w"))

    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"state": Evil(), "param_groups": []}))
    torch.save({"state": Evil(), "param_groups": []}, tmp_path / "worse.pt")
    for name in ("evil.pt", "worse.pt"):
        with pytest.raises(InputRefused, match=r"without running its code"):
            optimizer_state.optimizer(tmp_path / name)
    assert not mark.exists()
    with pytest.raises(InputRefused, match="no such file"):
        optimizer_state.optimizer(tmp_path / "absent.pt")
    torch.save({"optimizer": theirs.state_dict(), "epoch": 3}, tmp_path / "whole.pt")
    with pytest.raises(InputRefused, match=r"'epoch', 'optimizer'.*pass that part"):
        optimizer_state.optimizer(tmp_path / "whole.pt")


@pytest.mark.parametrize(
    "saved",
    [
        [],
        {"state": {}, "param_groups": []},
        {"state": {}, "param_groups": {"lr": 1}},
        {"state": {}, "param_groups": [3]},
        {"state": {}, "param_groups": [{"params": [0]}]},
        {"state": [], "param_groups": [{"params": [0]}]},
        {"state": {0: {"exp_avg": "text"}}, "param_groups": [{"params": [0]}]},
        {"state": {0: torch.ones(2)}, "param_groups": [{"params": [0]}]},
    ],
)
def test_what_is_no_optimizers_state_is_refused(saved):
    for call in (
        lambda: optimizer_state.optimizer(saved),
        lambda: optimizer_state.to_jax(saved, optax.adam(1.0).init({"w": jnp.ones(2)}), ["w"]),
    ):
        with pytest.raises(InputRefused, match="expected"):
            call()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad"),
        (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, dampening=0.5), "dampening 0.5"),
        (torch.optim.RAdam, "AdamW, Adam or SGD"),
        (torch.optim.NAdam, "momentum_decay"),
        (torch.optim.Adamax, "AdamW, Adam or SGD"),
        (torch.optim.RMSprop, "alpha"),
    ],
)
def test_other_optimizers_are_refused_by_name(make, reason):
    module = small()
    saved = make(module.named_parameters()).state_dict()
    for call in (
        lambda: optimizer_state.optimizer(saved),
        lambda: optimizer_state.to_jax(saved, optax.adam(1.0).init(values(module))),
        lambda: optimizer_state.to_torch(optax.adam(1.0).init(values(module)), saved),
    ):
        with pytest.raises(InputRefused, match=reason):
            call()


def stepped():
    module = small()
    theirs = torch.optim.AdamW(module.parameters(), lr=1e-2)
    step_torch(theirs, module, range(2))
    saved = theirs.state_dict()
    names = [name for name, _ in module.named_parameters()]
    return module, saved, names, optimizer_state.optimizer(saved).init(values(module))


def test_names_that_do_not_fit_are_refused():
    module, saved, names, state = stepped()
    with pytest.raises(InputRefused, match=r"by number: pass names="):
        optimizer_state.to_jax(saved, state)
    with pytest.raises(InputRefused, match=r"5 names \(5 different ones\) for 6 parameters"):
        optimizer_state.to_jax(saved, state, names[:5])
    with pytest.raises(InputRefused, match=r"no parameters of this Linear"):
        optimizer_state.parameter_names(torch.optim.SGD(module.parameters()), nn.Linear(1, 1))
    swapped = [names[2], *names[1:2], names[0], *names[3:]]
    with pytest.raises(WeightMismatch, match=r"exp_avg of 0.weight: wanted \(4, 3\), is \(4,\)"):
        optimizer_state.to_jax(saved, state, swapped)
    other = ["0.kernel", *names[1:]]
    with pytest.raises(WeightMismatch, match=r"left over +exp_avg of 0.kernel[\s\S]*missing"):
        optimizer_state.to_jax(saved, state, other)
    with pytest.raises(WeightMismatch, match=r"left over +0.weight \(4, 3\)"):
        optimizer_state.to_torch(state, saved, other)
    with pytest.raises(WeightMismatch, match=r"misshapen +0.weight: torch has \(4,\)"):
        optimizer_state.to_torch(state, saved, swapped)


def test_step_counts_that_differ_and_states_that_are_missing_are_refused():
    _, saved, names, state = stepped()
    saved["state"][1]["step"] = torch.tensor(1.0)
    with pytest.raises(InputRefused, match=r"at step 2[\s\S]*0.bias: 1"):
        optimizer_state.to_jax(saved, state, names)
    del saved["state"][1]
    with pytest.raises(WeightMismatch, match=r"missing +exp_avg of 0.bias \(4,\)"):
        optimizer_state.to_jax(saved, state, names)
    with pytest.raises(InputRefused, match="updates is 7"):
        optimizer_state.to_jax(stepped()[1], state, names, updates=7)


def test_a_state_of_another_kind_is_refused():
    module, saved, names, _ = stepped()
    with pytest.raises(InputRefused, match="has no ScaleByAdamState"):
        optimizer_state.to_jax(saved, optax.sgd(1.0).init(values(module)), names)
    plain = torch.optim.SGD(module.named_parameters(), lr=1.0).state_dict()
    with pytest.raises(InputRefused, match=r"has TraceState.*keeps no momentum_buffer"):
        optimizer_state.to_torch(optax.sgd(1.0, 0.9).init(values(module)), plain)


def test_l2_and_decoupled_decay_are_told_apart_or_asked_for():
    saved = stepped()[1]
    del saved["param_groups"][0]["decoupled_weight_decay"]
    with pytest.raises(InputRefused, match="set decoupled_weight_decay"):
        optimizer_state.optimizer(saved)


def test_frozen_parameters_stay_outside():
    module = small()
    module[0].requires_grad_(False)
    theirs = torch.optim.AdamW(module.named_parameters(), lr=1e-2)
    step_torch(theirs, module, range(2))
    params = {n: v for n, v in values(module).items() if not n.startswith("0.")}
    saved = theirs.state_dict()
    ours = optimizer_state.optimizer(saved)
    state = optimizer_state.to_jax(saved, ours.init(params))
    assert set(optimizer_state.to_torch(state, saved)["state"]) == {2, 3, 4, 5}
    step_torch(theirs, module, [10])
    params, _ = step_jax(ours, state, params, module, [10])
    close(params, {n: v for n, v in values(module).items() if n in params})


@pytest.mark.parametrize("build", [hf_llama, pytest.param(hf_gpt2, marks=pytest.mark.slow)])
def test_native_families_go_through_their_weight_table(build, tmp_path):
    """Grouped as transformers' Trainer does it; gradients laid over by the same table."""
    torch.manual_seed(0)
    module = build()
    module.save_pretrained(tmp_path)
    bundle = bridges.load(tmp_path)
    rows = family_of(bundle.config).rows(bundle.model)
    shapes = bundle.variables["params"]
    theirs = two_groups(module)
    names = optimizer_state.parameter_names(theirs, module)
    step_torch(theirs, module, range(2))
    params, saved = into_tree(rows, _Held(values(module)), shapes, None), theirs.state_dict()
    ours = optimizer_state.optimizer(saved, names, bundle=bundle)
    state = optimizer_state.to_jax(saved, ours.init(params), names, bundle=bundle)
    back = optimizer_state.to_torch(state, saved, names, bundle=bundle)
    torch.testing.assert_close(back["state"], saved["state"], rtol=0, atol=0)
    step_torch(theirs, module, range(10, 12))
    for seed in range(10, 12):
        found = into_tree(rows, _Held(gradients(module, seed)), shapes, None)
        updates, state = ours.update(found, state, params)
        params = optax.apply_updates(params, updates)
    close(dict(out_of_tree(rows, params)), {n: np.asarray(v) for n, v in values(module).items()})


def test_the_trainer_begins_with_torchs_state():
    """Two steps in torch and the third in `dew.Trainer` are three steps in torch."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    x, labels = torch.randn(6, 3), torch.randint(0, 4, (6,))
    theirs = torch.optim.AdamW(module.named_parameters(), lr=1e-2)

    def step():
        theirs.zero_grad()
        nn.functional.cross_entropy(module(x), labels).backward()
        theirs.step()

    step()
    step()
    traced = bridges.from_torch(module, (x,))
    saved = theirs.state_dict()
    begun = optimizer_state.resumed(optimizer_state.optimizer(saved), saved)
    objective = Supervised(traced, Field("x", (3,)), Field("label", ()))
    batch = {"x": x.numpy(), "label": labels.int().numpy()}
    data = Dataset(lambda share: itertools.repeat(batch), None, records=6, batch=6)
    state = Trainer(objective, begun, key=jax.random.key(0)).fit(
        data, steps=1, variables=traced.variables, progress=Silent()
    )
    step()
    close(state.params["params"], values(module))
    assert int(state.opt_state[0].count) == 3

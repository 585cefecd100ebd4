"""Low-rank sums of traced maps, with ranks, scales and magnitudes of their own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from bridges.torch.lora import WHOLE, adapter_of
from bridges.torch.low_rank import LowRankModule, leaves
from bridges.torch.tracing import from_torch
from dew.errors import InputRefused, UnknownName

pytestmark = [pytest.mark.torch]


class Maps(nn.Module):
    """A linear map, one whose weight is read twice, one stored across, and a head."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.pytorch_utils import Conv1D

        self.first = nn.Linear(5, 4)
        self.second = nn.Linear(4, 4)
        self.across = Conv1D(6, 4)
        self.score = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        both = self.second(hidden) + hidden @ self.second.weight.tanh()
        return self.score(torch.tanh(self.across(both)))


SETTINGS = {
    "rank": 2,
    "alpha": 3.0,
    "targets": ("first", "second", "across"),
    "ranks": {"across": 3},
    "alphas": {"fir.t": 5.0},
    "rslora": True,
    "dora": True,
    "saved": ("score",),
    "bias": "lora_only",
}


@pytest.fixture(scope="module")
def maps():
    torch.manual_seed(0)
    module = Maps().eval()
    return module, from_torch(module, (torch.randn(3, 5),))


def stirred(adapter, params):
    """Return adapters whose every value has moved."""
    first = adapter.init(jax.random.key(0), params)
    return jax.tree.map(lambda leaf: 1.1 * leaf + 0.3, first)


def test_what_is_trained_is_what_peft_trains(maps):
    module, traced = maps
    adapter = adapter_of(traced, **SETTINGS)
    assert adapter.scale_of("first") == pytest.approx(5 / 2**0.5)
    assert adapter.scale_of("across") == pytest.approx(3 / 3**0.5)
    first = adapter.init(jax.random.key(0), traced.variables["params"])
    assert set(first[WHOLE]) == {
        *("score.weight", "score.bias"),
        *("first.bias", "second.bias", "across.bias"),
    }
    assert first["across"]["A"].shape == (3, 4)
    # DoRA begins at the length of each output's weights.
    for name, axis in (("first", 1), ("across", 0)):
        wanted = module.get_parameter(f"{name}.weight").detach().norm(dim=axis).numpy()
        np.testing.assert_allclose(first[name]["M"], wanted, rtol=1e-6)


def test_sums_beside_the_maps_are_the_merged_weights_and_so_are_their_gradients(maps):
    traced = maps[1]
    adapter = adapter_of(traced, **SETTINGS)
    params = traced.variables["params"]
    adapters = stirred(adapter, params)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 5)), jnp.float32)
    low = LowRankModule(traced, adapter)

    def merged(adapters):
        held = {**traced.variables, "params": adapter.laid_over(params, adapters)}
        return jnp.sum(jnp.sin(traced.apply(held, x)))

    def summed(adapters):
        held = {**traced.variables, "params": {**params, **leaves(adapters)}}
        return jnp.sum(jnp.sin(low.apply(held, x)))

    ours, theirs = (jax.jit(jax.value_and_grad(run))(adapters) for run in (summed, merged))
    for found, wanted in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_magnitudes_scale_the_outputs_by_hand(maps):
    """Oracle: Liu et al. 2024, equation 5: m (W + s B A) / |W + s B A|, in float64 in torch."""
    module, traced = maps
    adapter = adapter_of(traced, rank=2, alpha=3.0, targets=("first",), dora=True)
    pair = stirred(adapter, traced.variables["params"])["first"]
    a, b, m = (torch.tensor(np.asarray(pair[side])).double() for side in "ABM")
    total = module.first.weight.detach().double() + 1.5 * b @ a
    weight = m[:, None] * total / total.norm(dim=1, keepdim=True)
    held = adapter.laid_over(traced.variables["params"], {"first": pair})
    np.testing.assert_allclose(held["first.weight"], weight.numpy(), rtol=1e-5, atol=1e-7)


def test_what_cannot_be_trained_is_refused_by_name(maps):
    traced = maps[1]
    with pytest.raises(UnknownName, match="no module 'scor'; did you mean 'score'"):
        adapter_of(traced, targets=("first",), saved=("scor",))
    adapter = adapter_of(traced, targets=("first",), start="pissa")
    with pytest.raises(InputRefused, match="begin with true or 'gaussian'"):
        adapter.init(jax.random.key(0), traced.variables["params"])

"""Every operator against torch's own: forward values, dtypes and derivatives."""

from __future__ import annotations

import pytest
import torch_ops_indexing
import torch_ops_layers
import torch_ops_pointwise
import torch_ops_products
import torch_ops_reductions
import torch_ops_shapes
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch_ops import CASES, Draw, check

from bridges.torch.ops import operators

pytestmark = pytest.mark.torch

_KINDS = (
    torch_ops_indexing, torch_ops_layers, torch_ops_pointwise, torch_ops_products,
    torch_ops_reductions, torch_ops_shapes,
)  # fmt: skip

# Held to something else than torch's own operator, each in the file named.
_ELSEWHERE = {
    "test_torch_ops_random": ("bridges.torch.ops.random",),
    "test_torch_ops_edges": ("bridges.torch.ops.scalars",),
}
_NOT_ATEN = ("bridge.", "transformers.")
"""What the names of operators begin with that are dew's own, or another library's."""


def _prove(name: str, examples: int) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        # Calls that torch refuses are drawn anew, so that some operators discard many.
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.data())
    def prove(data: st.DataObject) -> None:
        check(name, CASES[name](Draw(data.draw), name))

    prove()


def test_every_operator_of_the_table_is_held_to_something():
    elsewhere = {module for modules in _ELSEWHERE.values() for module in modules}
    names = {
        name.removeprefix("aten.")
        for name, entry in operators().items()
        if entry.function.__module__ not in elsewhere
        and not name.startswith(("python.", *_NOT_ATEN))
    }
    assert names - set(CASES) == set(), "operators without a strategy"
    assert set(CASES) - names == set(), "strategies without an operator"


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_operator_does_what_torch_does(name):
    _prove(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_an_operator_does_what_torch_does_on_many_calls(name):
    _prove(name, 40)

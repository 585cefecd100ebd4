"""Activations equal transformers' functions of the same names."""

from __future__ import annotations

import numpy as np
import pytest

from dew.errors import UnknownName
from dew.nn.activations import ACTIVATIONS, activation

RANGE = np.linspace(-6, 6, 2001, dtype=np.float32)


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_each_name_is_the_function_transformers_calls_so(name):
    # CASES P027.
    import torch
    from transformers.activations import ACT2FN

    wanted = ACT2FN[name](torch.from_numpy(RANGE)).numpy()
    np.testing.assert_allclose(np.asarray(activation(name)(RANGE)), wanted, atol=1e-6)


def test_gelu_is_the_exact_form_and_differs_from_the_others():
    # Closed form: x Φ(x) at 1 is Φ(1) = 0.8413447461.
    assert float(activation("gelu")(np.float32(1))) == pytest.approx(0.8413447461, abs=1e-6)
    exact, tanh, sigmoid = (
        np.asarray(activation(n)(RANGE)) for n in ("gelu", "gelu_new", "quick_gelu")
    )
    assert np.abs(exact - tanh).max() > 1e-4
    assert np.abs(exact - sigmoid).max() > 1e-2


def test_an_unknown_activation_lists_the_known_ones_and_runs_nothing():
    with pytest.raises(UnknownName, match=r"not known.*gelu_new"):
        activation("__import__('os').system('true')")

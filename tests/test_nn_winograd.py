"""Convolutions by fewer products, and poolings by shifted images: torch's are the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from dew.nn.pooling import averaged, greatest
from dew.nn.winograd import winograd

pytestmark = pytest.mark.torch


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def nchw(x):
    import torch

    return torch.from_numpy(x).permute(0, 3, 1, 2)


@pytest.mark.parametrize("size", [(3, 3), (10, 6), (11, 9), (23, 18)])
def test_a_convolution_is_torchs(size):
    """Oracle in float64; a float32 sum of so many terms is off by a fifth of the bound."""
    import torch

    x, kernel = drawn(2, *size, 5), drawn(3, 3, 5, 7, seed=1)
    weights = torch.from_numpy(kernel).permute(3, 2, 0, 1)
    expected = torch.conv2d(nchw(x).double(), weights.double()).permute(0, 2, 3, 1).numpy()
    made = np.asarray(winograd(x, kernel))
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", [(3, 3), (8, 9), (17, 12)])
def test_poolings_are_torchs(size):
    from torch.nn import functional

    x = drawn(2, *size, 4)
    pairs = [
        (greatest(x), functional.max_pool2d(nchw(x), 3, 1, 1)),
        (greatest(x, 2), functional.max_pool2d(nchw(x), 3, 2)),
        (averaged(x), functional.avg_pool2d(nchw(x), 3, 1, 1, count_include_pad=False)),
    ]
    for made, expected in pairs:
        np.testing.assert_allclose(made, expected.permute(0, 2, 3, 1).numpy(), atol=1e-6)

"""Pictures as Inception reads them: each FID tool's own resizing is the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from image_networks import pictures

from dew.errors import UnknownName
from dew.nn.fid_sampling import MODES, SIDE, sampled

SIZES = [(8, 6), (1, 1), (32, 32), (41, 67), (299, 299), (299, 40), (300, 200), (480, 640)]
TOLERANCE = 1e-5
"""Of a range of 2: a hundredth of the step between two levels of a byte."""


def theirs(mode, levels):
    """Return what a tool's network is given of bytes, with the tool's own functions."""
    import torch

    tensor = torch.from_numpy(levels).permute(0, 3, 1, 2).float()
    size = {"size": (SIDE, SIDE), "mode": "bilinear", "align_corners": False}
    if mode == "pytorch-fid":
        made = 2 * torch.nn.functional.interpolate(tensor / 255, **size) - 1
    elif mode == "torchmetrics":
        made = (torch.nn.functional.interpolate(tensor, **size, antialias=True) - 128) / 128
    elif mode == "torch-fidelity":
        from torch_fidelity.interpolate_compat_tensorflow import (
            interpolate_bilinear_2d_like_tensorflow1x as interpolate,
        )

        made = (interpolate(tensor, (SIDE, SIDE), align_corners=False) - 128) / 128
    else:
        from cleanfid.resize import build_resizer

        return np.stack([(build_resizer("clean")(image) - 128) / 128 for image in levels])
    return made.permute(0, 2, 3, 1).numpy()


@pytest.mark.torch
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", MODES)
def test_pictures_are_resized_as_the_tool_does(mode, size):
    levels = pictures(2, *size)
    levels[0, :, ::2] = 0  # edges, at which a cubic leaves the range
    levels[0, :, 1::2] = 255
    given = np.asarray(sampled(levels, mode))
    assert (given.shape, given.dtype) == ((2, SIDE, SIDE, 3), np.float32)
    np.testing.assert_allclose(given, theirs(mode, levels), rtol=0, atol=TOLERANCE)


def test_no_two_modes_agree_where_pictures_shrink():
    levels = pictures(1, 600, 450)
    made = {mode: np.asarray(sampled(levels, mode)) for mode in MODES}
    for mode, pixels in made.items():
        for other in {*MODES} - {mode}:
            assert np.abs(pixels - made[other]).max() > 100 * TOLERANCE, (mode, other)


def test_an_unknown_mode_names_the_nearest():
    import jax

    from dew.nn.inception import InceptionEncoder

    with pytest.raises(UnknownName, match="did you mean 'clean-fid'"):
        InceptionEncoder.random(jax.random.key(0), 64, "cleanfid")

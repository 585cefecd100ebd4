"""LPIPS: torchmetrics' distances on seeded trunks and the published heads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from image_networks import as_floats, pictures, seeded_state

from bridges.encoders.perceptual import load_perceptual
from dew import metrics
from dew.artifacts import ImageGrid
from dew.errors import InputRefused, WeightMismatch

pytestmark = pytest.mark.torch
TOLERANCE = 1e-5
NETS = {"alex": "alexnet", "vgg": "vgg16", "squeeze": "squeezenet1_1"}


@pytest.fixture(scope="module")
def trunks(tmp_path_factory):
    """Return, by name, a torchvision trunk with seeded weights and the file that holds them."""
    import torchvision
    from safetensors.torch import save_file

    folder, made = tmp_path_factory.mktemp("trunks"), {}

    def trunk(net):
        if net not in made:
            features = getattr(torchvision.models, NETS[net])(weights=None).features
            state = seeded_state(features)
            features.load_state_dict(state)
            file = folder / f"{net}.safetensors"
            save_file({f"features.{name}": value for name, value in state.items()}, file)
            made[net] = features.eval(), file
        return made[net]

    return trunk


def torchmetrics_distances(net, features, made, real, **options):
    """Return torchmetrics' distance of each pair, with the given trunk in place of a download."""
    import torch
    import torchmetrics.functional.image.lpips as theirs

    pairs = [torch.from_numpy(images).permute(0, 3, 1, 2) for images in (made, real)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theirs, "_get_tv_model_features", lambda *args: features)
        network = theirs._NoTrainLpips(net=net)
    with torch.no_grad():
        return network(*pairs, **options).flatten().numpy()


@pytest.mark.parametrize("size", [(64, 64), (71, 53)])
@pytest.mark.parametrize("net", NETS)
def test_the_distance_is_that_of_torchmetrics(trunks, net, size):
    """P103: oracle on seeded trunks; images in [-1, 1]."""
    features, file = trunks(net)
    real, made = pictures(3, *size, seed=1), pictures(3, *size, seed=2)
    made[0] = np.clip(real[0].astype(int) + 9, 0, 255)
    expected = torchmetrics_distances(net, features, as_floats(made), as_floats(real))
    assert expected.min() > 1e-3, "a comparison of zeros shows nothing"
    network = load_perceptual(net, file)
    np.testing.assert_allclose(network(made, real), expected, rtol=0, atol=TOLERANCE)
    metric = metrics.lpips(network)
    score = metric.finalize(metric(ImageGrid(as_floats(made)), {"image": real}))
    assert score == pytest.approx(expected.mean(), abs=TOLERANCE)


def test_images_of_the_unit_interval_count_as_such_only_where_it_is_said(trunks):
    """P103: oracle, torchmetrics with and without its normalisation."""
    from dew.evaluation.pixels import Reference

    features, file = trunks("alex")
    real, made = pictures(2, 64, 64, seed=1), pictures(2, 64, 64, seed=2)
    unit = [(levels / 255).astype(np.float32) for levels in (made, real)]
    expected = torchmetrics_distances("alex", features, *unit, normalize=True).mean()
    mistaken = torchmetrics_distances("alex", features, *unit).mean()
    assert mistaken < 0.8 * expected, "too good: what the case warns of"
    network = load_perceptual("alex", file)
    declared = metrics.lpips(network, Reference(low=0, high=1))
    score = declared.finalize(declared(ImageGrid(as_floats(made)), {"image": unit[1]}))
    assert score == pytest.approx(expected, abs=TOLERANCE)
    with pytest.raises(InputRefused, match=r"outside \[0, 1\]"):
        declared(ImageGrid(as_floats(made)), {"image": as_floats(real)})


def test_equal_images_lie_at_zero_and_the_order_of_a_pair_does_not_matter(trunks):
    network = load_perceptual("squeeze", trunks("squeeze")[1])
    real, made = pictures(9, 40, 40, seed=1), pictures(9, 40, 40, seed=2)
    np.testing.assert_allclose(network(real, real), np.zeros(9), atol=1e-9)
    np.testing.assert_allclose(network(real, made), network(made, real), rtol=1e-6)


def test_grey_images_are_repeated_over_the_channels_and_bad_ones_are_nan(trunks):
    network = load_perceptual("alex", trunks("alex")[1])
    metric = metrics.lpips(network)
    real, made = pictures(2, 40, 40, seed=1)[..., :1], pictures(2, 40, 40, seed=2)[..., :1]
    score = metric.finalize(metric(ImageGrid(as_floats(made)), {"image": real}))
    whole = network(np.repeat(made, 3, -1), np.repeat(real, 3, -1)).mean()
    assert score == pytest.approx(whole, rel=1e-6)
    images = as_floats(made)
    images[0, 0, 0] = np.inf
    assert math.isnan(metric.finalize(metric(ImageGrid(images), {"image": real})))
    with pytest.raises(InputRefused, match="images have 2 channels"):
        metric(ImageGrid(as_floats(np.repeat(made, 2, -1))), {"image": np.repeat(real, 2, -1)})


def test_what_cannot_be_computed_is_refused(trunks, tmp_path):
    from safetensors.numpy import save_file

    small, (_, file) = pictures(1, 20, 20), trunks("alex")
    with pytest.raises(InputRefused, match="20 x 20 are too small for alex"):
        load_perceptual("alex", file)(small, small)
    with pytest.raises(InputRefused, match="net is 'resnet'"):
        load_perceptual("resnet", file)
    with pytest.raises(
        WeightMismatch, match=r"(?s)misshapen +features.10.weight.*missing +features.12.weight"
    ):
        load_perceptual("vgg", file)
    with pytest.raises(InputRefused, match=r"load_perceptual\(.alex., TRUNK\)"):
        metrics.lpips()(ImageGrid(as_floats(small)), {"image": small})
    heads = {f"lin{i}.model.1.weight": np.ones((1, n, 1, 1)) for i, n in enumerate((64, 192, 384))}
    save_file(heads, tmp_path / "heads.safetensors")
    with pytest.raises(WeightMismatch, match=r"(?s)missing +lin3.*missing +lin4"):
        load_perceptual("alex", file, tmp_path / "heads.safetensors")

"""torchvision's and timm's models by `bridges.from_torch`, fed by their own transforms.

The right values are those of the torch modules; the transforms run in torch on both sides.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from torch import nn

import bridges
from bridges.torch.export import NotExportable

pytestmark = pytest.mark.torch


def perturbed(module):
    """Return a module in evaluation mode whose weights and statistics are not those of its start.

    Zeros and ones hide what is left out; the last layer of many a block starts at zero.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.rand(tensor.shape, generator=generator) - 0.5
                tensor.add_(noise.abs() if "running_var" in name else 0.1 * noise)
    return module.eval()


def classifier(build):
    torch.manual_seed(0)
    module = perturbed(build())
    size = getattr(module, "default_cfg", {"input_size": (3, 64, 64)})["input_size"]
    x = torch.randn(2, *size)
    return module, bridges.from_torch(module, (x,)), x


def close(ours, theirs, tolerance=1e-5):
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape
    assert np.abs(np.asarray(ours) - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.fixture(scope="module")
def squeezenet():
    return classifier(lambda: torchvision.models.squeezenet1_1(num_classes=5))


@pytest.fixture(scope="module")
def vit():
    return classifier(lambda: timm.create_model("test_vit", num_classes=7))


def pictures():
    rng = np.random.default_rng(0)
    return [
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8))
        for size in ((90, 120), (301, 257))
    ]


def test_a_torchvision_classifier_gives_torchs_values(squeezenet):
    module, traced, x = squeezenet
    out = module(x)
    assert (out - out[0]).abs().max() > 1e-3  # it depends on its input
    close(traced(x.numpy()), out)


def test_a_timm_classifier_gives_torchs_values_and_gradients(vit):
    module, traced, x = vit
    out = module(x)
    assert (out - out[0]).abs().max() > 1e-3
    close(traced(x.numpy()), out)
    module.zero_grad()
    out.square().sum().backward()

    @jax.jit
    @jax.grad
    def gradients(params):
        return jnp.sum(traced.apply({**traced.variables, "params": params}, x.numpy()) ** 2)

    found = gradients(traced.variables["params"])
    assert set(found) == {name for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        norm = max(float(parameter.grad.norm()), 1e-6)
        error = np.linalg.norm(np.asarray(found[name]) - parameter.grad.numpy())
        assert error <= 1e-3 * norm, name


def test_composed_transforms_feed_a_traced_module(squeezenet):
    from torchvision.transforms import v2

    module, traced, _ = squeezenet
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize((64, 80), antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
        ]
    )
    batch = torch.stack([transform(picture) for picture in pictures()])
    close(traced(bridges.tensors.to_jax(batch)), module(batch))


def test_the_transforms_of_torchvisions_weights_feed_a_traced_module(squeezenet):
    module, traced, _ = squeezenet
    transform = torchvision.models.SqueezeNet1_1_Weights.IMAGENET1K_V1.transforms()
    batch = torch.stack([transform(picture) for picture in pictures()])
    assert batch.shape == (2, 3, 224, 224)
    close(traced(bridges.tensors.to_jax(batch)), module(batch))
    assert len(traced._tracer.programs[False]) == 1  # the trace at 64 x 64 covers it


@pytest.mark.slow
def test_timms_transforms_feed_a_traced_module(vit):
    module, traced, _ = vit
    config = timm.data.resolve_data_config({}, model=module)
    transform = timm.data.create_transform(**config, is_training=False)
    batch = torch.stack([transform(picture) for picture in pictures()])
    close(traced(bridges.tensors.to_jax(batch)), module(batch))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_more_torchvision_classifiers(name):
    module, traced, x = classifier(
        lambda: torchvision.models.get_model(name, weights=None, num_classes=5)
    )
    close(traced(x.numpy()), module(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["test_resnet", "test_convnext", "test_efficientnet"],
)
def test_more_timm_models(name):
    module, traced, x = classifier(lambda: timm.create_model(name))
    close(traced(x.numpy()), module(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lraspp_mobilenet_v3_large", "fcn_resnet50"])
def test_torchvision_segmenters_give_torchs_maps_by_name(name):
    module, traced, x = classifier(
        lambda: torchvision.models.get_model(
            name, weights=None, weights_backbone=None, num_classes=3
        )
    )
    out, expected = traced(x.numpy()), module(x)
    assert list(out) == list(expected)
    for key in expected:
        close(out[key], expected[key])


class Network(nn.Module):
    """What of a torchvision detector is one computation: backbone and head, up to the boxes."""

    def __init__(self, detector):
        super().__init__()
        self.detector = detector

    def forward(self, images):
        features = list(self.detector.backbone(images).values())
        return self.detector.head(features), features


def tell_places_apart(network, images):
    """Give a new detector scores far enough apart that rounding does not order them.

    Its statistics become those of the images, and its class scores get a spread of 3.
    """
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 1.0
    with torch.no_grad():
        network.train()(images)
        spread = network.eval()(images)[0]["cls_logits"].std()
        for part in network.detector.head.classification_head.module_list:
            part[-1].weight.mul_(3 / spread)
            part[-1].bias.mul_(3 / spread)


@pytest.mark.slow
def test_a_torchvision_detector_runs_on_jax_up_to_its_boxes():
    """Its own anchors and suppression, in torch, make the same boxes of JAX's outputs.

    The whole does not export: how many boxes are left depends on their scores. The error says so.
    """
    torch.manual_seed(0)
    build = torchvision.models.detection.ssdlite320_mobilenet_v3_large
    detector = build(weights=None, weights_backbone=None, num_classes=3).eval()
    coarse = torch.rand(2, 3, 6, 6)
    images = list(nn.functional.interpolate(coarse, size=(320, 320), mode="bilinear"))
    with pytest.raises(NotExportable, match=r"cannot follow SSD at .*boxes\.py"):
        bridges.from_torch(detector, (images[:1],))
    batch, _ = detector.transform(images)
    network = Network(detector)
    tell_places_apart(network, batch.tensors)
    traced = bridges.from_torch(network, (batch.tensors,))
    with torch.no_grad():
        outputs, features = network(batch.tensors)
        ours, _ = bridges.tensors.to_torch(traced(bridges.tensors.to_jax(batch.tensors)))
        for name in outputs:
            close(ours[name].numpy(), outputs[name], 1e-4)
        anchors = detector.anchor_generator(batch, features)
        found, expected = (
            detector.postprocess_detections(heads, anchors, batch.image_sizes)
            for heads in (ours, outputs)
        )
    for one, other in zip(found, expected, strict=True):
        assert len(one["scores"]) == len(other["scores"]) > 10
        torch.testing.assert_close(one["scores"], other["scores"], rtol=1e-3, atol=1e-4)
        distances = torch.cdist(one["boxes"], other["boxes"]).min(dim=1).values
        assert (distances < 1).float().mean() >= 0.99  # of the last of 300, rounding chooses

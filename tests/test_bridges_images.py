"""Images prepared as transformers' own Pillow processors do it, bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import write_llama
from PIL import Image

import bridges
from bridges.processing import JointProcessor, read_image_processor, read_processor
from bridges.vision.image_processor import ImageProcessor
from dew.errors import InputRefused

SIZES = [(40, 60), (61, 37), (33, 33), (16, 90)]


def picture(height, width, seed=0, mode="RGB"):
    """A picture with edges and noise, so that every filter shows."""
    generator = np.random.default_rng(seed)
    levels = generator.integers(0, 256, (height, width, 3), np.uint8)
    levels[height // 4 : height // 2] = (250, 3, 90)
    return Image.fromarray(levels).convert(mode)


def reader(folder, settings, **config):
    """Our processor of a preprocessor_config.json."""
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    found = read_image_processor(folder, config)
    assert isinstance(found, ImageProcessor)
    return found


def theirs(name):
    """A Pillow processor of transformers by the name of its class."""
    import importlib

    modules = {
        "CLIP": "clip",
        "Siglip": "siglip",
        "ViT": "vit",
        "DeiT": "deit",
        "Bit": "bit",
        "ConvNext": "convnext",
        "MobileNetV2": "mobilenet_v2",
        "Segformer": "segformer",
    }
    module = f"transformers.models.{modules[name]}.image_processing_pil_{modules[name]}"
    return getattr(importlib.import_module(module), f"{name}ImageProcessorPil")


CASES = [
    ("CLIP", {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}),
    ("CLIP", {"size": 20, "crop_size": 28}),  # older spelling; the crop is larger, so padded
    ("CLIP", {"size": {"shortest_edge": 24}, "crop_size": 17, "resample": 1}),
    ("Bit", {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 21}}),
    ("Bit", {"size": {"shortest_edge": 24, "longest_edge": 30}, "crop_size": 24}),
    ("Siglip", {"size": {"height": 24, "width": 30}}),
    ("Siglip", {"size": {"height": 24, "width": 30}, "resample": 2, "do_normalize": False}),
    ("ViT", {"size": {"height": 24, "width": 24}}),
    ("ViT", {"size": 24, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}),
    ("ViT", {"size": {"height": 24, "width": 24}, "do_rescale": False, "resample": 0}),
    ("ViT", {"size": {"height": 24, "width": 24}, "rescale_factor": 0.01, "resample": 4}),
    ("ViT", {"size": {"height": 24, "width": 24}, "do_center_crop": True, "crop_size": 20}),
    ("DeiT", {"size": {"height": 32, "width": 32}, "crop_size": {"height": 28, "width": 28}}),
    ("DeiT", {"size": 32, "crop_size": 28, "resample": 5}),
    ("ConvNext", {"size": {"shortest_edge": 28}, "crop_pct": 0.875}),
    ("ConvNext", {"size": 24}),
    ("ConvNext", {"size": {"shortest_edge": 384}}),
    ("MobileNetV2", {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 28}}),
    ("Segformer", {"size": {"height": 32, "width": 40}, "do_reduce_labels": True}),
    ("Segformer", {"size": 32}),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_pixels_are_those_of_transformers(name, settings, tmp_path):
    processor = theirs(name)(**settings)
    written = json.loads(processor.to_json_string())
    for spelling in (settings | {"image_processor_type": f"{name}ImageProcessor"}, written):
        ours = reader(tmp_path, spelling)
        for index, size in enumerate(SIZES):
            image = picture(*size, seed=index)
            wanted = processor(image, return_tensors="np")["pixel_values"]
            found = ours(image)["pixel_values"]
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("ending", ["ImageProcessor", "ImageProcessorFast", "FeatureExtractor"])
@pytest.mark.parametrize("key", ["image_processor_type", "feature_extractor_type"])
def test_every_spelling_of_a_class_is_read(ending, key, tmp_path):
    settings = {"size": 24, "crop_size": 24, key: f"CLIP{ending}"}
    wanted = theirs("CLIP")(size=24, crop_size=24)(picture(40, 60), return_tensors="np")
    found = reader(tmp_path, settings)(picture(40, 60))["pixel_values"]
    np.testing.assert_array_equal(found, wanted["pixel_values"])


@pytest.mark.parametrize(
    ("model_type", "name"), [("dinov2", "Bit"), ("swin", "ViT"), ("resnet", "ConvNext")]
)
def test_a_config_without_a_class_goes_by_the_model(model_type, name, tmp_path):
    wanted = theirs(name)()(picture(40, 60), return_tensors="np")["pixel_values"]
    found = reader(tmp_path, {}, model_type=model_type)(picture(40, 60))["pixel_values"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "RGBA", "LA", "I;16"])
def test_colours_become_what_transformers_makes_of_them(mode, tmp_path):
    # BAD-INPUTS BP068: palette, CMYK, 16 bit, alpha.
    if mode == "I;16":
        levels = np.random.default_rng(0).integers(0, 65536, (20, 30), np.uint16)
        image = Image.fromarray(levels)
    else:
        image = picture(20, 30, mode=mode)
    if "A" in mode:
        image.putalpha(Image.fromarray(np.arange(600, dtype=np.uint8).reshape(20, 30)))
    settings = {"size": {"shortest_edge": 16}, "crop_size": 16}
    wanted = theirs("CLIP")(**settings)(image, return_tensors="np")["pixel_values"]
    found = reader(tmp_path, settings, model_type="clip")(image)["pixel_values"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["turned.jpg", "clear.png", "palette.gif"])
def test_a_file_gives_the_pixels_that_load_image_hands_to_the_processor(name, tmp_path):
    # BAD-INPUTS BP068: transformers' load_image turns by EXIF and drops alpha before the processor.
    from transformers.image_utils import load_image

    exif = Image.Exif()
    exif[274] = 6
    if name == "turned.jpg":
        picture(8, 20).save(tmp_path / name, exif=exif)
    elif name == "clear.png":
        image = picture(8, 20, mode="RGBA")
        image.putalpha(77)
        image.save(tmp_path / name)
    else:
        picture(8, 20, mode="P").save(tmp_path / name)
    settings = {"size": {"height": 16, "width": 12}}
    with Image.open(tmp_path / name) as opened:
        image = load_image(opened)
    wanted = theirs("ViT")(**settings)(image, return_tensors="np")["pixel_values"]
    ours = reader(tmp_path, settings, model_type="vit")
    np.testing.assert_array_equal(ours(str(tmp_path / name))["pixel_values"], wanted)
    np.testing.assert_array_equal(ours([tmp_path / name] * 2)["pixel_values"][1:], wanted)


def test_arrays_are_levels(tmp_path):
    ours = reader(tmp_path, {"size": 16}, model_type="vit")
    image = picture(20, 30)
    wanted = ours(image)["pixel_values"]
    np.testing.assert_array_equal(ours(np.array(image))["pixel_values"], wanted)
    both = ours(np.stack([image, image]))["pixel_values"]
    np.testing.assert_array_equal(both, np.concatenate([wanted, wanted]))
    grey = np.array(image.convert("L"))
    np.testing.assert_array_equal(
        ours(grey)["pixel_values"], ours(image.convert("L"))["pixel_values"]
    )


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((4, 4, 3), np.float32), r"float32 \[4, 4, 3\]; expected uint8"),
        (np.zeros((4, 4, 4), np.uint8), "array of 4 channels"),
        (np.zeros((0, 4, 3), np.uint8), "expected uint8 levels"),
        (7, "image of type int"),
        ([], "no images"),
        # BAD-INPUTS BP066: with the shorter side at 16, the longer one would be 960,000.
        (Image.new("RGB", (1, 60_000)), "resized to 16 x 960000; expected sides from 1 to 50000"),
        ([picture(20, 40), picture(40, 20)], "come out in 2 sizes"),
    ],
)
def test_what_is_no_image_is_refused(image, words, tmp_path):
    settings = {"size": {"shortest_edge": 16}, "do_center_crop": False}
    with pytest.raises(InputRefused, match=words):
        reader(tmp_path, settings, model_type="clip")(image)


def test_a_thin_image_never_loses_a_side(tmp_path):
    # The longest edge of 30 leaves 0.03 pixels for the shorter side.
    settings = {"size": {"shortest_edge": 16, "longest_edge": 30}, "do_center_crop": False}
    with pytest.raises(InputRefused, match="resized to 30 x 0"):
        reader(tmp_path, settings, model_type="clip")(Image.new("RGB", (1000, 1)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": {"longest_edge": 30}}, "size is .*expected height and width, or shortest_edge"),
        ({"size": {"height": 3}}, "expected"),
        ({"size": {"shortest_edge": 0}}, r"size\.shortest_edge is 0"),
        ({"size": "large"}, "size is 'large'"),
        ({"size": {"shortest_edge": 3, "depth": 1}}, "size is"),
        ({"crop_size": {"shortest_edge": 3}}, "crop_size is"),
        ({"resample": 9}, "resample is 9"),
        ({"image_std": [1, 0, 1]}, "image_std is"),
        ({"image_mean": [1, 2]}, "image_mean is"),
        ({"do_resize": "yes"}, "do_resize is 'yes'"),
        ({"do_pad": True}, "do_pad is True"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order is True"),
    ],
)
def test_settings_that_are_none_are_refused_by_name(settings, words, tmp_path):
    with pytest.raises(InputRefused, match=words):
        reader(tmp_path, settings, model_type="clip")


def test_a_key_that_nobody_knows_is_named(tmp_path):
    with pytest.warns(UserWarning, match="do_thumbnail"):
        reader(tmp_path, {"do_thumbnail": True}, model_type="clip")


def test_a_class_that_is_not_read_is_named_and_left_out(tmp_path):
    settings = {"image_processor_type": "LlavaNextImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match="class 'LlavaNextImageProcessor', which dew does not"):
        assert read_processor(tmp_path, {}) is None


def test_a_broken_file_is_refused_with_its_place(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"size": ')
    with pytest.raises(InputRefused, match=r"preprocessor_config\.json:1:"):
        read_processor(tmp_path, {})


def test_version_5_keeps_the_settings_within_the_processor(tokenizer_folder, tmp_path):
    # What transformers 5.24's CLIPProcessor.save_pretrained writes: one file with sections.
    for file in tokenizer_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    inner = {"image_processor_type": "CLIPImageProcessorFast", "size": {"shortest_edge": 24}}
    whole = {"processor_class": "CLIPProcessor", "image_processor": inner | {"crop_size": 24}}
    data = json.dumps(whole).encode()
    (tmp_path / "processor_config.json").write_bytes(data)
    found = read_processor(tmp_path, {"model_type": "clip"})
    assert isinstance(found, JointProcessor)
    wanted = theirs("CLIP")(size={"shortest_edge": 24}, crop_size=24)
    np.testing.assert_array_equal(
        found.images(picture(40, 60))["pixel_values"],
        wanted(picture(40, 60), return_tensors="np")["pixel_values"],
    )
    assert found.encode("rain") == found.tokenizer.encode("rain")
    assert found.files["processor_config.json"] == data
    assert "tokenizer.json" in found.files


def test_a_bundle_carries_its_image_processor_and_exports_it(tmp_path):
    source = write_llama(tmp_path / "source")
    settings = {"image_processor_type": "CLIPImageProcessor", "size": 24, "crop_size": 24}
    data = json.dumps(settings).encode()
    (source / "preprocessor_config.json").write_bytes(data)
    bundle = bridges.load(source)
    pixels = bundle.processor.images(picture(40, 60))["pixel_values"]
    assert pixels.shape == (1, 3, 24, 24)
    bridges.export(bundle, tmp_path / "out")
    assert (tmp_path / "out/preprocessor_config.json").read_bytes() == data
    (source / "tokenizer.json").unlink()
    assert isinstance(bridges.load(source).processor, ImageProcessor)


def test_a_tokenizer_alone_is_the_processor_itself(tokenizer_folder):
    found = read_processor(tokenizer_folder, {})
    assert not isinstance(found, JointProcessor)
    assert found.encode("rain")

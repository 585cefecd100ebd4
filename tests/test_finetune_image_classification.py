"""Labelling images: decoded as they are wanted, refused by row, torch's loss and gradient."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from task_proof import hold_to_torch, learnt

from bridges.finetune.image_rows import varied
from dew.cli.main import main
from dew.data import DataPartition
from dew.errors import InputRefused
from parity import random_models

pytestmark = pytest.mark.torch
VIT = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 8,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "id2label": {"0": "dark", "1": "light", "2": "red"},
    "label2id": {"dark": 0, "light": 1, "red": 2},
}
PROCESSOR = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
COLOURS = {"dark": (20, 25, 30), "light": (230, 240, 220), "red": (200, 30, 20)}


def write_vit(folder, **changes):
    random_models.save_random({**VIT, **changes}, folder, seed=7)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def write_images(folder, each: int = 4):
    from PIL import Image

    draws = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            noise = draws.integers(-20, 20, (24, 20, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return write_vit(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.mark.slow
def test_the_first_loss_and_its_gradient_are_transformers(vit, images):
    made = learnt("image-classification", vit, images)
    batch = made.batch([0, 3, 5, 8, 11])
    assert batch["pixel_values"].shape == (5, 3, 16, 16)
    assert sorted(set(batch["labels"].tolist())) == [0, 1, 2]
    hold_to_torch(made, vit, batch, lambda model, given, dtype: model(**given).loss)


def test_a_row_is_decoded_when_it_is_taken(vit, tmp_path):
    folder = write_images(tmp_path / "images", each=2)
    made = learnt("image-classification", vit, folder)
    made.batch([0])
    next((folder / "red").iterdir()).unlink()
    with pytest.raises(InputRefused, match="no such file"):
        made.batch(range(len(made.data.rows)))


def test_crops_are_drawn_by_the_place_in_the_run_alone(vit, images):
    made = learnt("image-classification", vit, images, "--augment_images", rows=4)
    stream = made.data.train(DataPartition())
    first = [next(stream)["pixel_values"] for _ in range(7)]
    again = made.data.train(DataPartition())
    state = None
    for number in range(7):
        if number == 3:
            state = again.get_state()
        np.testing.assert_array_equal(next(again)["pixel_values"], first[number])
    resumed = made.data.train(DataPartition())
    resumed.set_state(state)
    np.testing.assert_array_equal(next(resumed)["pixel_values"], first[3])
    plain = made.batch([0])["pixel_values"]
    assert not any(np.array_equal(plain[0], row) for batch in first for row in batch)
    np.testing.assert_array_equal(made.batch([0])["pixel_values"], plain)


def test_a_crop_is_a_part_of_the_image():
    levels = np.arange(30 * 20 * 3).reshape(30, 20, 3).astype(np.uint8)
    for seed in range(20):
        part = varied(levels, np.random.default_rng(seed))
        assert part.ndim == 3
        assert 0 < part.shape[0] <= 30
        assert 0 < part.shape[1] <= 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:not used", "ignore:not in the checkpoint")
def test_a_run_learns_colours_and_writes_its_image_size(images, tmp_path):
    sizes = {"model_type": "mobilenet_v2", "architectures": ["MobileNetV2ForImageClassification"]}
    model = tmp_path / "model"
    random_models.save_random({**sizes, "depth_multiplier": 0.35}, model, seed=1)
    processor = {"image_processor_type": "MobileNetV2ImageProcessor", "size": {"shortest_edge": 64}}
    (model / "preprocessor_config.json").write_text(json.dumps(processor))
    out = tmp_path / "out"
    words = ["finetune", model, "--data", images, "--output_dir", out, "--steps", 30, "--lr", 1e-3]
    words += ["--image_size", 32, "--eval_data", images, "--no_certify", "--quiet"]
    assert main([str(word) for word in words]) == 0
    assert json.loads((out / "eval_results.json").read_text())["eval_accuracy"] == 1.0
    written = json.loads((out / "preprocessor_config.json").read_text())
    assert written["size"] == {"height": 32, "width": 32}
    assert written["do_center_crop"] is False
    jax.clear_caches()


def test_a_broken_image_is_named_before_anything_is_loaded(vit, tmp_path):
    folder = write_images(tmp_path / "images", each=2)
    (folder / "red" / "7.png").write_bytes(b"not an image")
    with pytest.raises(InputRefused, match=r"cannot be decoded(.|\n)*7\.png"):
        learnt("image-classification", vit, folder)


def test_one_class_alone_is_refused(vit, images, tmp_path):
    import pyarrow
    from pyarrow import parquet

    image = next((images / "red").iterdir()).read_bytes()
    table = {"image": [{"bytes": image, "path": None}] * 3, "label": ["z", "z", None]}
    parquet.write_table(pyarrow.table(table), tmp_path / "one.parquet")
    with pytest.raises(InputRefused, match="1 class"):
        learnt("image-classification", vit, tmp_path / "one.parquet")


def test_another_size_of_a_model_with_positions_is_refused(vit, images):
    with pytest.raises(InputRefused, match="reads images of its own size"):
        learnt("image-classification", vit, images, "--image_size", 32)

"""Images' features, zero-shot labels and masks, each held to transformers' own pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipeline_pictures import SIDE, assert_same, drawn, pictures, save_model, theirs

import dew
from dew.errors import InputRefused
from dew.inference.pipelines.image_segmentation import labels_of_pixels

pytestmark = pytest.mark.torch
WORDS = ("cat", "king", "photo", "Nothing", "a", "of", "is", "This", ".")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torch").set_num_threads(1)
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return pictures(tmp_path_factory.mktemp("pictures"))


def write_words(folder: Path, *, siglip: bool) -> None:
    """Write a tokenizer of a few whole words, which ends every text with its end token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["<pad>", "<end>", "<unk>", *WORDS]
    tokenizer = Tokenizer(
        models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("$A <end>", None, [("<end>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    if siglip:
        settings["model_input_names"] = ["input_ids"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


# Features.


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["vit", *(pytest.param(name, marks=SLOW) for name in ("convnext", "dinov2"))]
)
def test_features_are_transformers_own(folders, inputs, name):
    folder = save_model(name, folders / name)
    ours, wanted = dew.pipeline(str(folder)), theirs("image-feature-extraction", folder)
    images = list(inputs.values())
    assert len(images) >= 12
    assert_same(ours(images, batch_size=5), wanted(images))
    assert_same(ours(images[0], pool=True), wanted(images[0], pool=True))
    arrays = ours(images[0], return_tensors=True)
    given = wanted(images[0], return_tensors=True).numpy()
    np.testing.assert_allclose(arrays, given, rtol=0, atol=1e-5)


def test_pooled_vectors_are_one_attribute_away(folders, inputs):
    folder = save_model("vit", folders / "typed")
    ours = dew.pipeline("image-feature-extraction", model=str(folder))
    images = list(inputs.values())[:5]
    found = ours.typed(images)
    assert found.features.shape == (5, 32)
    assert list(found.labels) == [-1] * 5
    pooled = ours(images[2], pool=True, return_tensors=True)
    np.testing.assert_allclose(found.features[2], pooled[0], atol=1e-6)
    with pytest.raises(InputRefused, match="image_processor_kwargs"):
        ours(images[0], image_processor_kwargs={"size": 4})


# Labels that no head knows.


@pytest.fixture(scope="module", params=["clip", "siglip"])
def towers(request, folders) -> tuple[Any, Any]:
    from parity import tiny

    name = request.param
    text = {**tiny.MODELS[name]["text_config"], "max_position_embeddings": 64, "eos_token_id": 1}
    text |= {"pad_token_id": 0, "bos_token_id": 2}
    folder = save_model(name, folders / name, text_config=text)
    write_words(folder, siglip=name == "siglip")
    return dew.pipeline(str(folder)), theirs("zero-shot-image-classification", folder)


LABELS = ["cat", "king", "a photo of Nothing"]


def test_labels_get_transformers_scores(towers, inputs):
    ours, wanted = towers
    images = list(inputs.values())
    found = ours(images, candidate_labels=LABELS)
    assert_same(found, wanted(images, candidate_labels=LABELS))
    assert len({one[0]["label"] for one in found}) >= 1


@pytest.mark.parametrize(
    "options",
    [
        {"candidate_labels": ["cat"]},
        {"candidate_labels": ["cat", "cat", "king", "\U0001f451", ""]},
        {"candidate_labels": LABELS, "hypothesis_template": "{}"},
        {"candidate_labels": LABELS, "hypothesis_template": "Nothing is {} ."},
        {"candidate_labels": [word * 3 for word in WORDS]},
    ],
)
def test_templates_and_lone_labels_mean_what_they_mean_there(towers, inputs, options):
    ours, wanted = towers
    assert_same(ours(inputs["path"], **options), wanted(inputs["path"], **options))


def test_labels_may_stand_second_or_be_one_text(towers, inputs):
    ours = towers[0]
    expected = ours(inputs["path"], candidate_labels=LABELS)
    assert ours(inputs["path"], LABELS) == expected
    assert ours(image=inputs["path"], candidate_labels=", ".join(LABELS)) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs candidate_labels"),
        ({"candidate_labels": []}, "expected names of labels, at least one"),
        ({"candidate_labels": [1]}, "expected names of labels"),
        ({"candidate_labels": LABELS, "hypothesis_template": "cat"}, "where the label goes"),
        ({"candidate_labels": LABELS, "tokenizer_kwargs": {"stride": 1}}, "has .'stride'."),
    ],
)
def test_what_names_no_labels_is_refused(towers, options, words):
    with pytest.raises(InputRefused, match=words):
        towers[0](drawn(4, 4), **options)


def test_a_tower_without_a_tokenizer_is_refused(towers):
    bundle = towers[0].bundle
    with pytest.raises(InputRefused, match="needs a tokenizer"):
        dew.pipeline(bundle.replace(processor=bundle.processor.images))


# Masks.


@pytest.fixture(scope="module")
def segmenters(folders) -> tuple[Any, Any]:
    names = {"0": "wall", "1": "floor", "2": "king"}
    folder = save_model("segformer places", folders / "segformer", id2label=names)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings |= {"image_processor_type": "SegformerImageProcessor"}
    settings |= {"size": {"height": 2 * SIDE, "width": 2 * SIDE}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return dew.pipeline(str(folder)), theirs("image-segmentation", folder)


def test_masks_are_transformers_own(segmenters, inputs):
    ours, wanted = segmenters
    seen = set()
    for image in inputs.values():
        found = ours(image)
        assert_same(found, wanted(image))
        seen |= {one["label"] for one in found}
    assert len(seen) > 1
    images = list(inputs.values())
    assert_same(ours(images, batch_size=3), wanted(images))
    assert_same(ours(images[0], subtask="semantic"), wanted(images[0], subtask="semantic"))


def test_instances_are_not_told_apart(segmenters):
    with pytest.raises(InputRefused, match="subtask is 'panoptic'"):
        segmenters[0](drawn(4, 4), subtask="panoptic")


@pytest.mark.parametrize("size", [(3, 200), (64, 64), (65, 7), (1, 1), (130, 31)])
def test_pixels_lie_between_places_as_torchs_interpolation_has_it(size):
    import torch

    logits = np.random.default_rng(0).standard_normal((5, 9, 13)).astype(np.float32)
    wide = torch.nn.functional.interpolate(
        torch.tensor(logits)[None], size=size, mode="bilinear", align_corners=False
    )
    assert np.array_equal(labels_of_pixels(logits, size), wide[0].argmax(0).numpy())

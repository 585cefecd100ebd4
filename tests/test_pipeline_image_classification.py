"""Image classification as transformers' pipeline does it: its dicts, its scores to 1e-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipeline_pictures import assert_same, drawn, pictures, png, save_model, theirs

import dew
from dew.errors import InputRefused, UnknownName
from dew.inference.pipelines.picture_batches import batches

pytestmark = pytest.mark.torch
LABELS = {"id2label": {"0": "a cat", "1": "a dog", "2": "a king"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch").set_num_threads(1)
    return save_model("vit labels", tmp_path_factory.mktemp("vit") / "model", **LABELS)


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Any, Any]:
    return dew.pipeline(str(folder)), theirs("image-classification", folder)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return pictures(tmp_path_factory.mktemp("pictures"))


def test_each_kind_of_image_gets_transformers_labels(both, inputs):
    ours, wanted = both
    assert len(inputs) >= 12
    for name, image in inputs.items():
        found = ours(image)
        assert_same(found, wanted(image))
        assert len({round(one["score"], 3) for one in found}) > 1, name


class Column:
    """What gives items by their number and has a length, as a column of `datasets` does."""

    def __init__(self, images: list[Any]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, place: int) -> Any:
        return self._images[place]


def test_lists_generators_and_columns_keep_their_order(both, inputs):
    ours, wanted = both
    images = list(inputs.values())
    expected = wanted(images)
    assert_same(ours(images, batch_size=4), expected)
    assert_same(list(ours(image for image in images)), expected)
    column = type(
        "Column", (), {"__len__": lambda self: 5, "__getitem__": lambda self, n: images[n]}
    )
    assert_same(list(ours(column())), expected[:5])
    assert ours([]) == []


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_k": 2, "function_to_apply": "sigmoid"},
        {"top_k": 50},
        {"function_to_apply": "none"},
        {"function_to_apply": "SOFTMAX"},
    ],
)
def test_options_mean_what_they_mean_there(both, inputs, options):
    ours, wanted = both
    assert_same(ours(inputs["colour"], **options), wanted(inputs["colour"], **options))


@pytest.mark.parametrize("kind", ["regression", "multi_label_classification", None])
def test_the_problem_type_decides_what_is_applied(folder, both, inputs, kind):
    bundle = both[0].bundle
    ours = dew.pipeline(bundle.replace(config={**bundle.config, "problem_type": kind}))
    wanted = theirs("image-classification", folder)
    wanted.model.config.problem_type = kind
    assert_same(ours(inputs["path"]), wanted(inputs["path"]))


def test_arrays_and_bytes_are_what_their_file_is(both, tmp_path):
    ours, wanted = both
    levels = drawn(17, 29, 4)
    (tmp_path / "it.png").write_bytes(png(levels))
    expected = ours(tmp_path / "it.png")
    assert_same(expected, wanted(str(tmp_path / "it.png")))
    assert_same(wanted(levels), expected)
    for value in (levels, png(levels), {"bytes": png(levels), "path": None}):
        assert ours(value) == expected
    grey = drawn(9, 9, 5, 1)[..., 0]
    assert ours(grey) == ours(np.repeat(grey[..., None], 3, axis=2))


def test_batches_of_one_size_have_one_shape():
    pixels = [np.full((3, 4, 4 + 2 * (number % 2)), number, np.float32) for number in range(9)]
    found = list(batches(pixels, 2))
    assert {values.shape for _, values in found} == {(2, 3, 4, 4), (2, 3, 4, 6)}
    for places, values in found:
        assert [int(row[0, 0, 0]) for row in values[: len(places)]] == places
    assert sorted(place for places, _ in found for place in places) == list(range(9))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nowhere.png", "neither a file that is there nor base64"),
        (b"no image", "the image of 8 bytes: not an image by its content"),
        ("https://example.org/a.png", "the network is off"),
        (np.zeros((4, 4, 7), np.uint8), "7 channels"),
        (np.zeros((4, 4, 3)), "expected uint8 levels"),
        ([drawn(4, 4), b"x"], "image 1 of 2: the image of 1 bytes"),
        (7, "expected an image"),
    ],
)
def test_what_is_no_image_is_refused(both, monkeypatch, given, words):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputRefused, match=words):
        both[0](given)


def test_a_file_that_is_cut_off_is_named(both, tmp_path):
    (tmp_path / "half.png").write_bytes(png(drawn(40, 40))[:-60])
    with pytest.raises(InputRefused, match=r"half\.png: cannot be decoded"):
        both[0](tmp_path / "half.png")


def test_unfit_options_processors_and_labels_are_named(both, folder):
    ours, bundle = both[0], both[0].bundle
    with pytest.raises(InputRefused, match="function_to_apply is 'exp'"):
        ours(drawn(4, 4), function_to_apply="exp")
    with pytest.raises(InputRefused, match="top_k is 0"):
        ours(drawn(4, 4), top_k=0)
    with pytest.raises(UnknownName, match="has no option 'topk'; did you mean 'top_k'"):
        ours(drawn(4, 4), topk=1)
    with pytest.raises(InputRefused, match="needs an image processor"):
        dew.pipeline(bundle.replace(processor=None))
    few = bundle.replace(config={**bundle.config, "id2label": {"0": "a"}})
    with pytest.raises(InputRefused, match="no name for 2 of the head's 3 labels"):
        dew.pipeline(few)(drawn(4, 4))
    with pytest.raises(InputRefused, match="does not do image-segmentation; it is fit for"):
        dew.pipeline(str(folder), "image-segmentation")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*no native family")
def test_a_traced_model_gives_the_same(tmp_path, inputs):
    folder = save_model("beit", tmp_path / "beit")
    ours, wanted = dew.pipeline(str(folder)), theirs("image-classification", folder)
    assert ours.bundle.family == "beit"
    for name in ("colour", "path"):
        assert_same(ours(inputs[name]), wanted(inputs[name]))

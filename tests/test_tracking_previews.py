"""Previews: the pixels in a file are the bytes that metrics score, whatever the tracker."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image, ImageSequence

from dew.artifacts import (
    ImageGrid,
    Representations,
    TextSamples,
    TokenScores,
    VideoGrid,
    uint8_pixels,
)
from dew.tracking import LocalTracker
from dew.tracking.previews import PreviewNames, clip_pixels, grid_of, preview_files, spread

RNG = np.random.default_rng(3)


def images(count=3, channels=3) -> ImageGrid:
    return ImageGrid(RNG.uniform(-1.2, 1.2, (count, 5, 7, channels)).astype(np.float32))


def opened(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_png_holds_the_very_bytes_of_the_images(channels):
    """Pillow reads back what `uint8_pixels` gives, image by image."""
    grid = images(channels=channels)
    (file,) = preview_files(grid, "images-5")
    assert file.name == "images-5.png"
    pixels = opened(file.content).reshape(12, 16, channels)  # two by two, two pixels between
    for index, (top, left) in enumerate([(0, 0), (0, 9), (7, 0)]):
        np.testing.assert_array_equal(
            pixels[top : top + 5, left : left + 7], uint8_pixels(grid.images[index])
        )
    assert (pixels[7:, 9:] == 255).all(), "a place without an image is white"


def test_captions_are_written_beside_the_images():
    grid = ImageGrid(images(2).images, ("a dog", "one é"))
    picture, captions = preview_files(grid, "images-1")
    assert picture.name == "images-1.png"
    assert (captions.name, captions.content.decode()) == ("images-1.txt", "0: a dog\n1: one é\n")


def test_a_gif_holds_each_frame_of_each_clip():
    """Frames of one flat gray each, which a palette keeps exactly."""
    levels = np.linspace(-1, 1, 8).reshape(2, 4)
    clips = VideoGrid(np.broadcast_to(levels[:, :, None, None, None], (2, 4, 6, 6, 1)))
    (file,) = preview_files(clips, "video-2")
    assert file.name == "video-2.gif"
    with Image.open(io.BytesIO(file.content)) as picture:
        frames = [np.asarray(frame.convert("L")) for frame in ImageSequence.Iterator(picture)]
        assert picture.info["duration"] == 120  # GIF counts hundredths: 125 ms become 12
    assert len(frames) == 4
    for frame, pixels in zip(frames, np.moveaxis(clip_pixels(clips), 1, 0), strict=True):
        np.testing.assert_array_equal(frame, grid_of(pixels)[..., 0])


def test_representations_become_the_histogram_of_their_spread():
    """Oracle: the standard deviations by hand; a dimension that is not finite is counted apart."""
    features = RNG.normal(size=(50, 6)) * np.array([1, 2, 3, 4, 5, np.inf])
    value = Representations(features, np.zeros(50, np.int32))
    with np.errstate(invalid="ignore"):
        picture, numbers = preview_files(value, "representations-9")
        widths = spread(value)
    by_hand = np.sqrt(((features[:, :5] - features[:, :5].mean(0)) ** 2).mean(0))
    np.testing.assert_allclose(widths[:5], by_hand, rtol=1e-12)
    histogram = json.loads(numbers.content)
    assert (histogram["rows"], histogram["dimensions"], histogram["not_finite"]) == (50, 6, 1)
    assert sum(histogram["counts"]) == 5
    assert (histogram["edges"][0], histogram["edges"][-1]) == (by_hand.min(), by_hand.max())
    assert opened(picture.content).min() < 100, "something is drawn"


@pytest.mark.parametrize("shape", [(5, 7, 3), (2, 5, 7, 2), (0, 5, 7, 3)])
def test_what_is_no_image_is_refused_with_its_shape(shape):
    with pytest.raises(ValueError, match=rf"{str(shape)[1:-1]}.*\[N, H, W, C\]"):
        preview_files(ImageGrid(np.zeros(shape)), "images-1")


def test_token_scores_have_no_form():
    with pytest.raises(TypeError, match="TokenScores"):
        preview_files(TokenScores(np.zeros(1), np.zeros(1)), "x")


def test_a_second_preview_of_a_step_does_not_write_over_the_first(tmp_path):
    tracker = LocalTracker(tmp_path)
    for step in (3, 3, 4):
        tracker.artifact(TextSamples(np.array([[step]])), step)
    tracker.artifact(images(), 4)
    names = sorted(path.name for path in (tmp_path / "previews").iterdir())
    assert names == ["images-4.png", "text-3-1.txt", "text-3.txt", "text-4.txt"]
    again = PreviewNames()
    assert again.stem(images(), 4) == "images-4", "a run that evaluates a step again replaces it"

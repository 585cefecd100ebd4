"""Image files: transformers' pixels, whole folders, and FID of folders."""

from __future__ import annotations

import numpy as np
import pytest
from image_networks import pictures

from dew.data.images import image_files, read_image
from dew.errors import InputRefused
from dew.evaluation.frechet import frechet_distance
from dew.evaluation.image_folders import folder_distance, folder_features, folder_moments
from dew.evaluation.moments import moments

EVERY = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16")
HELD = {
    ".bmp": ("1", "L", "P", "RGB", "RGBA"),
    ".gif": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    ".jpg": ("1", "L", "RGB", "CMYK", "YCbCr"),
    ".png": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    ".tiff": EVERY,
    ".webp": EVERY,
}
"""Ending to the modes of Pillow that it writes under it."""


def drawn(mode, size=(9, 7)):
    """Return a Pillow image of a mode with levels of every height, and alpha where it has one."""
    from PIL import Image

    colours = Image.fromarray(pictures(1, size[1], size[0], seed=3)[0])
    if mode == "I;16":
        levels = np.arange(size[0] * size[1], dtype=np.uint16) * 997
        return Image.fromarray(levels.reshape(size[::-1]))
    if mode in ("LA", "RGBA", "PA"):
        clear = colours.convert("LA" if mode == "LA" else "RGBA")
        clear.putalpha(Image.fromarray(np.arange(63, dtype=np.uint8).reshape(7, 9) * 4))
        return clear.convert(mode)
    return colours.convert(mode)


def theirs(path):
    """Return what transformers reads of a file."""
    from PIL import Image
    from transformers.image_utils import load_image

    with Image.open(path) as opened:
        return np.array(load_image(opened))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("suffix", "mode"), [(suffix, mode) for suffix, modes in HELD.items() for mode in modes]
)
def test_pixels_are_those_of_transformers(suffix, mode, tmp_path):
    """BP068, P073: oracle, transformers' load_image, for every mode that a format can hold."""
    path = tmp_path / f"x{suffix}"
    drawn(mode).save(path)
    levels = read_image(path)
    assert (levels.dtype, levels.shape) == (np.uint8, (7, 9, 3))
    np.testing.assert_array_equal(levels, theirs(path))


@pytest.mark.torch
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photograph_is_read_upright(orientation, tmp_path):
    """BP068: oracle, transformers' load_image."""
    from PIL import Image

    tag = Image.Exif()
    tag[274] = orientation
    drawn("RGB", (8, 4)).save(tmp_path / "r.jpg", exif=tag)
    levels = read_image(tmp_path / "r.jpg")
    assert levels.shape == ((4, 8, 3) if orientation < 5 else (8, 4, 3))
    np.testing.assert_array_equal(levels, theirs(tmp_path / "r.jpg"))


def test_grey_is_repeated_and_a_clear_pixel_keeps_its_colour(tmp_path):
    """P073: closed form; the alpha channel is dropped, as pytorch-fid drops it."""
    from PIL import Image

    Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.new("L", (2, 2), 99).save(tmp_path / "grey.png")
    assert read_image(tmp_path / "clear.png").reshape(-1, 3).tolist() == [[255, 0, 0]] * 4
    assert read_image(tmp_path / "grey.png").reshape(-1, 3).tolist() == [[99, 99, 99]] * 4


def test_a_limit_on_pixels_is_held_from_the_header(tmp_path):
    drawn("RGB", (60, 50)).save(tmp_path / "x.png")
    assert read_image(tmp_path / "x.png", pixel_limit=3000).shape == (50, 60, 3)
    with pytest.raises(InputRefused, match=r"60 x 50 is 3000 pixels. Expected at most 2999"):
        read_image(tmp_path / "x.png", pixel_limit=2999)


def test_endings_count_in_either_case_and_each_file_once(tmp_path):
    """P075."""
    for name in ("a.JPG", "b.jpg", "c.JPEG", "d.Png"):
        drawn("RGB").save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "e.png").mkdir()
    assert [path.name for path in image_files(tmp_path)] == ["a.JPG", "b.jpg", "c.JPEG", "d.Png"]


def test_a_folder_without_images_says_what_was_looked_for(tmp_path):
    """P074: empty, and with images only in a folder inside."""
    with pytest.raises(InputRefused, match=r"0 images found; searched \.bmp.*the 0 folders"):
        image_files(tmp_path)
    (tmp_path / "inside").mkdir()
    drawn("RGB").save(tmp_path / "inside" / "a.png")
    with pytest.raises(InputRefused, match=r"0 images found.*not in the 1 folders"):
        folder_moments(tmp_path, lambda levels: levels.mean((1, 2)))
    with pytest.raises(InputRefused, match="no such folder"):
        image_files(tmp_path / "absent")


def colours_and_edges(levels):
    """An encoder of six features that sees the size of an image only through its pixels."""
    edges = np.abs(np.diff(levels.astype(float), axis=2)).mean((1, 2))
    return np.concatenate([levels.mean((1, 2)), edges], 1)


def test_folders_of_images_of_unlike_sizes_give_the_distance_of_one_by_one(tmp_path):
    """P072: oracle, each image encoded alone."""
    from PIL import Image

    sizes = [(8, 8), (8, 6), (30, 20), (8, 8), (8, 8), (40, 40), (12, 9), (8, 6)]
    rows = {}
    for name in ("made", "real"):
        (tmp_path / name).mkdir()
        images = [
            pictures(1, *size, seed=i + 50 * (name == "real")) for i, size in enumerate(sizes)
        ]
        for index, picture in enumerate(images):
            Image.fromarray(picture[0]).save(tmp_path / name / f"{index}.png")
        rows[name] = np.concatenate([colours_and_edges(picture) for picture in images])
    expected = frechet_distance(moments(rows["real"]), moments(rows["made"]))
    given = folder_distance(tmp_path / "made", tmp_path / "real", colours_and_edges)
    assert given == pytest.approx(expected, rel=1e-9)
    assert folder_distance(tmp_path / "made", tmp_path / "made", colours_and_edges) <= 1e-6


def test_a_folder_is_encoded_a_few_images_at_a_time(tmp_path):
    from PIL import Image

    seen = []

    def encoder(levels):
        seen.append(len(levels))
        return levels.mean((1, 2))

    for index, picture in enumerate(pictures(70, 8, 8)):
        Image.fromarray(picture).save(tmp_path / f"{index:02}.png")
    assert folder_moments(tmp_path, encoder).count == 70
    assert seen == [50, 20]


def test_the_features_of_a_folder_come_in_the_order_of_its_names_whatever_the_sizes(tmp_path):
    """Oracle, each image encoded alone; the progress is told at each batch."""
    from PIL import Image

    sizes = [(8, 8), (6, 9), (8, 8), (12, 5), (6, 9)]
    images = [pictures(1, *size, seed=i) for i, size in enumerate(sizes)]
    for index, picture in enumerate(images):
        Image.fromarray(picture[0]).save(tmp_path / f"{index}.png")
    expected = np.concatenate([colours_and_edges(picture) for picture in images])
    for workers in (0, 3):
        told = []
        given = folder_features(
            tmp_path,
            colours_and_edges,
            batch=4,
            workers=workers,
            seen=lambda done, total, told=told: told.append((done, total)),
        )
        np.testing.assert_array_equal(given, expected)
        assert told == [(4, 5), (5, 5)]


def test_a_folder_is_scored_without_turning_its_photographs(tmp_path):
    """Oracle, the pixels as Pillow opens them, which the tools of FID score."""
    from PIL import Image

    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(pictures(1, 8, 12)[0]).save(tmp_path / "turned.jpg", exif=exif)
    seen = []

    def encoder(levels):
        seen.append(levels[0])
        return levels.mean((1, 2))

    folder_features(tmp_path, encoder)
    np.testing.assert_array_equal(seen[0], np.array(Image.open(tmp_path / "turned.jpg")))
    assert read_image(tmp_path / "turned.jpg").shape == (12, 8, 3)


def test_a_file_that_cannot_be_read_stops_a_folder_and_is_named(tmp_path):
    from PIL import Image

    for index, picture in enumerate(pictures(9, 8, 8)):
        Image.fromarray(picture).save(tmp_path / f"{index}.png")
    (tmp_path / "4.png").write_bytes(b"nothing")
    with pytest.raises(InputRefused, match=r"4\.png"):
        folder_moments(tmp_path, colours_and_edges, batch=2, workers=2)

"""Which files a source is: splits, folders of images and sounds, hub datasets, configurations."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from bridges.data.mixtures import read_mixture
from bridges.data.records import read_records
from dew.errors import InputRefused, UnknownName


def write_json(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_csv(path: Path, rows) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


# Folders


def test_files_are_chosen_by_split(tmp_path):
    for name in ("train-00000.jsonl", "data/validation.jsonl", "test/a.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_json(tmp_path / name, [{"text": name}])
    (tmp_path / "ds.py").write_text("raise SystemExit('run')")  # BP075
    (tmp_path / ".hidden.jsonl").write_text("{")
    for split, name in (
        ("train", "train-00000.jsonl"),
        ("validation", "data/validation.jsonl"),
        ("dev", "data/validation.jsonl"),
        ("test", "test/a.jsonl"),
    ):
        records = read_records(tmp_path, split=split)
        assert records.column("text") == [name]
        assert "ds.py" in records.ignored
    with pytest.raises(UnknownName, match="has train, validation, test"):
        read_records(tmp_path, split="other")
    pattern = str(tmp_path / "**" / "*.jsonl")
    assert sorted(read_records(pattern).column("text")) == sorted(
        ("train-00000.jsonl", "data/validation.jsonl", "test/a.jsonl")
    )


def test_a_folder_of_images_is_read_as_datasets_reads_it(tmp_path):
    import datasets
    from PIL import Image

    for split, colour, number in (("train", "red", 2), ("train", "blue", 1), ("test", "red", 1)):
        for n in range(number):
            path = tmp_path / split / colour / f"{n}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2 + n, 2), colour).save(path)
    for split in ("train", "test"):
        theirs = datasets.load_dataset(
            "imagefolder", data_dir=str(tmp_path), split=split, cache_dir=str(tmp_path / ".cache")
        )
        records = read_records(tmp_path, split=split)
        if split == "train":
            assert records.columns == {"image": "image", "label": "integer"}
            assert records.labels("label") == tuple(theirs.features["label"].names)
            assert records.column("label") == theirs["label"]
        found = [np.asarray(Image.open(path)) for path in records.column("image")]
        for ours, image in zip(found, theirs["image"], strict=True):
            np.testing.assert_array_equal(ours, np.asarray(image))


def test_a_table_beside_sounds_says_what_belongs_to_them(tmp_path):
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(b"RIFF")
    rows = [{"file_name": "b.wav", "text": "bee"}, {"file_name": "a.wav", "text": "ay"}]
    write_csv(tmp_path / "metadata.csv", rows)
    records = read_records(tmp_path)
    assert records.columns == {"audio": "audio", "text": "text"}
    assert records[0] == {"audio": tmp_path / "b.wav", "text": "bee"}
    before = records.fingerprint
    (tmp_path / "b.wav").write_bytes(b"RIFX")
    assert read_records(tmp_path).fingerprint != before
    write_csv(tmp_path / "metadata.csv", [*rows, {"file_name": "../c.wav", "text": "sea"}])
    with pytest.raises(InputRefused, match=r"line 4: '../c\.wav'"):
        read_records(tmp_path)


def test_text_files_are_rows_only_where_lines_are_asked_for(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\r\n\ntwo\u2028half\n".encode())
    assert read_records(tmp_path / "a.txt", lines=True).column("text") == [
        "one",
        "",
        "two\u2028half",
    ]
    with pytest.raises(InputRefused, match="lines=True"):
        read_records(tmp_path / "a.txt")


# The hub


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    """A cache that holds the dataset me/tiny, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "dew"))
    home = tmp_path / "hub" / "datasets--me--tiny"
    snapshot = home / "snapshots" / ("a" * 40) / "data"
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("a" * 40)
    write_json(snapshot / "train.jsonl", [{"text": "x"}])
    write_json(snapshot / "test.jsonl", [{"text": "y"}])
    return tmp_path


def test_a_dataset_of_the_hub_comes_from_the_cache(hub_cache):
    assert read_records("me/tiny").column("text") == ["x"]
    assert read_records("me/tiny", split="test").column("text") == ["y"]


def test_a_dataset_that_is_not_cached_is_one_readable_error(hub_cache):
    with pytest.raises(InputRefused, match="HF_HUB_OFFLINE"):
        read_records("me/other")
    with pytest.raises(InputRefused, match="not a repository id"):
        read_records("me/../other")


# Configurations and mixtures

CARD = """---
license: mit
configs:
- config_name: small
  data_files:
  - split: train
    path: small/*.jsonl
  - split: test
    path: [held/s.jsonl]
- config_name: large
  data_dir: big
  default: true
- config_name: rest
  data_files: "other-*.jsonl"
---
# A dataset
"""


def test_the_configurations_of_a_card_say_which_files_are_meant(tmp_path):
    import datasets

    (tmp_path / "README.md").write_text(CARD)
    for name in ("small/a", "small/b", "held/s", "big/train", "big/test", "other-1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_json(tmp_path / f"{name}.jsonl", [{"text": name}])
    for name, split in (
        ("small", "train"),
        ("small", "test"),
        ("large", "train"),
        ("large", "test"),
        ("rest", "train"),
        (None, "train"),
    ):
        theirs = datasets.load_dataset(
            str(tmp_path), name, split=split, cache_dir=str(tmp_path / ".cache")
        )
        assert read_records(tmp_path, name=name, split=split).column("text") == theirs["text"]
    with pytest.raises(UnknownName, match="did you mean 'small'"):
        read_records(tmp_path, name="smal")
    with pytest.raises(UnknownName, match="'small' has 'train', 'test'"):
        read_records(tmp_path, name="small", split="validation")
    (tmp_path / "README.md").write_text(CARD.replace("  default: true\n", ""))
    with pytest.raises(InputRefused, match="configurations 'small', 'large', 'rest'"):
        read_records(tmp_path)
    chosen = read_records(tmp_path, name="large", data_files=["./small/a.jsonl", "other*"])
    assert chosen.column("text") == ["other-1", "small/a"]
    (tmp_path / "README.md").write_text("---\nconfigs: [{config_name: x\n---\n")
    assert len(read_records(tmp_path, split="test")) == 1


def test_a_mixture_takes_shares_and_renames_columns(tmp_path):
    write_json(tmp_path / "a.jsonl", [{"body": str(n), "label": n, "url": ""} for n in range(40)])
    write_csv(tmp_path / "b.csv", [{"text": "x", "label": 1}, {"text": "y", "label": 2}])
    parts = [
        {"path": tmp_path / "a.jsonl", "columns": {"body": "text", "label": "label"}},
        {"path": str(tmp_path / "b.csv"), "fraction": 1},
    ]
    mixed = read_mixture([{**parts[0], "fraction": 0.25}, parts[1]], seed=3)
    assert mixed.columns == {"text": "text", "label": "integer"}
    assert len(mixed) == 12
    assert mixed.column("text")[-2:] == ["x", "y"]
    assert all(row["text"] == str(row["label"]) for row in mixed.take(range(10)))
    assert mixed.place(11).endswith("b.csv: line 3")
    again = read_mixture([{**parts[0], "fraction": 0.25}, parts[1]], seed=3)
    assert again.fingerprint == mixed.fingerprint
    other = read_mixture([{**parts[0], "fraction": 0.25}, parts[1]], seed=4)
    assert other.column("text") != mixed.column("text")
    for wrong, named in (
        ([], "no part"),
        ([{"split": "train"}], "part 1: no path"),
        ([{"path": "x", "fracton": 1}], "did you mean 'fraction'"),
        ([{**parts[1], "fraction": 0}], "fraction is 0"),
        ([parts[1], {"path": tmp_path / "a.jsonl"}], "columns differ"),
        ([{**parts[1], "columns": ["body"]}], "no column 'body'"),
    ):
        with pytest.raises(InputRefused, match=named):
            read_mixture(wrong)

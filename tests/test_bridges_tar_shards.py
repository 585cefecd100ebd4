"""Tar shards: the samples of webdataset 1.0.2, nothing extracted, resumed at any sample."""

import io
import json
import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.data.streaming import stream_rows
from bridges.data.tar_shards import decoded_sample, tar_samples
from dew.data import DataPartition
from dew.errors import InputRefused


def write_tar(path: Path, members, *, format=tarfile.PAX_FORMAT) -> Path:
    """An archive of (name, bytes) pairs, and of `TarInfo`s as they are."""
    with tarfile.open(path, "w", format=format) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member, io.BytesIO(b"x" * member.size))
                continue
            name, data = member
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def samples_of(path: Path, start: int = 0):
    return [sample for _, _, sample in tar_samples(path, start)]


def webdataset_samples(path: Path):
    """The samples of the reference, without the place that they come from."""
    from webdataset.tariterators import group_by_keys, tar_file_iterator

    with path.open("rb") as stream:
        members = ({**member, "__url__": ""} for member in tar_file_iterator(stream))
        found = [dict(sample) for sample in group_by_keys(members)]
    return [{k: v for k, v in s.items() if k != "__url__"} for s in found]


LONG = "a" * 120
MEMBERS = [
    ("000.txt", b"zero"),
    ("000.JPG", b"\xff\xd8"),
    ("data/001.cls", b"7"),
    ("data/001.seg.png", b"p"),
    ("data/001.left.jpg", b"l"),
    ("data.v1/002.json", b'{"caption": "two"}'),
    ("__meta__/x.txt", b"left out"),
    ("README", b"left out"),
    (f"{LONG}/003.txt", b"long name"),
    (f"{LONG}/003.npy", b""),
    (".hidden.txt", b"h"),
    ("004.txt", b""),
    ("000.txt", b"zero again"),
]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_are_grouped_as_webdataset_groups_them(tmp_path, format):
    path = write_tar(tmp_path / "a.tar", MEMBERS, format=format)
    expected = webdataset_samples(path)
    assert len(expected) >= 6
    assert samples_of(path) == expected


NAMES = st.text("ab._/-é", min_size=1, max_size=8).filter(
    lambda name: not name.startswith("/") and ".." not in name and not name.endswith("/")
)


@given(st.lists(NAMES, max_size=8, unique=True))
@settings(deadline=None, max_examples=150)
def test_any_names_are_grouped_as_webdataset_groups_them(tmp_path_factory, names):
    path = write_tar(tmp_path_factory.mktemp("t") / "a.tar", [(name, b"x") for name in names])
    try:
        expected = webdataset_samples(path)
    except ValueError:  # a suffix twice
        with pytest.raises(InputRefused, match="two members"):
            samples_of(path)
        return
    assert samples_of(path) == expected


def test_reading_goes_on_at_any_sample(tmp_path):
    path = write_tar(tmp_path / "a.tar", MEMBERS)
    found = list(tar_samples(path))
    for number, (start, _, _) in enumerate(found):
        assert list(tar_samples(path, start)) == found[number:]
    assert "sample 'data/001'" in found[1][1]


def test_samples_are_decoded_by_their_suffix(tmp_path):
    array = io.BytesIO()
    np.save(array, np.arange(3))
    members = [
        ("0.txt", "äh".encode()),
        ("0.cls", b"4"),
        ("0.json", b'{"caption": "c", "cls": 9}'),
        ("0.npy", array.getvalue()),
        ("0.png", b"\x89PNG"),
    ]
    ((_, place, sample),) = tar_samples(write_tar(tmp_path / "a.tar", members))
    row = decoded_sample(sample, place)
    assert row.pop("npy").tolist() == [0, 1, 2]
    assert row == {
        "__key__": "0",
        "txt": "äh",
        "text": "äh",
        "cls": 4,
        "json": {"caption": "c", "cls": 9},
        "caption": "c",
        "png": b"\x89PNG",
    }
    pickled = io.BytesIO()
    np.save(pickled, np.array([print], dtype=object), allow_pickle=True)
    for name, data in (
        ("cls", b"x"),
        ("json", b"{"),
        ("txt", b"\xff"),
        ("npy", pickled.getvalue()),
    ):
        with pytest.raises(InputRefused, match=f"member '{name}' is not what its suffix says"):
            decoded_sample({"__key__": "0", name: data}, place)


def special(name: str, **fields) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member


@pytest.mark.parametrize(
    ("member", "named"),
    [
        (special("../../evil.txt", size=1), "leads out"),
        (special("/evil.txt", size=1), "leads out"),
        (special("a/../../evil.txt", size=1), "leads out"),
        (special("..\\evil.txt", size=1), "leads out"),
        (special("C:/evil.txt", size=1), "leads out"),
        (special("l.txt", type=tarfile.SYMTYPE, linkname="/etc"), "a link to '/etc'"),
        (special("l.txt", type=tarfile.LNKTYPE, linkname="0.txt"), "a link to '0.txt'"),
        (special("d.txt", type=tarfile.CHRTYPE), "no regular file"),
        (special("f.txt", type=tarfile.FIFOTYPE), "no regular file"),
    ],
)
def test_members_that_point_elsewhere_are_refused_and_nothing_is_written(tmp_path, member, named):
    # BP079.
    path = write_tar(tmp_path / "a.tar", [("0.txt", b"x"), member])
    with pytest.raises(InputRefused, match=named) as refusal:
        samples_of(path)
    assert "nothing was extracted" in str(refusal.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.tar"]


def test_damaged_archives_are_refused(tmp_path):
    whole = write_tar(tmp_path / "a.tar", [("0.txt", b"x" * 600), ("1.txt", b"y")]).read_bytes()
    path = tmp_path / "b.tar"

    def refused(data: bytes, named: str) -> None:
        path.write_bytes(data)
        with pytest.raises(InputRefused, match=named):
            samples_of(path)

    refused(b"no tar at all" * 100, "cannot be read as a tar")
    refused(whole[:700], "cut off")
    refused(whole[:1536] + b"z" * 512 + whole[2048:], "damaged header at byte 1536")
    refused(b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull")
    path.write_bytes(whole[:2560])
    with pytest.warns(UserWarning, match="no mark of the archive's end"):
        assert len(samples_of(path)) == 2


def test_shards_are_streamed_shuffled_and_resumed_exactly(tmp_path):
    import webdataset

    for shard in range(3):
        with webdataset.TarWriter(str(tmp_path / f"train-{shard}.tar")) as writer:
            for number in range(7):
                key = f"{7 * shard + number:03}"
                writer.write(
                    {"__key__": key, "cls": int(key), "txt": f"text {key}", "json": {"k": key}}
                )

    def collate(rows):
        assert all(json.dumps(row["json"]) and row["text"].startswith("text") for row in rows)
        return {"cls": np.array([row["cls"] for row in rows], np.int32)}

    def stream(index=0, count=1):
        data = stream_rows(str(tmp_path / "*.tar"), collate, batch=4, shuffle_buffer=5, seed=3)
        return data.train(DataPartition(index, count))

    whole, states, batches = stream(), [], []
    for _ in range(15):
        states.append(whole.get_state())
        batches.append(next(whole)["cls"].tolist())
    flat = [number for batch in batches for number in batch]
    assert sorted(flat[:21]) == sorted(flat[21:42]) == list(range(21))
    assert flat[:21] not in (list(range(21)), flat[21:42])
    for place in (0, 2, 7, 13):
        for count in (1, 2):
            shares = [stream(index, count) for index in range(count)]
            for share in shares:
                share.set_state(states[place])
            for expected in batches[place : place + 2]:
                found = [next(share)["cls"].tolist() for share in shares]
                assert found == [expected[index::count] for index in range(count)]
    ranged = stream_rows(f"{tmp_path}/train-{{0..2}}.tar", collate, batch=4, shuffle_buffer=0)
    in_order = [n for batch in islice(ranged.train(DataPartition()), 5) for n in batch["cls"]]
    assert in_order == list(range(20))
    with pytest.raises(InputRefused, match="no such file"):
        stream_rows(f"{tmp_path}/train-{{0..3}}.tar", collate, batch=4)

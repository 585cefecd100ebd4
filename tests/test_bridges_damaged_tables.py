"""Tables with bytes changed or cut off: read, or refused in a short message, and nothing else."""

import io
import json
import tarfile
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.data.records import read_records
from bridges.data.row_parts import source_parts
from bridges.data.tar_shards import decoded_sample, tar_samples
from dew.errors import InputRefused

ROWS = [
    {"text": f"the cat {n}", "label": n % 3, "score": n / 7, "parts": [n, None]} for n in range(30)
]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> dict[str, bytes]:
    """One good file of each kind, by its suffix."""
    import pyarrow as arrow
    from pyarrow import ipc, parquet

    folder = tmp_path_factory.mktemp("healthy")
    table = arrow.Table.from_pylist(ROWS)
    parquet.write_table(table, folder / "a.parquet", row_group_size=10)
    with ipc.new_stream(folder / "a.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=10)
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, row in enumerate(ROWS[:5]):
            for suffix, data in (("txt", row["text"].encode()), ("json", json.dumps(row).encode())):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    files = {path.suffix: path.read_bytes() for path in folder.iterdir()}
    files[".jsonl"] = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    files[".json"] = json.dumps({"data": ROWS}, indent=1).encode()
    lines = [f'"{r["text"]}",{r["label"]},{r["score"]}' for r in ROWS]
    files[".csv"] = "\n".join(["text,label,score", *lines]).encode()
    return files


def read(path: Path) -> None:
    """Read every row, looked up and as it comes."""
    if path.suffix == ".tar":
        for _, place, sample in tar_samples(path):
            decoded_sample(sample, place)
        return
    assert len(list(read_records(path)))
    for part in source_parts(path).parts:
        assert len(list(part.rows(0)))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet", ".arrow", ".tar"])
def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path_factory, healthy, suffix):
    path = tmp_path_factory.mktemp("damaged") / f"a{suffix}"

    @given(st.data())
    @settings(deadline=None, max_examples=60)
    def check(data):
        content = bytearray(healthy[suffix])
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
            content[place] = data.draw(st.integers(0, 255))
        keep = data.draw(st.integers(0, len(content)) | st.just(len(content)))
        path.write_bytes(content[:keep])
        message = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(path)
        except AssertionError:
            assert keep < len(content)  # cut off where a row ends, before the first
        except InputRefused as refusal:
            message = str(refusal)
        assert len(message.splitlines()) <= 20
        assert len(message) <= 4096
        assert all(line.isprintable() for line in message.splitlines())

    path.write_bytes(healthy[suffix])
    read(path)
    check()

"""Raw rows of any source, held to the standard library, pyarrow and `datasets` 5.2."""

import csv
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.data import arrow_tables, line_tables
from bridges.data.records import read_records
from dew.errors import InputRefused, UnknownName

ROWS = [
    {"text": "the cat", "label": 0, "score": 0.5},
    {"text": 'on "the"\nmat, sat', "label": 1, "score": 2},
    {"text": "äö 007", "label": 1, "score": -1e3},
]


def write_csv(path: Path, rows, delimiter=",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_json(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_all(folder: Path, rows) -> dict[str, Path]:
    """The same rows in a file of each kind."""
    import pyarrow as arrow
    from pyarrow import ipc, parquet

    rows = [{**row, "score": float(row["score"])} if "score" in row else row for row in rows]
    table = arrow.Table.from_pylist(rows)
    parquet.write_table(table, folder / "a.parquet", row_group_size=2)
    with ipc.new_stream(folder / "stream.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    with ipc.new_file(folder / "file.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=2)
    (folder / "array.json").write_text(json.dumps(rows, indent=1))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    (folder / "columns.json").write_text(json.dumps(columns, indent=1))
    (folder / "squad.json").write_text(json.dumps({"version": "1", "data": rows}))
    write_csv(folder / "a.csv", rows)
    write_csv(folder / "a.tsv", rows, "\t")
    write_json(folder / "a.jsonl", rows)
    return {path.name: path for path in folder.iterdir()}


# Tables


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
    for name, path in write_all(tmp_path, ROWS).items():
        records = read_records(path)
        assert records.columns == {"text": "text", "label": "integer", "score": "number"}, name
        assert list(records) == ROWS, name
        assert records[-1] == ROWS[2]
        assert records.take([2, 0, 2]) == [ROWS[2], ROWS[0], ROWS[2]]
        assert records.column("label") == [0, 1, 1]
        assert records.files == (path,)
        chosen = records.select([2, 1])
        assert list(chosen) == [ROWS[2], ROWS[1]]
        assert chosen.place(1) == records.place(1)
        assert chosen.fingerprint != records.fingerprint == read_records(path).fingerprint
        assert list(read_records(path, columns=["label"])) == [{"label": n} for n in (0, 1, 1)]


def test_values_in_memory_are_rows_too():
    import datasets

    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    made = datasets.Dataset.from_list([{**row, "score": float(row["score"])} for row in ROWS])
    by_split = datasets.DatasetDict({"train": made.select([0]), "test": made.select([1, 2])})
    for source in (ROWS, columns, {**columns, "label": np.array([0, 1, 1])}, made):
        assert list(read_records(source)) == ROWS
    assert list(read_records(by_split, split="test")) == ROWS[1:]
    assert list(read_records({"train": ROWS[:1], "validation": ROWS[1:]}, split="dev")) == ROWS[1:]
    shuffled = made.shuffle(seed=1)
    assert list(read_records(shuffled)) == list(shuffled)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"a": st.text(st.characters(exclude_categories=["Cs"]), min_size=1), "b": st.integers()}
        ),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_large_files_give_the_rows_of_small_ones(tmp_path_factory, rows, quoted):
    folder = tmp_path_factory.mktemp("large")
    rows = [
        {"a": row["a"].replace("\r", "x") if quoted else row["a"], "b": row["b"]} for row in rows
    ]
    files = [write_json(folder / "a.jsonl", rows)]
    if quoted:
        files.append(write_csv(folder / "a.csv", rows))
    for path in files:
        small = read_records(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(line_tables, "LARGE", 0)
            large = read_records(path)
        assert list(large) == list(small)
        assert large.columns == small.columns
        assert [large.place(n) for n in range(len(large))] == [
            small.place(n) for n in range(len(small))
        ]
        assert small.column("a") == [row["a"] for row in rows] or small.columns["a"] != "text"


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "", "-20"], "integer", [1, None, -20]),
        (["1", "2.5", "1e3"], "number", [1.0, 2.5, 1000.0]),
        (["true", "False", ""], "flag", [True, False, None]),
        (["007", "8"], "text", ["007", "8"]),
        (["12345678901234567890", "1"], "text", ["12345678901234567890", "1"]),
        (["9223372036854775807", "0"], "integer", [2**63 - 1, 0]),
        (["None", "nan", "NA"], "text", ["None", "nan", "NA"]),
        (["", ""], "text", ["", ""]),
    ],
)
def test_a_csv_column_is_read_as_the_narrowest_kind_that_loses_nothing(
    tmp_path, cells, kind, values
):
    path = write_csv(tmp_path / "a.csv", [{"x": cell, "y": "-"} for cell in cells])
    records = read_records(path)
    assert records.columns["x"] == kind
    assert records.column("x") == values


def test_a_csv_agrees_with_datasets(tmp_path):
    import datasets

    path = write_csv(tmp_path / "a.csv", ROWS)
    theirs = datasets.load_dataset(
        "csv", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert list(read_records(path)) == list(theirs)


def test_damaged_rows_are_named_by_line(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"a\nb",1\nc\n\nd,2,3\n')
    with pytest.raises(InputRefused) as refusal:
        read_records(tmp_path / "a.csv")
    message = str(refusal.value)
    assert "line 4: 1 fields, not 2" in message
    assert "line 6: 3 fields, not 2" in message
    (tmp_path / "b.csv").write_text('text\n"a\nb\n')
    with pytest.raises(InputRefused, match="line 2: cannot be read from here"):
        read_records(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_bytes(b"text\nok\n\xff\n")
    with pytest.raises(InputRefused, match="line 3: 0xff there is not utf-8"):
        read_records(tmp_path / "c.csv")
    (tmp_path / "d.csv").write_text("text,text,\n")
    with pytest.raises(InputRefused, match="'text', ''"):
        read_records(tmp_path / "d.csv")
    (tmp_path / "a.jsonl").write_text('{"text": "ok"}\n[1]\n{"text": "cut')
    with pytest.raises(InputRefused, match=r"line 2: no JSON object.*\n.*line 3: not JSON"):
        read_records(tmp_path / "a.jsonl")


def test_json_lines_under_another_name_are_named_by_line(tmp_path):
    (tmp_path / "a.json").write_text('{"text": "a"}}\n{"text": "b"}\n')
    with pytest.raises(InputRefused, match="line 1: not JSON: extra data"):
        read_records(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{\n "text": ["a"}\n')
    with pytest.raises(InputRefused, match="not JSON"):
        read_records(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"text": "a"}')
    assert list(read_records(tmp_path / "a.json")) == [{"text": "a"}]


def test_a_field_longer_than_the_modules_limit_is_read(tmp_path):
    path = write_csv(tmp_path / "a.csv", [{"text": "ab " * 100_000}])
    before = csv.field_size_limit()
    assert read_records(path)[0] == {"text": "ab " * 100_000}
    assert csv.field_size_limit() == before


def test_files_with_other_columns_are_listed(tmp_path):
    write_json(tmp_path / "a.jsonl", [{"text": "x", "label": 1}])
    write_json(tmp_path / "b.jsonl", [{"text": "x", "lable": 1}])
    write_json(tmp_path / "c.jsonl", [{"text": 5, "label": 1}])
    with pytest.raises(InputRefused) as refusal:
        read_records(tmp_path)
    message = str(refusal.value)
    assert "b.jsonl: no column 'label'" in message
    assert "b.jsonl: a column 'lable' more" in message
    assert "c.jsonl: column 'text' holds integer, not text" in message


def test_csv_files_agree_on_the_kind_of_a_column(tmp_path):
    write_csv(tmp_path / "a.csv", [{"code": "12"}])
    write_csv(tmp_path / "b.csv", [{"code": "x1"}])
    records = read_records(tmp_path)
    assert records.columns == {"code": "text"}
    assert records.column("code") == ["12", "x1"]


def test_a_large_file_that_changes_or_goes_is_named(tmp_path, monkeypatch):
    # FAULTS 22.
    monkeypatch.setattr(line_tables, "LARGE", 0)
    monkeypatch.setattr(arrow_tables, "LARGE", 0)
    files = write_all(tmp_path, ROWS)
    for name in ("a.jsonl", "a.csv", "stream.arrow"):
        records = read_records(files[name])
        files[name].write_bytes(files[name].read_bytes()[:-5])
        with pytest.raises(
            InputRefused, match=rf"{name}: changed while it was read, at (line|row)"
        ):
            records.take([1])
        files[name].unlink()
        with pytest.raises(InputRefused, match=rf"{name}: gone at (line|row)"):
            records.take([1])


# Arrow


def test_a_saved_dataset_is_read_without_the_library(tmp_path):
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["ham", "spam"])}
    )
    made = datasets.Dataset.from_dict({"text": list("abcde"), "label": [0, 1, 1, 0, 1]}, features)
    made.save_to_disk(tmp_path / "one", num_shards=2)
    datasets.DatasetDict({"train": made, "test": made.select([4])}).save_to_disk(tmp_path / "two")
    for source, split, expected in (
        (tmp_path / "one", "train", made),
        (tmp_path / "two", "train", made),
        (tmp_path / "two", "test", made.select([4])),
    ):
        records = read_records(source, split=split)
        assert list(records) == list(expected)
        assert records.labels("label") == ("ham", "spam")
        assert records.labels("text") is None
    with pytest.raises(UnknownName, match="has 'train', 'test'"):
        read_records(tmp_path / "two", split="validation")
    made.to_parquet(tmp_path / "a.parquet")
    assert read_records(tmp_path / "a.parquet").labels("label") == ("ham", "spam")


def test_images_and_sounds_in_rows_are_the_bytes_of_their_files(tmp_path):
    import datasets
    import pyarrow as arrow
    from PIL import Image
    from pyarrow import parquet

    Image.new("RGB", (3, 2), "red").save(tmp_path / "x.png")
    image = (tmp_path / "x.png").read_bytes()
    features = datasets.Features({"photo": datasets.Image()})
    made = datasets.Dataset.from_dict({"photo": [{"bytes": image, "path": None}]}, features)
    made.to_parquet(tmp_path / "a.parquet")
    bare = arrow.table({"photo": [image], "raw": [b"zz"], "sound": [b"RIFF1234WAVE"]})
    parquet.write_table(bare, tmp_path / "b.parquet")
    for source in (tmp_path / "a.parquet", made):
        assert read_records(source).columns == {"photo": "image"}
        assert read_records(source)[0]["photo"] == image
    kinds = {"photo": "image", "raw": "object", "sound": "audio"}
    assert read_records(tmp_path / "b.parquet").columns == kinds
    inside = datasets.Dataset.from_dict({"photo": ["x.png"]}, features)
    outside = datasets.Dataset.from_dict({"photo": ["../../etc/passwd"]}, features)
    parquet.write_table(inside.data.table, tmp_path / "c.parquet")
    parquet.write_table(outside.data.table, tmp_path / "d.parquet")
    assert read_records(tmp_path / "c.parquet")[0]["photo"] == tmp_path / "x.png"
    with pytest.raises(InputRefused, match="outside its folder"):
        read_records(tmp_path / "d.parquet").take([0])


def test_a_pickled_extension_type_runs_nothing(tmp_path):
    # BP074.
    import pyarrow as arrow

    class Run:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "CANARY",))

    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Run()),
    }
    schema = arrow.schema([arrow.field("x", arrow.int32(), metadata=metadata)])
    with arrow.ipc.new_file(tmp_path / "train.arrow", schema) as writer:
        writer.write_batch(arrow.record_batch([arrow.array([1], arrow.int32())], schema=schema))
    assert list(read_records(tmp_path / "train.arrow")) == [{"x": 1}]
    assert not (tmp_path / "CANARY").exists()


def test_wide_integers_and_durations_keep_their_values():
    # P065: duration[ns] of 5 s came out as 705032704.
    import datasets
    import pyarrow as arrow

    table = arrow.table({"n": [2**40], "d": arrow.array([5_000_000_000], arrow.duration("ns"))})
    records = read_records(datasets.Dataset(table))
    assert records.columns == {"n": "integer", "d": "object"}
    assert records[0]["n"] == 2**40
    assert records[0]["d"].total_seconds() == 5.0


# Refusals


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ([], "without anything in it"),
        ([{"a": 1}, 5], "row 2 is a int"),
        ({"a": [1], "b": [1, 2]}, "columns of different lengths: a 1, b 2"),
        (7, "found 'int'"),
        ("absent/a.csv", "no such file"),
    ],
)
def test_sources_that_hold_no_rows_are_refused(source, named):
    with pytest.raises(InputRefused, match=named):
        read_records(source)


def test_unknown_columns_and_rows_are_refused(tmp_path):
    records = read_records(ROWS)
    with pytest.raises(UnknownName, match="did you mean 'label'"):
        read_records(ROWS, columns=["lable"])
    with pytest.raises(InputRefused, match="there are 3"):
        records.take([3])
    with pytest.raises(InputRefused, match="there are 3"):
        records.select([-1])
    with tarfile.open(tmp_path / "a.tar", "w"):
        pass
    with pytest.raises(InputRefused, match="streaming=True"):
        read_records(tmp_path / "a.tar")

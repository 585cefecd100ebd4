"""Text files of every kind: what is read, what is refused."""

import json
import sys

import pytest
from helpers import SENTENCES, write_lines

from bridges.data.text_sources import find_files, read_texts
from dew.errors import InputRefused

TEXTS = list(SENTENCES)


def texts_of(source, **options) -> list[str]:
    return list(read_texts(find_files(source), **options))


# What is read


def test_the_kinds_of_file_give_the_same_texts(tmp_path):
    import pyarrow as arrow
    from pyarrow import parquet

    lines = write_lines(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "a.json").write_text(json.dumps([{"text": text} for text in TEXTS], indent=1))
    parquet.write_table(
        arrow.table({"n": [*range(len(TEXTS))], "text": TEXTS}), tmp_path / "a.parquet"
    )
    (tmp_path / "lines.json").write_bytes(lines.read_bytes())
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text)
    for source in ("a.jsonl", "a.json", "a.parquet", "lines.json", "folder"):
        assert texts_of(tmp_path / source) == TEXTS, source


def test_several_paths_are_read_in_the_order_given(tmp_path):
    first = write_lines(tmp_path / "b.jsonl", TEXTS[:1])
    second = write_lines(tmp_path / "a.jsonl", TEXTS[1:])
    assert texts_of([first, second]) == TEXTS


def test_a_text_file_keeps_its_line_ends_and_loses_its_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    assert texts_of(tmp_path / "a.txt") == ["one\r\ntwo\n"]


def test_only_a_line_feed_ends_a_json_line(tmp_path):
    text = "a\u2028b\u0085c\x00d"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n\n")
    assert texts_of(tmp_path / "a.jsonl") == [text]


def test_a_script_in_the_folder_is_neither_read_nor_run(tmp_path):
    # BP075. What is not read is named.
    write_lines(tmp_path / "train.jsonl", ["a"])
    (tmp_path / "ds.py").write_text("raise SystemExit(9)")
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / ".hidden.jsonl").write_text("{}")
    found = find_files(tmp_path)
    assert [path.name for path in found.paths] == ["train.jsonl"]
    assert found.ignored == ("dataset_infos.json", "ds.py")
    assert "ds" not in sys.modules


def test_files_of_a_test_split_stay_out_of_the_training_data(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("train-0", "train-1", "test-0", "validation-0", "contest"):
        write_lines(tmp_path / "data" / f"{name}.jsonl", [name])
    assert texts_of(tmp_path) == ["contest", "train-0", "train-1"]
    assert find_files(tmp_path).ignored == ("data/test-0.jsonl", "data/validation-0.jsonl")


def test_latin_1_is_read_only_when_it_is_declared(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ok"}\n{"text": "caf\xe9"}\n')
    assert texts_of(tmp_path / "a.txt", encoding="latin-1") == ["café"]
    assert texts_of(tmp_path / "a.jsonl", encoding="latin-1") == ["ok", "café"]
    with pytest.raises(InputRefused, match=r"a\.txt: byte 3 is 0xe9, which is not utf-8"):
        texts_of(tmp_path / "a.txt")
    with pytest.raises(InputRefused, match=r"a\.jsonl.*\n  line 2: not utf-8: byte 28 is 0xe9"):
        texts_of(tmp_path / "a.jsonl")


# What is refused


def test_json_lines_name_the_file_and_every_bad_line(tmp_path):
    # BP078: rows 2 and 4; the NUL of row 3 is data.
    (tmp_path / "train.jsonl").write_bytes(
        b'{"text": "ok"}\n{"other": 1}\n{"text": "a\\u0000b"}\n{"text": "cut'
    )
    with pytest.raises(InputRefused) as refusal:
        texts_of(tmp_path / "train.jsonl")
    lines = str(refusal.value).splitlines()
    assert "train.jsonl" in lines[0]
    assert lines[1] == "  line 2: no field 'text'; there is 'other'"
    assert lines[2].startswith("  line 4: not JSON")
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"[1]", "line 2: no JSON object but"),
        (b'{"text": null}', "line 2: field 'text' holds null"),
        (b'{"text": 3}', "line 2: field 'text' holds int"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b'{"texts": "a"}', "did you mean 'texts'"),
        (b"[" * 200_000, "line 2: not JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "line 2: not JSON"),
        (b'{"text": "a"}}', "line 2: not JSON: extra data"),
    ],
)
def test_an_unusable_row_is_named(tmp_path, line, named):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ok"}\n' + line + b"\n")
    with pytest.raises(InputRefused, match=r"a\.jsonl") as refusal:
        texts_of(tmp_path / "a.jsonl")
    assert named in str(refusal.value)


def test_many_bad_rows_make_one_short_message(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n' * 5000)
    with pytest.raises(InputRefused) as refusal:
        texts_of(tmp_path / "a.jsonl")
    assert len(str(refusal.value).splitlines()) <= 20
    assert len(str(refusal.value)) <= 4096


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.csv", b"x", "kind '.csv'"),
        ("a.json", b'[{"text": "a"}', "not JSON"),
        ("a.parquet", b"PAR1", "parquet"),
        ("a.txt", b"\xff\xfea\x00", "UTF-16"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputRefused, match=named):
        texts_of(tmp_path / name)


def test_nothing_there_and_a_folder_without_data_are_refused(tmp_path):
    with pytest.raises(InputRefused, match="no such file"):
        texts_of(tmp_path / "absent.jsonl")
    with pytest.raises(InputRefused, match="no such file"):
        texts_of("some-owner/some-dataset")
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(InputRefused, match=r"without data.*notes\.md"):
        texts_of(tmp_path)


def test_parquet_refuses_an_absent_column_another_type_and_null(tmp_path):
    import pyarrow as arrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"body": ["a"], "n": [1], "t": ["a"]}), path)
    with pytest.raises(InputRefused, match="no field 'text'; there is 'body', 'n', 't'"):
        texts_of(path)
    with pytest.raises(InputRefused, match="field 'n' holds 'int64'"):
        texts_of(path, text_field="n")
    parquet.write_table(arrow.table({"text": ["a", None]}), path)
    with pytest.raises(InputRefused, match="row 2: holds null"):
        texts_of(path)


def test_without_pyarrow_the_message_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputRefused, match=r"pip install 'dew\[data\]'"):
        texts_of(tmp_path / "a.parquet")

"""Files of tokens become the windows of a dataset, and what is no such file is refused."""

import os

import numpy as np
import pytest

from dew.data import DataPartition
from dew.data.token_files import token_stream
from dew.errors import InputRefused
from dew.registry import datasets

TOKENS = np.arange(41) % 7


def rows(dataset):
    return np.concatenate([batch["text"] for batch in dataset.val(DataPartition())])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("t.npy", "int64"), ("t.bin", "uint16"), ("t.bin", "uint32"), ("t.bin", "int32")],
)
def test_windows_of_a_file_are_those_of_its_tokens(tmp_path, name, dtype):
    # The oracle is the same dataset over the tokens in memory.
    path, stored = tmp_path / name, TOKENS.astype(dtype)
    if path.suffix == ".npy":
        np.save(path, stored)
    else:
        path.write_bytes(stored.astype(stored.dtype.newbyteorder("<")).tobytes())
    kept = {"dtype": dtype} if path.suffix == ".bin" else {}
    settings = datasets["token_windows"](seq_len=8, train=str(path), val=str(path), **kept)
    opened = settings.open(batch=2, vocab_size=7)
    memory = settings.dataset(TOKENS, batch=2, val=TOKENS)
    assert np.array_equal(rows(opened), rows(memory))
    assert (opened.records, opened.batch) == (5, 2)
    first, wanted = (next(iter(each.train(DataPartition()))) for each in (opened, memory))
    assert np.array_equal(first["text"], wanted["text"])


def test_a_text_is_its_bytes(tmp_path):
    (tmp_path / "t.txt").write_bytes("to be é".encode())
    assert list(token_stream(str(tmp_path / "t.txt"))) == list("to be é".encode())


def test_without_a_validation_file_there_is_no_validation(tmp_path):
    np.save(tmp_path / "t.npy", TOKENS)
    settings = datasets["token_windows"](seq_len=8, train=str(tmp_path / "t.npy"))
    assert settings.open(batch=2).val is None
    with pytest.raises(InputRefused, match="train is missing"):
        datasets["token_windows"](seq_len=8).open(batch=2)


def test_an_id_past_the_vocabulary_is_named_with_its_place(tmp_path):
    np.save(tmp_path / "t.npy", TOKENS)
    with pytest.raises(InputRefused, match=r"id 6 at position 6, .* vocab_size is 6"):
        token_stream(str(tmp_path / "t.npy"), vocab_size=6)
    np.save(tmp_path / "n.npy", np.array([1, 2, -1]))
    with pytest.raises(InputRefused, match="id -1 at position 2"):
        token_stream(str(tmp_path / "n.npy"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.npy", b"", "not readable as .npy"),
        ("t.npy", b"\x93NUMPY\x01\x00\xff\xff{", "not readable as .npy"),
        ("t.bin", b"", "0 bytes"),
        ("t.bin", b"abc", "3 bytes; expected a multiple of 2"),
        ("t.parquet", b"PAR1", "expected a file of tokens"),
        ("t.txt", b"", "0 bytes"),
        ("gone.npy", None, "No such file"),
    ],
)
def test_what_holds_no_tokens_is_refused(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputRefused, match=words):
        token_stream(str(tmp_path / name))


def test_arrays_that_are_no_stream_and_pickles_are_refused(tmp_path):
    for number, array in enumerate((np.zeros((2, 2), int), np.zeros(3), np.array([{}]))):
        np.save(tmp_path / f"{number}.npy", array, allow_pickle=True)
        with pytest.raises(InputRefused, match=r"not readable|expected whole numbers"):
            token_stream(str(tmp_path / f"{number}.npy"))


def test_a_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "t.bin")
    with pytest.raises(InputRefused, match="not a regular file"):
        token_stream(str(tmp_path / "t.bin"))


def test_another_dtype_offers_the_nearest(tmp_path):
    (tmp_path / "t.bin").write_bytes(b"1234")
    with pytest.raises(InputRefused, match="did you mean 'uint16'"):
        token_stream(str(tmp_path / "t.bin"), dtype="uint61")

"""The pickles of torch.save: views that leave their storage, and pickles that ask for too much."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict

import bad_files as files
import numpy as np
import pytest
import torch

from bridges.files.bin_file import open_bin
from bridges.files.stored_tensor import StoredTensor
from bridges.files.torch_pickle import OPCODE_LIMIT, read_pickle
from dew.errors import InputRefused


class Flat:
    """Stands for a storage while a pickle is written."""


class View:
    """Is pickled as a tensor is, with any arguments."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        rest = (False, OrderedDict())
        return torch._utils._rebuild_tensor_v2, (Flat(), *self.arguments, *rest)


def stored(shape, strides, count=4, offset=0):
    """A pickle of one float32 tensor with any shape and strides over `count` elements."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            found = isinstance(value, Flat)
            return ("storage", torch.FloatStorage, "0", "cpu", count) if found else None

    out = io.BytesIO()
    Pickler(out, protocol=2).dump({"w": View(offset, shape, strides)})
    return out.getvalue()


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "words"),
    [
        ((5,), (1,), 0, "needs 20 bytes, its storage has 16"),
        ((4,), (1,), 1, "needs 20 bytes"),
        ((2, 2), (3, 1), 0, "needs 20 bytes"),
        ((2,), (2**62,), 0, "needs"),
        ((2**40, 2**40), (0, 0), 0, r"repeats the 16 bytes.*contiguous\(\)"),
        ((2**62, 2**62, 0), (0, 0, 0), 0, "repeats"),
        ((-1,), (1,), 0, "give no value"),
        ((2,), (-1,), 1, "give no value"),
        ((2,), (1, 1), 0, "give no value"),
    ],
)
def test_a_view_that_leaves_or_swells_its_storage_is_refused(
    shape, strides, offset, words, tmp_path
):
    files.torch_zip(tmp_path, stored(shape, strides, offset=offset), {"archive/data/0": bytes(16)})
    with pytest.raises(InputRefused, match=words):
        open_bin(tmp_path / "pytorch_model.bin")


def test_an_axis_of_one_element_may_bear_any_stride(tmp_path):
    numbers = np.arange(4, dtype="<f4").tobytes()
    pickled = stored((2, 1), (2, 2**70))
    files.torch_zip(tmp_path, pickled, {"archive/data/0": numbers})
    assert open_bin(tmp_path / "pytorch_model.bin").read("w").tolist() == [[0.0], [2.0]]


def test_a_dict_with_a_name_twice_is_refused():
    # {"a": None, "a": None}: a reader that took the last would hide the first.
    with pytest.raises(InputRefused, match="key 'a' twice"):
        read_pickle(b"\x80\x02}(X\x01\0\0\0aNX\x01\0\0\0aNu.", "f")


def test_a_pickle_of_too_many_operations_ends():
    with pytest.raises(InputRefused, match=f"more than {OPCODE_LIMIT} operations"):
        read_pickle(b"\x80\x02" + b"N0" * OPCODE_LIMIT, "f")


def test_lists_that_double_are_never_written_out():
    # Forty lists, each of the one before twice; the last one as the name of a global.
    lists = b"]\x94" + b"".join(b"]\x94" + b"(" + b"h%c" % n * 2 + b"e" for n in range(40))
    with pytest.raises(InputRefused, match="a global whose name is no text"):
        read_pickle(b"\x80\x04" + lists + b"\x8c\x01a\x93.", "f")


def test_a_value_that_holds_itself_is_read_and_not_followed(tmp_path):
    # {"a": the dict itself}, by the memo.
    files.torch_zip(tmp_path, b"\x80\x02}q\0X\x01\0\0\0ah\0s.")
    with pytest.raises(InputRefused, match="'a': dict"):
        open_bin(tmp_path / "pytorch_model.bin")


def test_the_records_say_what_they_need():
    # A [2, 3] view with strides (1, 2) from element 1 ends at 1 + 1 + 4, so seven elements.
    value, _ = read_pickle(stored((2, 3), (1, 2), count=7, offset=1), "f")
    entry = value["w"]
    assert isinstance(entry, StoredTensor)
    assert (entry.reach, entry.is_contiguous, entry.storage.size) == (7, False, 28)

"""Weight files are read as they were written: dtypes, shards, links, prefixes."""

from __future__ import annotations

import json
import subprocess
import sys

import bad_files as files
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from bridges.files.json_file import read_json
from bridges.files.tensors import open_tensors
from dew.errors import InputRefused, UnknownName

INDEX = "model.safetensors.index.json"


def write_shards(folder, shards):
    """Write an index and its shards, and return all tensors by name."""
    names = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, folder / name)
        names |= dict.fromkeys(tensors, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return {name: array for tensors in shards for name, array in tensors.items()}


def three_shards(folder):
    """Write three shards of one tensor each."""
    return write_shards(folder, [{f"w{i}": np.full((2, 3), i, np.float32)} for i in range(3)])


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
    ],
)
def test_every_dtype_reads_back_bit_for_bit(dtype, tmp_path):
    # The oracle is the safetensors package's writer: the bytes that it was given come back.
    written = {
        "matrix": np.arange(12).reshape(3, 4).astype(dtype),
        "scalar": np.array(1).astype(dtype),
        "empty": np.zeros((0, 5), dtype),
    }
    save_file(written, tmp_path / "model.safetensors")
    tensors = open_tensors(tmp_path)
    assert sorted(tensors.names()) == sorted(written)
    for name, array in written.items():
        read = tensors.read(name)
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert tensors.info(name).dtype == array.dtype
        assert tensors.info(name).shape == array.shape
        assert read.tobytes() == array.tobytes()


def test_a_mixed_file_keeps_the_dtype_of_each_tensor(tmp_path):
    """Case P003: one dtype for a whole file would cast the integers and the mask."""
    written = {
        "weight": np.ones((2, 2), ml_dtypes.bfloat16),
        "norm": np.full(2, 1 / 3, np.float32),
        "position_ids": np.arange(2**40, 2**40 + 3),
        "mask": np.array([True, False]),
    }
    save_file(written, tmp_path / "model.safetensors")
    tensors = open_tensors(tmp_path)
    for name, array in written.items():
        assert tensors.read(name).dtype == array.dtype
        np.testing.assert_array_equal(tensors.read(name), array)


def test_reading_copies_nothing_and_survives_release(tmp_path):
    save_file({"w": np.arange(1 << 16, dtype=np.float32)}, tmp_path / "model.safetensors")
    tensors = open_tensors(tmp_path)
    first, second = tensors.read("w"), tensors.read("w")
    assert np.shares_memory(first, second)
    assert first.flags.c_contiguous
    assert not first.flags.writeable
    tensors.release("w")
    np.testing.assert_array_equal(first, np.arange(1 << 16, dtype=np.float32))


def test_bfloat16_needs_no_jax_no_torch_and_no_import_order(tmp_path):
    """Case P002: the bits of a bfloat16 tensor, in a process that has imported nothing else."""
    array = np.array([1.0, -2.5, 3.140625], ml_dtypes.bfloat16)
    save_file({"w": array}, tmp_path / "model.safetensors")
    code = (
        "import sys, numpy as np; from bridges.files.tensors import open_tensors;"
        f"print(open_tensors({str(tmp_path)!r}).read('w').view(np.uint16).tolist());"
        "print([name for name in ('jax', 'torch', 'safetensors') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [str(array.view(np.uint16).tolist()), "[]"]


@pytest.mark.parametrize("tag", ["F4", "F8_E3M4", "Q4_1", 5])
def test_an_unknown_dtype_tag_is_refused_by_tensor_and_tag(tag, tmp_path):
    """Case P004: eight bits of an unknown kind must never be read as another kind."""
    header = {"layer.weight": {"dtype": tag, "shape": [4], "data_offsets": [0, 4]}}
    files.write(tmp_path, "model.safetensors", files.safetensors(header, bytes(4)))
    with pytest.raises(InputRefused, match=f"'layer.weight': dtype '?{tag}'?, expected one of"):
        open_tensors(tmp_path)


def test_shards_are_those_of_the_index(tmp_path):
    written = three_shards(tmp_path)
    tensors = open_tensors(tmp_path)
    assert tensors.names() == list(written)
    for name, array in written.items():
        np.testing.assert_array_equal(tensors.read(name), array)
    assert tensors.info("w1").file.name == "model-00002-of-00003.safetensors"


def test_absent_shards_are_named_all_at_once(tmp_path):
    """Case P005: no start with a part of the weights."""
    three_shards(tmp_path)
    for number in (1, 2):
        (tmp_path / f"model-0000{number}-of-00003.safetensors").unlink()
    with pytest.raises(InputRefused, match=r"(?s)00001-of.*no such file.*00002-of.*no such file"):
        open_tensors(tmp_path)


def test_a_stray_file_beside_the_shards_is_not_read(tmp_path):
    """Case P006: the index alone says what belongs to the checkpoint."""
    written = three_shards(tmp_path)
    save_file({"w0": np.zeros((2, 3), np.float32)}, tmp_path / "model.safetensors")
    save_file({"extra": np.zeros(1, np.float32)}, tmp_path / "other.safetensors")
    tensors = open_tensors(tmp_path)
    assert tensors.names() == list(written)
    assert tensors.read("w0")[0, 0] == 0.0
    assert tensors.info("w0").file.name == "model-00001-of-00003.safetensors"


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    three_shards(tmp_path)
    save_file(
        {"w0": np.ones((2, 3), np.float32), "w1": np.ones((2, 3), np.float32)},
        tmp_path / "model-00002-of-00003.safetensors",
    )
    with pytest.raises(InputRefused, match=r"'w0' is in both model-00001.* and model-00002"):
        open_tensors(tmp_path)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
def test_a_wrapper_prefix_goes_when_every_name_has_it(prefix, tmp_path):
    """Case P011: checkpoints saved from compiled or data-parallel torch models."""
    array = np.arange(4, dtype=np.float32)
    path = tmp_path / "model.safetensors"
    save_file({f"{prefix}model.norm.weight": array, f"{prefix}b": array}, path)
    tensors = open_tensors(tmp_path)
    assert sorted(tensors.names()) == ["b", "model.norm.weight"]
    np.testing.assert_array_equal(tensors.read("model.norm.weight"), array)
    save_file({f"{prefix}a": array, "b": array}, path)
    assert sorted(open_tensors(tmp_path).names()) == sorted([f"{prefix}a", "b"])


def test_a_hub_cache_entry_reads_through_its_links(tmp_path):
    """The hub's cache keeps files in blobs/ and links them into snapshots/<revision>/."""
    entry = tmp_path / "models--org--name"
    snapshot, blobs = entry / "snapshots" / "abc", entry / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"w": np.ones(2, np.float32)}, blobs / "123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    assert open_tensors(snapshot).read("w").tolist() == [1.0, 1.0]
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "elsewhere")
    with pytest.raises(InputRefused, match="outside the folder"):
        open_tensors(snapshot)


def test_pickled_weights_are_refused_unread(tmp_path):
    """Cases P007 to P009: nothing is unpickled, whichever torch is there; formats are named."""
    files.write(tmp_path, "pytorch_model.bin", files.pickled_payload())
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(InputRefused, match=r"global 'posix\.system'.*not allowed"):
            open_tensors(path)
    assert not list(tmp_path.rglob(files.CANARY))


def test_a_folder_without_weights_says_what_it_looked_for(tmp_path):
    files.write(tmp_path, "adapter_model.safetensors", files.packed({}))
    with pytest.raises(InputRefused, match=r"(?s)model.safetensors.*adapter_model.safetensors"):
        open_tensors(tmp_path)


def test_an_unknown_tensor_name_offers_the_nearest(tmp_path):
    save_file({"model.norm.weight": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(UnknownName, match=r"did you mean 'model\.norm\.weight'"):
        open_tensors(tmp_path).read("model.norm.weigth")


def test_a_damaged_header_is_refused_or_read_and_nothing_else(tmp_path):
    whole = files.packed(files.gpt2_tensors())
    generator, messages = np.random.default_rng(0), []
    for _ in range(300):
        files.write(tmp_path, "model.safetensors", files.damaged(whole, generator, 1500))
        try:
            read = open_tensors(tmp_path)
            assert all(read.read(name).shape == read.info(name).shape for name in read.names())
        except InputRefused as refusal:
            messages.append(str(refusal))
    assert 150 < len(messages) < 300
    assert max(len(message.splitlines()) for message in messages) <= 20


@pytest.mark.parametrize(
    ("content", "place", "what"),
    [
        (b'{"a": 1,\n "b": {"c": 1, "c": 2}}', "2:16", "'c' stands twice"),
        (b'{"a": "NaN",\n "b": -Infinity}', "2:7", "'-Infinity' is not finite"),
        (b'{"a": 1e999}', "1:7", "'1e999' is not finite"),
        (b'{"a": 1,}', "1:9", "not valid JSON"),
        (b'{"a": "\xff"}', "1:8", "not UTF-8"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}", "1:106", "nesting limit"),
        (b"[1]", "1:1", "found an array"),
    ],
)
def test_bad_json_is_refused_with_its_place(content, place, what, tmp_path):
    # Line and column are counted by hand, from 1.
    path = files.write(tmp_path, "config.json", content)
    with pytest.raises(InputRefused, match=rf"config\.json:{place}: .*{what}"):
        read_json(path)


def test_json_brackets_within_strings_do_not_nest(tmp_path):
    value = {"template": '[[{"' * 1000, "list": [[1], [2]] * 200}
    assert read_json(files.write(tmp_path, "config.json", value)) == value


def test_a_large_integer_and_a_utf8_mark_are_read(tmp_path):
    path = files.write(tmp_path, "config.json", b'\xef\xbb\xbf{"a": 1180591620717411303424}')
    assert read_json(path) == {"a": 2**70}

"""Torch's own files, read without torch: every value as torch.load gives it, and nothing run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import bad_files as files
import jax
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import bridges
from bridges.files.bin_file import open_bin
from bridges.files.stored_tensor import DTYPES
from bridges.files.tensors import open_tensors
from bridges.files.torch_pickle import STORAGES
from dew.errors import InputRefused

LAYOUTS = ("zip", "legacy")
# What torch's own loader says of its older layout.
pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


def views():
    """Tensors of every layout that a state dict may hold, some over one storage."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(6, 8, generator=generator)
    return {
        "whole": whole,
        "again": whole,
        "inside": whole[1:4, 2:],
        "transposed": whole.T,
        "stepped": whole[::2, ::3],
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "repeated": whole[:3, :1].expand(3, 5),
        "parameter": torch.nn.Parameter(whole[0].clone()),
        "permuted": torch.randn(2, 3, 4, 5, generator=generator).permute(3, 0, 2, 1),
    }


def numbers(layout):
    """A tensor of every dtype that torch reads in a layout."""
    found = {}
    for name in DTYPES if layout == "zip" else STORAGES.values():
        dtype = getattr(torch, name)
        exact = dtype.is_floating_point or dtype.is_complex
        values = torch.tensor([[0.5, 1.0], [2.0, 4.0]]) if exact else torch.tensor([[0, 1], [1, 0]])
        found[name] = values.to(dtype)
    return found


def save(tensors, path, layout, protocol=2):
    torch.save(
        tensors,
        path,
        _use_new_zipfile_serialization=layout == "zip",
        pickle_protocol=protocol,
    )


def raw(tensor):
    """The bytes of a torch tensor in row-major order."""
    flat = tensor.detach().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_every_tensor_has_the_bytes_that_torch_load_gives(layout, protocol, tmp_path):
    save(views() | numbers(layout), tmp_path / "a.bin", layout, protocol)
    theirs = torch.load(tmp_path / "a.bin", weights_only=False)
    ours = open_bin(tmp_path / "a.bin")
    assert ours.names() == list(theirs)
    for name, tensor in theirs.items():
        array, info = ours.read(name), ours.info(name)
        assert array.dtype == info.dtype == DTYPES[str(tensor.dtype).removeprefix("torch.")]
        assert array.shape == info.shape == tuple(tensor.shape)
        assert array.flags.c_contiguous
        assert array.tobytes() == raw(tensor), name
        ours.release(name)
        assert array.tobytes() == raw(tensor), name


@pytest.mark.parametrize("name", ["vgg", "alex", "squeeze"])
def test_files_that_others_saved_years_ago_are_read(name):
    # The LPIPS heads in torchmetrics: the older layout, saved from a GPU.
    import torchmetrics

    folder = Path(torchmetrics.__file__).parent / "functional/image/lpips_models"
    theirs = torch.load(folder / f"{name}.pth", weights_only=True, map_location="cpu")
    ours = open_bin(folder / f"{name}.pth")
    assert ours.names() == list(theirs)
    assert all(ours.read(name).tobytes() == raw(theirs[name]) for name in theirs)


def test_a_tensor_in_order_is_a_view_of_the_file_and_read_only(tmp_path):
    save({"w": torch.arange(4.0)}, tmp_path / "a.bin", "zip")
    array = open_bin(tmp_path / "a.bin").read("w")
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_state_dict_beside_plain_values_is_found(layout, tmp_path):
    weights = module().state_dict()
    optimizer = torch.optim.Adam(module().parameters())
    optimizer.zero_grad()
    whole = {"epoch": 3, "state_dict": weights, "notes": ["a", None, 2.5, (True,)]}
    save(whole | {"optimizer": optimizer.state_dict()}, tmp_path / "a.pt", layout)
    ours = open_tensors(tmp_path / "a.pt")
    assert ours.names() == list(weights)
    assert all(ours.read(name).tobytes() == raw(weights[name]) for name in weights)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_the_prefixes_of_wrappers_are_dropped_where_all_names_bear_them(prefix, tmp_path):
    weights = module().state_dict()
    save({prefix + name: value for name, value in weights.items()}, tmp_path / "a.bin", "zip")
    assert open_tensors(tmp_path / "a.bin").names() == list(weights)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"model": {"w": torch.ones(2)}, "ema": {"w": torch.ones(2)}},
            r"(?s)several dicts.*'ema': tensors by name",
        ),
        ({"w": torch.ones(2), "step": 3}, r"(?s)tensors beside other values.*'step': int"),
        ({"epoch": 1}, "no tensors"),
        ({}, "an empty dict"),
        ([torch.ones(2)], "one list"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_is_not_one_state_dict_is_refused_naming_what_it_holds(content, words, tmp_path):
    save(content, tmp_path / "a.bin", "zip")
    with pytest.raises(InputRefused, match=words):
        open_bin(tmp_path / "a.bin")


def test_a_whole_module_is_refused_by_the_name_of_its_class(tmp_path):
    save(module(), tmp_path / "a.bin", "zip")
    with pytest.raises(InputRefused, match=r"torch\.nn\.modules\.container\.Sequential.*safetens"):
        open_bin(tmp_path / "a.bin")


def test_numpy_numbers_beside_the_weights_are_refused_by_name(tmp_path):
    save({"w": torch.ones(1), "loss": np.float64(1)}, tmp_path / "a.bin", "zip")
    with pytest.raises(InputRefused, match=r"multiarray\.scalar.*not allowed"):
        open_bin(tmp_path / "a.bin")


def rewritten(path, change):
    """Write a zip file again with `change(name, content)` of each member, or without it."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            changed = change(name, content)
            if changed is not None:
                archive.writestr(name, changed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n, c: c[:-4] if n.endswith("/0") else c, "takes 16 bytes, the file has 12"),
        (lambda n, c: c + b"1234" if n.endswith("/0") else c, "takes 16 bytes, the file has 20"),
        (lambda n, c: None if n.endswith("/0") else c, "storage '0' is not in the file"),
        (lambda n, c: b"big" if n.endswith("byteorder") else c, "another byte order"),
        (lambda n, c: None if n.endswith("data.pkl") else c, r"0 members called data\.pkl"),
        (lambda n, c: c[:-9] if n.endswith("data.pkl") else c, r"broken at byte \d+"),
    ],
)
def test_a_zip_whose_parts_do_not_fit_is_refused(change, words, tmp_path):
    save({"w": torch.arange(4.0)}, tmp_path / "a.bin", "zip")
    rewritten(tmp_path / "a.bin", change)
    with pytest.raises(InputRefused, match=words):
        open_bin(tmp_path / "a.bin")


def test_a_program_of_torchscript_is_refused_as_such(tmp_path):
    save({"w": torch.ones(1)}, tmp_path / "a.pt", "zip")
    with zipfile.ZipFile(tmp_path / "a.pt", "a") as archive:
        archive.writestr("a/code/__torch__.py", "class M: pass")
    with pytest.raises(InputRefused, match=r"TorchScript program, which holds code"):
        open_bin(tmp_path / "a.pt")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_cut_off_anywhere_is_refused(layout, tmp_path):
    path = tmp_path / "a.bin"
    save({"w": torch.arange(40.0)}, path, layout)
    whole = path.read_bytes()
    for keep in range(0, len(whole), 41):
        path.write_bytes(whole[:keep])
        with pytest.raises(InputRefused):
            open_bin(path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_file_is_refused_or_read_and_nothing_else(layout, tmp_path):
    path, generator = tmp_path / "a.bin", np.random.default_rng(0)
    save(module().state_dict(), path, layout)
    whole = path.read_bytes()
    messages = []
    for _ in range(200):
        path.write_bytes(files.damaged(whole, generator, len(whole)))
        try:
            ours = open_bin(path)
            assert all(ours.read(name).shape == ours.info(name).shape for name in ours.names())
        except InputRefused as refusal:
            messages.append(str(refusal))
    assert 20 < len(messages) <= 200
    assert max(len(message.splitlines()) for message in messages) <= 20


def checkpoint(folder):
    """A GPT-2 whose weights are a .bin file alone, and the same with safetensors beside it."""
    tensors = files.gpt2_tensors()
    files.write(folder, "config.json", files.gpt2_config())
    save({n: torch.from_numpy(a) for n, a in tensors.items()}, folder / "pytorch_model.bin", "zip")
    return tensors


def logits(folder):
    return np.asarray(bridges.load(folder)(input_ids=np.arange(6)[None])["logits"])


def test_a_checkpoint_of_bin_files_computes_what_its_safetensors_do(tmp_path):
    # Case P007.
    one, other = tmp_path / "bin", tmp_path / "safetensors"
    one.mkdir()
    checkpoint(one)
    files.gpt2(other)
    assert logits(one).tobytes() == logits(other).tobytes()
    bridges.export(bridges.load(one), tmp_path / "out")
    exported = {path.name for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in exported
    assert not any(name.endswith(".bin") for name in exported)


def test_an_adapter_of_peft_in_a_bin_file_is_the_one_of_its_safetensors(tmp_path):
    files.gpt2(tmp_path / "base")
    module = "base_model.model.transformer.h.0.attn.c_attn"
    generator = np.random.default_rng(0)
    tensors = {
        f"{module}.lora_A.weight": generator.normal(size=(2, 8)).astype(np.float32),
        f"{module}.lora_B.weight": generator.normal(size=(24, 2)).astype(np.float32),
    }
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["c_attn"]}
    found = {}
    for kind in ("bin", "safetensors"):
        folder = tmp_path / kind
        files.write(folder, "adapter_config.json", settings | {"fan_in_fan_out": True})
        if kind == "bin":
            stored = {name: torch.from_numpy(array) for name, array in tensors.items()}
            save(stored, folder / "adapter_model.bin", "zip")
        else:
            save_file(tensors, folder / "adapter_model.safetensors")
        adapted = bridges.load_adapter(bridges.load(tmp_path / "base"), folder)
        found[kind] = adapted.variables["lora"]
    pairs = zip(*map(jax.tree.leaves, found.values()), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def split(folder, tensors):
    """Write two shards and the index that transformers 4 wrote."""
    homes = {}
    for index, names in enumerate((list(tensors)[::2], list(tensors)[1::2]), start=1):
        shard = f"pytorch_model-{index:05d}-of-00002.bin"
        save({name: torch.from_numpy(tensors[name]) for name in names}, folder / shard, "zip")
        homes |= dict.fromkeys(names, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": homes}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return homes


def test_sharded_bin_files_are_read_by_their_index(tmp_path):
    tensors = checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    split(tmp_path, tensors)
    ours = open_tensors(tmp_path)
    assert set(ours.names()) == set(tensors)
    assert all(ours.read(name).tobytes() == tensors[name].tobytes() for name in tensors)


def test_shards_that_are_absent_or_moved_are_named_together(tmp_path):
    homes = split(tmp_path, files.gpt2_tensors())
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    index = tmp_path / "pytorch_model.bin.index.json"
    first = "pytorch_model-00001-of-00002.bin"
    index.write_text(json.dumps({"weight_map": homes | {"absent": first}}))
    with pytest.raises(InputRefused, match=r"(?s)00002-of-00002\.bin: no such file.*'absent'"):
        open_tensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../x.bin", "b": "model.safetensors"}}))
    with pytest.raises(InputRefused, match=r"(?s)x\.bin.*'model\.safetensors' is no \.bin file"):
        open_tensors(tmp_path)


def test_safetensors_win_over_bin_files_beside_them(tmp_path):
    save({"w": torch.zeros(2)}, tmp_path / "pytorch_model.bin", "zip")
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    assert open_tensors(tmp_path).read("w").tolist() == [1.0, 1.0]


def test_reading_a_bin_file_needs_no_torch(tmp_path):
    # Cases P009 and P019: whichever torch is there, it is not asked.
    checkpoint(tmp_path)
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from bridges.files.tensors import open_tensors\n"
        "tensors = open_tensors(sys.argv[1])\n"
        "print(sum(tensors.read(name).size for name in tensors.names()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert int(found.stdout) == sum(array.size for array in files.gpt2_tensors().values())

"""Export: byte for byte what was loaded, read by both transformers, never half a folder."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from helpers import hf_gpt2, hf_llama, llama_config, llama_tensors, write_llama, write_tensors

import bridges
from bridges.exporting import ExportDiffers, cast, generation_config
from bridges.files.swap import own_entries, staged
from bridges.files.tensors import open_tensors
from bridges.files.writer import Planned, write_weights
from bridges.loading import load
from dew.errors import InputRefused

IDS = np.array([[5, 7, 11, 13]])


def stored(folder: Path) -> dict[str, tuple]:
    """Return every tensor's dtype, shape and bytes."""
    tensors = open_tensors(folder)
    found = {name: tensors.read(name) for name in tensors.names()}
    return {name: (a.dtype, a.shape, a.tobytes()) for name, a in found.items()}


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def trained(bundle):
    """Return the bundle with every leaf moved beyond the precision of bfloat16."""
    params = jax.tree.map(lambda x: x + 1e-4 * np.float32(np.pi), bundle.variables["params"])
    return bundle.replace(variables={"params": params})


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def bundle(source):
    return load(source)


# Bytes.


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_export_undoes_load(dtype, tied, tmp_path):
    config = llama_config(tie_word_embeddings=tied)
    tensors = {k: v.astype(dtype) for k, v in llama_tensors(config).items()}
    folder = write_tensors(tmp_path / "a", tensors, tie_word_embeddings=tied)
    bridges.export(load(folder), tmp_path / "b", verify=False)
    assert stored(tmp_path / "b") == stored(folder)
    written = json.loads((tmp_path / "b/config.json").read_text())
    assert written["dtype"] == written["torch_dtype"] == np.dtype(dtype).name


def test_mixed_dtypes_come_back_each_as_it_was(tmp_path):
    # CASES P003; an odd number of half-precision values must not misalign the next tensor.
    dtypes = (ml_dtypes.bfloat16, np.float16, np.float32)
    tensors = llama_tensors(llama_config(vocab_size=321))
    tensors = {k: v.astype(dtypes[i % 3]) for i, (k, v) in enumerate(tensors.items())}
    folder = write_tensors(tmp_path / "a", tensors, vocab_size=321)
    bridges.export(load(folder), tmp_path / "b", verify=False)
    assert stored(tmp_path / "b") == stored(folder)


def test_a_nan_keeps_its_bits(tmp_path):
    tensors = {k: v.astype(ml_dtypes.bfloat16) for k, v in llama_tensors(llama_config()).items()}
    tensors["model.norm.weight"].view(np.uint16)[:2] = (0x7FA1, 0xFFC3)
    folder = write_tensors(tmp_path / "a", tensors)
    with pytest.warns(UserWarning, match="NaN"):
        loaded = load(folder)
    bridges.export(loaded, tmp_path / "b")
    assert stored(tmp_path / "b") == stored(folder)


def test_training_beyond_the_stored_precision_is_not_rounded_away(tmp_path):
    # A fine-tuned export must score as the live model does.
    tensors = {k: v.astype(ml_dtypes.bfloat16) for k, v in llama_tensors(llama_config()).items()}
    live = trained(load(write_tensors(tmp_path / "a", tensors, torch_dtype="bfloat16")))
    bridges.export(live, tmp_path / "b")
    assert json.loads((tmp_path / "b/config.json").read_text())["dtype"] == "float32"
    ours, theirs = (np.asarray(b(input_ids=IDS)["logits"]) for b in (live, load(tmp_path / "b")))
    assert np.array_equal(ours, theirs)


def test_an_asked_dtype_rounds_every_tensor(bundle, tmp_path):
    bridges.export(bundle, tmp_path / "b", dtype="bfloat16")
    tensors = open_tensors(tmp_path / "b")
    assert {tensors.info(name).dtype for name in tensors.names()} == {np.dtype("bfloat16")}
    assert json.loads((tmp_path / "b/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_the_key_set_is_the_sources(tmp_path):
    # CASES P107 and P108: a stored copy of the tied head comes back, an absent one does not.
    tensors = llama_tensors(llama_config())
    plain = write_tensors(tmp_path / "a", tensors)
    copied = write_tensors(
        tmp_path / "b", tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}
    )
    bare = write_tensors(tmp_path / "c", {k.removeprefix("model."): v for k, v in tensors.items()})
    for folder in (plain, copied, bare):
        bridges.export(load(folder), tmp_path / "out")
        assert stored(tmp_path / "out") == stored(folder)


def test_a_trained_tied_head_is_exported_with_the_embedding(tmp_path):
    # CASES P109.
    tensors = llama_tensors(llama_config())
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    folder = write_tensors(tmp_path / "a", tensors)
    bridges.export(trained(load(folder)), tmp_path / "b")
    out = stored(tmp_path / "b")
    assert out["lm_head.weight"] == out["model.embed_tokens.weight"]
    assert out["lm_head.weight"] != stored(folder)["lm_head.weight"]


def test_an_untied_head_is_declared(tmp_path):
    tensors = llama_tensors(llama_config())
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2
    with pytest.warns(UserWarning, match="differs"):
        loaded = load(write_tensors(tmp_path / "a", tensors))
    bridges.export(loaded, tmp_path / "b")
    assert json.loads((tmp_path / "b/config.json").read_text())["tie_word_embeddings"] is False


def test_padding_is_cut_and_the_config_kept(tmp_path):
    # CASES P110.
    tensors = llama_tensors(llama_config(vocab_size=384))
    with pytest.warns(UserWarning, match="padding"):
        loaded = load(write_tensors(tmp_path / "a", tensors, vocab_size=320))
    bridges.export(loaded, tmp_path / "b")
    assert open_tensors(tmp_path / "b").info("model.embed_tokens.weight").shape == (320, 32)
    assert json.loads((tmp_path / "b/config.json").read_text())["vocab_size"] == 320


# Files.


def test_shards_and_index_follow_the_format(bundle, source, tmp_path):
    bridges.export(bundle, tmp_path / "b", shard_bytes=20_000)
    index = json.loads((tmp_path / "b/model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    total = len(shards)
    assert total > 2
    assert shards == [f"model-{n:05d}-of-{total:05d}.safetensors" for n in range(1, total + 1)]
    sizes = [np.prod(shape) for _, shape, _ in stored(source).values()]
    assert index["metadata"] == {"total_size": 4 * sum(sizes), "total_parameters": sum(sizes)}
    assert stored(tmp_path / "b") == stored(source)
    for shard in shards:  # CASES P113
        data = (tmp_path / "b" / shard).read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        assert header["__metadata__"] == {"format": "pt"}


def test_the_safetensors_library_reads_what_is_written(bundle, source, tmp_path):
    from safetensors.numpy import load_file

    bridges.export(bundle, tmp_path / "b", verify=False)
    ours, theirs = (
        load_file(tmp_path / "b/model.safetensors"),
        load_file(source / "model.safetensors"),
    )
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_the_config_round_trips(tmp_path):
    # CASES P115: odd but valid fields stay as they are; only what readers need is added.
    odd = {"use_cache": False, "attention_dropout": 0.1, "pad_token_id": 7, "id2label": {"0": "x"}}
    folder = write_tensors(tmp_path / "a", llama_tensors(llama_config()), **odd)
    bridges.export(load(folder), tmp_path / "b")
    before = json.loads((folder / "config.json").read_text())
    after = json.loads((tmp_path / "b/config.json").read_text())
    changed = {key for key in after if key not in before or after[key] != before[key]}
    assert changed == {"dtype", "rope_scaling", "rope_parameters"}
    assert before.keys() <= after.keys()
    assert after["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}


def test_the_tokenizer_goes_along(bundle, source, tmp_path):
    # CASES P112 and P116.
    bridges.export(bundle, tmp_path / "b")
    again = load(tmp_path / "b").processor
    text = "Fair is foul<|im_end|>"
    assert again.encode(text) == bundle.processor.encode(text)
    settings = json.loads((tmp_path / "b/tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (
            {"do_sample": False, "temperature": 0.7, "eos_token_id": 3},
            {"do_sample", "eos_token_id"},
        ),
        ({"top_p": 0.9, "top_k": 5, "max_length": 9}, {"max_length"}),
    ],
)
def test_a_generation_config_that_readers_refuse_is_mended(options, kept, bundle):
    # CASES P114: transformers 5 raises when it saves such a config.
    with pytest.warns(UserWarning, match="have no effect"):
        assert generation_config(bundle.replace(generation_config=options)).keys() == kept


def test_a_sampling_generation_config_stays(bundle):
    options = {"do_sample": True, "temperature": 0.7, "top_p": 0.9}
    assert generation_config(bundle.replace(generation_config=options)) == options


def test_without_a_generation_config_the_ids_are_written(bundle):
    assert generation_config(bundle.replace(generation_config={})) == {
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }


def test_a_writer_refuses_other_tensors_than_planned(tmp_path):
    planned = [Planned("a", (2,), np.dtype(np.float32))]
    with pytest.raises(ValueError, match="planned"):
        write_weights(tmp_path, planned, [("a", np.zeros(3, np.float32))])


@pytest.mark.parametrize("order", ["F", "T", "sliced"])
def test_any_memory_order_is_written_row_major(order, tmp_path):
    # CASES P001.
    w = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    array = {"F": np.asfortranarray(w), "T": w.T, "sliced": w[:, ::2]}[order]
    planned = [Planned("w", array.shape, array.dtype)]
    write_weights(tmp_path, planned, [("w", array)])
    assert np.array_equal(open_tensors(tmp_path).read("w"), array)


def test_casting_is_exact_where_it_can_be():
    values = np.array([1.5, -0.0, np.inf, 2.0**-130], np.float32)
    assert np.array_equal(
        cast(values, np.dtype("bfloat16")).astype(np.float32).view(np.uint32),
        values.view(np.uint32),
    )


@pytest.mark.assets
@pytest.mark.slow
def test_a_gguf_export_holds_its_dequantised_values(smollm2_gguf, tmp_path):
    bridges.export(load(smollm2_gguf), tmp_path / "b", verify=False)
    source, target = open_tensors(smollm2_gguf), open_tensors(tmp_path / "b")
    assert set(target.names()) == set(source.names())
    for name in source.names():
        assert np.array_equal(target.read(name), source.read(name)), name
        source.release(name)


# Against transformers.


@pytest.mark.torch
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_transformers_loads_an_export_whole(family, tmp_path):
    # CASES P064: every family's export goes through transformers here.
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    model = hf_llama(rope_parameters=rope) if family == "llama" else hf_gpt2()
    model.eval().save_pretrained(tmp_path / "a")
    bridges.export(load(tmp_path / "a"), tmp_path / "b", shard_bytes=20_000)
    assert stored(tmp_path / "b") == stored(tmp_path / "a")
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(report.values())
    with torch.no_grad():
        ours, theirs = (m(torch.tensor(IDS)).logits for m in (again.eval(), model))
    assert torch.equal(ours, theirs)
    if family == "llama":
        # What a transformers 4 reader sees: rope_theta at the top, rope_scaling beside it.
        config = json.loads((tmp_path / "b/config.json").read_text())
        assert config["rope_theta"] == 5e5
        assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


# Verification.


def test_verification_finds_a_changed_value(bundle, tmp_path, monkeypatch):
    import bridges.files.writer

    bridges.export(bundle, tmp_path / "b")
    before = files(tmp_path / "b")
    plain = bridges.files.writer.write_safetensors

    def flipping(path, planned, tensors):
        plain(path, planned, tensors)
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr(bridges.files.writer, "write_safetensors", flipping)
    with pytest.raises(ExportDiffers, match="does not load back equal"):
        bridges.export(trained(bundle), tmp_path / "b")
    assert files(tmp_path / "b") == before
    assert os.listdir(tmp_path) == ["b"]


def test_a_model_that_its_config_does_not_describe_is_refused(bundle, tmp_path):
    other = bundle.replace(model=bundle.model.clone(norm_epsilon=0.1))
    with pytest.raises(ExportDiffers, match=r"norm_epsilon: 0\.1 became 1e-05"):
        bridges.export(other, tmp_path / "b")
    assert os.listdir(tmp_path) == []


def test_an_adapter_is_not_dropped_in_silence(bundle, tmp_path):
    with pytest.raises(InputRefused, match="merge"):
        bridges.export(bundle.replace(variables=bundle.variables | {"lora": {}}), tmp_path / "b")


# Replacing a folder.


def test_other_files_of_a_run_stay(bundle, tmp_path):
    out = tmp_path / "out"
    (out / "checkpoint-5/dew").mkdir(parents=True)
    (out / "checkpoint-5/dew/state").write_bytes(b"state")
    with open(out / "log.jsonl", "a") as log:
        bridges.export(bundle, out, shard_bytes=20_000, verify=False)
        bridges.export(trained(bundle), out, verify=False)
        log.write("still open\n")
    assert (out / "log.jsonl").read_text() == "still open\n"
    assert (out / "checkpoint-5/dew/state").read_bytes() == b"state"
    assert [n for n in own_entries(out) if n.startswith("model")] == ["model.safetensors"]
    assert os.listdir(tmp_path) == ["out"]


def test_an_adapter_in_the_folder_does_not_stay_beside_the_model(bundle, tmp_path):
    # transformers would lay it over the merged weights once more.
    bridges.export(bundle, tmp_path / "b", verify=False)
    (tmp_path / "b/adapter_config.json").write_text("{}")
    bridges.export(bundle, tmp_path / "b", verify=False)
    assert not (tmp_path / "b/adapter_config.json").exists()


def test_exporting_over_the_source_is_safe(tmp_path):
    folder = write_tensors(tmp_path / "a", llama_tensors(llama_config()))
    before = stored(folder)
    bridges.export(load(folder), folder)
    assert stored(folder) == before


def test_a_file_in_the_folders_place_is_refused(bundle, tmp_path):
    (tmp_path / "b").write_text("mine")
    with pytest.raises(InputRefused, match="a file, expected a folder"):
        bridges.export(bundle, tmp_path / "b")
    assert (tmp_path / "b").read_text() == "mine"


def test_an_error_while_writing_leaves_nothing_behind(tmp_path):
    def interrupted():
        with staged(tmp_path / "b") as folder:
            (folder / "x").write_text("x")
            raise KeyError("stop")

    with pytest.raises(KeyError):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_a_full_disk_names_path_and_bytes(bundle, tmp_path, monkeypatch):
    bridges.export(bundle, tmp_path / "b", verify=False)
    before = files(tmp_path / "b")

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"export of \d+ bytes failed: No space left") as error:
        bridges.export(trained(bundle), tmp_path / "b", verify=False)
    assert error.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert files(tmp_path / "b") == before
    assert os.listdir(tmp_path) == ["b"]

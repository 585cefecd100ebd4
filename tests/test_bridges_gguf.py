"""GGUF files give the tensors and the config of the checkpoint they were made from."""

from __future__ import annotations

import struct

import bad_files as files
import numpy as np
import pytest
from helpers import llama_config, llama_tensors

from bridges.files.gguf_header import DEQUANTISED, block_sizes
from bridges.files.gguf_llama import LLAMA3, llama3_factors
from bridges.files.tensors import open_tensors
from dew.errors import InputRefused

# llama.cpp's name of each tensor of a two-layer model, written out by hand.
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
for layer in range(2):
    NAMES |= {
        f"model.layers.{layer}.{theirs}": f"blk.{layer}.{ours}"
        for theirs, ours in {
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
        }.items()
    }


def llama_cpp_order(rows, heads):
    """Return rows as llama.cpp stores them: each head's two halves interleaved."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(rows.shape)


def write_gguf(path, config, tensors, kind, extra=None, **fields):
    """Write a llama as llama.cpp would; matrices as ggml type `kind`, vectors as float32."""
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, value in fields.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add = writer.add_string if isinstance(value, str) else add
        add(f"llama.{name.replace('__', '.')}", value)
    for name, array in tensors.items():
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        stem = name.removesuffix(".weight")
        key = heads.get(stem.rpartition(".")[2])
        rows = array if key is None else llama_cpp_order(array, config[key])
        stored = GGMLQuantizationType[kind] if rows.ndim > 1 else GGMLQuantizationType.F32
        data = quants.quantize(rows, stored)
        writer.add_tensor(f"{NAMES[stem]}.weight", data, raw_dtype=stored)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_tensors_come_back_dequantised_in_hugging_face_order(kind, tmp_path):
    # The oracle is the gguf package: what it gives for the unpermuted rows. Blocks lie within a
    # row, so that permuting rows and quantising them commute.
    from gguf import GGMLQuantizationType, quants

    config = llama_config(tie_word_embeddings=False)
    tensors = llama_tensors(config)
    read = open_tensors(write_gguf(tmp_path / "a.gguf", config, tensors, kind))
    assert sorted(read.names()) == sorted(tensors)
    for name, array in tensors.items():
        stored = GGMLQuantizationType[kind] if array.ndim > 1 else GGMLQuantizationType.F32
        wanted = quants.dequantize(quants.quantize(array, stored), stored)
        found = read.read(name)
        assert found.dtype == read.info(name).dtype == np.float32
        assert found.flags.c_contiguous
        assert found.shape == read.info(name).shape == array.shape
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.parametrize("tied", [True, False])
def test_the_config_is_the_one_the_file_was_made_from(tied, tmp_path):
    config = llama_config(tie_word_embeddings=tied, rms_norm_eps=1e-5, rope_theta=500000.0)
    path = write_gguf(tmp_path / "a.gguf", config, llama_tensors(config), "F32")
    read = open_tensors(tmp_path).config()
    assert read == config | {"rope_scaling": None, "pad_token_id": None}
    assert open_tensors(path).metadata["general.architecture"] == "llama"


def test_a_field_without_counterpart_is_kept_under_its_own_name(tmp_path):
    config = llama_config()
    fields = {"logit_scale": 0.5}
    write_gguf(tmp_path / "a.gguf", config, llama_tensors(config), "F32", **fields)
    assert open_tensors(tmp_path).config()["llama.logit_scale"] == 0.5


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"rope__scaling__type": "none"}, None),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0},
            {"rope_type": "linear", "factor": 2.0},
        ),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 32,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
    ],
)
def test_rotary_scaling_is_translated(fields, scaling, tmp_path):
    config = llama_config()
    write_gguf(tmp_path / "a.gguf", config, llama_tensors(config), "F32", **fields)
    assert open_tensors(tmp_path).config()["rope_scaling"] == scaling


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope__scaling__type": "longrope"}, "rope.scaling.type is 'longrope'. Expected none"),
        ({"expert_count": 8}, "expert_count is 8. Expected 0"),
        ({"attention__key_length": 7}, "rope.dimension_count is 8. Expected the head size 7"),
        ({"attention__value_length": 4}, "value_length is 4. Expected the head size 8"),
    ],
)
def test_what_is_not_computed_is_refused_by_field(fields, words, tmp_path):
    config = llama_config()
    write_gguf(tmp_path / "a.gguf", config, llama_tensors(config), "F32", **fields)
    with pytest.raises(InputRefused, match=words):
        open_tensors(tmp_path)


def llama3_by_definition(factor, theta, head_dim):
    """Llama 3's frequency divisors, one wavelength at a time."""
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * pair / head_dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192 / 1:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors)


def test_llama3_divisors_become_its_scaling(tmp_path):
    config = llama_config(rope_theta=500000.0, head_dim=8)
    divisors = llama3_by_definition(32.0, 500000.0, 8).astype(np.float32)
    assert len(set(divisors.tolist())) > 2
    np.testing.assert_allclose(llama3_factors(32.0, 500000.0, 8), divisors, rtol=1e-6)
    arguments = (tmp_path / "a.gguf", config, llama_tensors(config), "F32")
    write_gguf(*arguments, {"rope_freqs.weight": divisors})
    read = open_tensors(tmp_path)
    assert read.config()["rope_scaling"] == {"rope_type": "llama3", "factor": 32.0, **LLAMA3}
    assert "rope_freqs.weight" not in read.names()
    write_gguf(*arguments, {"rope_freqs.weight": divisors * np.float32(1.01)})
    with pytest.raises(InputRefused, match=r"rope_freqs\.weight"):
        open_tensors(tmp_path)


def test_every_listed_type_dequantises():
    # Zeros of one block of each type: the package has code for all that the header lets pass.
    from gguf import GGMLQuantizationType, quants

    kinds = block_sizes()
    assert {name for name, _, _ in kinds.values()} == DEQUANTISED
    for number, (_, block, size) in kinds.items():
        weight = quants.dequantize(np.zeros((1, size), np.uint8), GGMLQuantizationType(number))
        assert (weight.shape, weight.dtype) == ((1, block), np.float32)


def test_another_architecture_is_refused_with_those_known(tmp_path):
    field = ("general.architecture", 8, files.string("qwen2"))
    files.write(tmp_path, "a.gguf", files.gguf([field]))
    with pytest.raises(InputRefused, match=r"'qwen2'\. Expected one of llama"):
        open_tensors(tmp_path)


def test_one_part_of_a_split_model_is_refused(tmp_path):
    count = ("split.count", 2, struct.pack("<H", 3))
    files.write(tmp_path, "a-00001-of-00003.gguf", files.gguf([files.LLAMA, count]))
    with pytest.raises(InputRefused, match="one of 3 parts"):
        open_tensors(tmp_path)


def test_a_folder_of_two_gguf_files_lists_them(tmp_path):
    for name in ("a.Q4_1.gguf", "a.Q8_0.gguf"):
        files.write(tmp_path, name, files.gguf([files.LLAMA]))
    with pytest.raises(InputRefused, match=r"(?s)found 2 GGUF files.*a\.Q4_1.*a\.Q8_0"):
        open_tensors(tmp_path)


@pytest.mark.parametrize("keep", [3, 23, 60, 200, -1])
def test_a_cut_off_file_is_refused_wherever_it_ends(keep, tmp_path):
    config = llama_config(num_hidden_layers=1)
    tensors = {n: a for n, a in llama_tensors(config).items() if ".1." not in n}
    path = write_gguf(tmp_path / "a.gguf", config, tensors, "F32")
    # The last bytes may be padding: cut into the last tensor.
    files.cut(path, keep if keep > 0 else path.stat().st_size - 200)
    with pytest.raises(InputRefused, match=r"a\.gguf: .*Download|a\.gguf: .*download"):
        open_tensors(tmp_path)


def test_a_damaged_header_is_refused_or_read_and_nothing_else(tmp_path):
    config = llama_config(num_hidden_layers=1)
    tensors = {n: a for n, a in llama_tensors(config).items() if ".1." not in n}
    divisors = {"rope_freqs.weight": np.ones(4, np.float32)}
    whole = write_gguf(tmp_path / "a.gguf", config, tensors, "Q8_0", divisors).read_bytes()
    generator, messages = np.random.default_rng(0), []
    for _ in range(300):
        files.write(tmp_path, "a.gguf", files.damaged(whole, generator, 1800))
        try:
            read = open_tensors(tmp_path / "a.gguf")
            assert all(read.read(name).shape == read.info(name).shape for name in read.names())
        except InputRefused as refusal:
            messages.append(str(refusal))
    assert 150 < len(messages) < 300
    assert max(len(message.splitlines()) for message in messages) <= 20


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.torch
def test_smollm2_equals_transformers_reading_of_the_same_file(smollm2_gguf):
    # transformers un-permutes and names by its own code: every tensor must be equal. Its
    # from_pretrained asks for accelerate here; the reader underneath does not.
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    read = load_gguf_checkpoint(str(smollm2_gguf), return_tensors=True, model_to_load=model)
    theirs = read["tensors"]
    ours = open_tensors(smollm2_gguf)
    assert set(theirs) == set(ours.names())
    for name in ours.names():
        np.testing.assert_array_equal(ours.read(name), theirs[name].numpy(), err_msg=name)
    for key in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "bos_token_id",
        "eos_token_id",
    ):
        assert ours.config()[key] == getattr(config, key), key
    assert ours.config()["rms_norm_eps"] == 1e-5
    assert ours.config()["rope_theta"] == 100000.0
    assert ours.config()["tie_word_embeddings"] is True

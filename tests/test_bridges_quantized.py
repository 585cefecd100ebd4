"""Quantised checkpoints give the plain weights that their formulas define.

The packed numbers are laid out here, one at a time, as AutoAWQ and AutoGPTQ publish it; fp8 is held
to transformers' own dequantiser.
"""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from helpers import llama_config, llama_tensors
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import bridges
from bridges.config import Keys
from bridges.files.quantized import plain_tensors, read_quantization
from bridges.files.tensors import open_tensors
from dew.errors import InputRefused

AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ, WQLinear_GEMM.from_linear: order_map
OUTPUTS, INPUTS, GROUP = 16, 32, 8
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
FP8 = {"quant_method": "fp8", "weight_block_size": [4, 8], "activation_scheme": "dynamic"}


def numbers(bits, seed=0, groups=INPUTS // GROUP):
    """Random q [inputs, outputs], zeros and scales [groups, outputs]; zeros from 1, as stored."""
    generator = np.random.default_rng(seed)
    weight = generator.integers(0, 1 << bits, (INPUTS, OUTPUTS))
    zeros = generator.integers(1, 1 << bits, (groups, OUTPUTS))
    scales = generator.uniform(0.001, 0.1, (groups, OUTPUTS)).astype(np.float16)
    return weight, zeros, scales


def defined(weight, zeros, scales, groups):
    """(q - zero) * scale [outputs, inputs] in float64, element by element of the definition."""
    found = np.empty(weight.shape[::-1])
    for row in range(len(weight)):
        g = groups[row]
        found[:, row] = (weight[row] - zeros[g]) * scales[g].astype(np.float64)
    return found


def words(columns):
    """int32 of lists of (number, lowest bit), as torch keeps them."""
    return np.array(columns, np.uint32).view(np.int32)


def awq_packed(matrix):
    """[rows, N] four-bit numbers as [rows, N / 8] words."""
    packed = np.zeros((len(matrix), matrix.shape[1] // 8), np.uint64)
    for word in range(packed.shape[1]):
        for place, column in enumerate(AWQ_PLACES):
            packed[:, word] |= matrix[:, word * 8 + column].astype(np.uint64) << (4 * place)
    return words(packed)


def gptq_packed(matrix, bits):
    """[K, N] numbers as [K * bits / 32, N] words."""
    fit = 32 // bits
    packed = np.zeros((len(matrix) // fit, matrix.shape[1]), np.uint64)
    for row in range(len(matrix)):
        packed[row // fit] |= matrix[row].astype(np.uint64) << (bits * (row % fit))
    return words(packed)


def opened(folder, tensors, settings):
    save_file(tensors, folder / "model.safetensors")
    quantization = read_quantization(Keys({"quantization_config": settings}))
    return plain_tensors(open_tensors(folder), quantization)


def test_awq_gives_the_numbers_of_its_definition(tmp_path):
    weight, zeros, scales = numbers(4)
    tensors = {"a.qweight": awq_packed(weight), "a.qzeros": awq_packed(zeros), "a.scales": scales}
    ours = opened(tmp_path, tensors | {"a.bias": np.ones(OUTPUTS, np.float16)}, AWQ)
    assert sorted(ours.names()) == ["a.bias", "a.weight"]
    assert ours.info("a.weight").shape == (OUTPUTS, INPUTS)
    wanted = defined(weight, zeros, scales, np.arange(INPUTS) // GROUP)
    # A float16 scale times a number of five bits is exact in float32.
    found = ours.read("a.weight")
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, wanted)
    assert ours.read("a.bias").dtype == np.float16


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("order", ["absent", "in turn", "desc_act"])
@pytest.mark.parametrize("layout", ["gptq", "gptq_v2"])
def test_gptq_gives_the_numbers_of_its_definition(bits, order, layout, tmp_path):
    weight, zeros, scales = numbers(bits)
    groups = np.arange(INPUTS) // GROUP
    if order == "desc_act":
        groups = np.random.default_rng(1).permutation(groups)
    tensors = {
        "a.qweight": gptq_packed(weight, bits),
        # The first layout stores zeros less 1 (AutoGPTQ, QuantLinear.pack).
        "a.qzeros": gptq_packed((zeros - (layout == "gptq")).T, bits).T.copy(),
        "a.scales": scales,
    }
    if order != "absent":
        tensors["a.g_idx"] = groups.astype(np.int32)
    ours = opened(tmp_path, tensors, GPTQ | {"bits": bits, "checkpoint_format": layout})
    assert ours.names() == ["a.weight"]
    wanted = defined(weight, zeros, scales, groups)
    np.testing.assert_array_equal(ours.read("a.weight"), wanted)


def test_one_group_for_all_inputs_is_written_as_minus_one(tmp_path):
    weight, zeros, scales = numbers(4, groups=1)
    tensors = {
        "a.qweight": gptq_packed(weight, 4),
        "a.qzeros": gptq_packed((zeros - 1).T, 4).T.copy(),
        "a.scales": scales,
    }
    ours = opened(tmp_path, tensors, GPTQ | {"group_size": -1})
    wanted = defined(weight, zeros, scales, np.zeros(INPUTS, int))
    np.testing.assert_array_equal(ours.read("a.weight"), wanted)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("scales", ["float32", "bfloat16", "float8_e8m0fnu"])
@pytest.mark.parametrize("experts", [(), (3,)])
def test_fp8_gives_the_bits_of_transformers_dequantiser(name, scales, experts, tmp_path):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(*experts, 8, 16, generator=generator).to(getattr(torch, name))
    scale = torch.rand(*experts, 2, 2, generator=generator).add(0.1).to(getattr(torch, scales))
    save_torch({"a.weight": weight, "a.weight_scale_inv": scale}, tmp_path / "model.safetensors")
    quantization = read_quantization(Keys({"quantization_config": FP8}))
    ours = plain_tensors(open_tensors(tmp_path), quantization)
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)
    assert ours.names() == ["a.weight"]
    assert ours.info("a.weight").dtype == np.float32
    np.testing.assert_array_equal(ours.read("a.weight"), theirs.numpy())


def test_fp8_blocks_that_the_edges_cut_scale_what_is_there(tmp_path):
    # 5 x 9 in blocks of 4 x 8: the definition, element by element, in float64.
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(5, 9)).astype(ml_dtypes.float8_e4m3fn)
    scale = generator.uniform(0.5, 2, (2, 2)).astype(np.float32)
    wanted = [
        [float(weight[i, j]) * float(scale[i // 4, j // 8]) for j in range(9)] for i in range(5)
    ]
    tensors = {"a.weight": weight, "a.weight_scale_inv": scale}
    found = opened(tmp_path, tensors, FP8).read("a.weight")
    np.testing.assert_array_equal(found, np.float32(wanted))


def test_fp8_with_one_scale_a_tensor(tmp_path):
    weight = np.array([[1, -2]], ml_dtypes.float8_e5m2)
    tensors = {"a.weight": weight, "a.weight_scale_inv": np.float32([0.25])}
    ours = opened(tmp_path, tensors, FP8 | {"weight_block_size": None})
    assert ours.read("a.weight").tolist() == [[0.25, -0.5]]


def test_scales_of_activations_are_left_out_aloud(tmp_path):
    weight = np.array([[1, -2]], ml_dtypes.float8_e5m2)
    tensors = {"a.weight": weight, "a.weight_scale_inv": np.float32([2])}
    tensors["a.activation_scale"] = np.float32([3])
    with pytest.warns(UserWarning, match=r"1 scales of activations \('a\.activation_scale'"):
        ours = opened(tmp_path, tensors, FP8 | {"weight_block_size": None})
    assert ours.names() == ["a.weight"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "not 'bitsandbytes'.*dequantize"),
        ({"quant_method": "compressed-tensors"}, "not 'compressed-tensors'"),
        ({"quant_method": ["awq"]}, r"not \['awq'\]"),
        ("awq", "quantization_config is 'awq'"),
        ({"bits": 4}, "quantization_config is {'bits': 4}"),
        (AWQ | {"bits": 3}, r"quantization_config\.bits is 3: dew computes only 4"),
        (AWQ | {"version": "gemv"}, r"quantization_config\.version is 'gemv'"),
        (AWQ | {"zero_point": False}, "zero_point is False"),
        (GPTQ | {"bits": 3}, "bits is 3: dew computes only 4 or 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        (GPTQ | {"dynamic": {"+:a": {"bits": 8}}}, "dynamic is"),
        (GPTQ | {"group_size": 0}, "group_size is 0"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size is"),
        (FP8 | {"weight_block_size": [0, 1]}, "at least 1"),
    ],
)
def test_what_is_not_dequantised_is_refused_by_name(settings, words):
    with pytest.raises(InputRefused, match=words):
        read_quantization(Keys({"quantization_config": settings}))


def changed(change):
    """The tensors of a good GPTQ weight after a change."""
    weight, zeros, scales = numbers(4)
    tensors = {
        "a.qweight": gptq_packed(weight, 4),
        "a.qzeros": gptq_packed((zeros - 1).T, 4).T.copy(),
        "a.scales": scales,
        "a.g_idx": (np.arange(INPUTS) // GROUP).astype(np.int32),
    }
    change(tensors)
    return tensors


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("a.scales"), "no scales beside it"),
        (lambda t: t.pop("a.qweight"), "'a.qzeros' has no qweight"),
        (lambda t: t.update({"a.weight": t["a.scales"]}), "a plain weight beside it"),
        (lambda t: t.update({"a.scales": t["a.scales"][1:]}), r"scales is \[3, 16\], expected \[4"),
        (lambda t: t.update({"a.qzeros": t["a.qzeros"].astype(np.int64)}), "qzeros is int64"),
        (lambda t: t.update({"a.g_idx": t["a.g_idx"][:-1]}), r"g_idx is \[31\], expected \[32\]"),
        (lambda t: t.update({"a.g_idx": t["a.g_idx"] + 1}), "groups from 1 to 4"),
        (lambda t: t.update({"a.g_idx": t["a.g_idx"] - 1}), "groups from -1 to 2"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, words, tmp_path):
    # A group that does not exist would be read from the wrong end, or past it.
    with pytest.raises(InputRefused, match=words):
        opened(tmp_path, changed(change), GPTQ).read("a.weight")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a.weight": np.zeros((8, 8), ml_dtypes.float8_e4m3fn)}, "no 'a.weight_scale_inv'"),
        ({"a.weight_scale_inv": np.ones((1, 1), np.float32)}, "scales no tensor"),
        (
            {"a.weight": np.zeros((8, 8), np.float32), "a.weight_scale_inv": np.float32([[1]])},
            "has a scale but is float32",
        ),
        (
            {
                "a.weight": np.zeros((8, 8), ml_dtypes.float8_e4m3fn),
                "a.weight_scale_inv": np.ones((1, 1), np.float32),
            },
            r"\[8, 8\] in blocks of \[4, 8\] has the scale \[1, 1\]",
        ),
        (
            {
                "a.weight": np.zeros((8, 8), ml_dtypes.float8_e4m3fn),
                "a.weight_scale_inv": np.ones((2, 1), np.uint8),
            },
            "its scale is uint8",
        ),
    ],
)
def test_fp8_tensors_that_do_not_fit_are_refused(tensors, words, tmp_path):
    with pytest.raises(InputRefused, match=words):
        opened(tmp_path, tensors, FP8)


def quantised_llama(folder, bits=4):
    """Write a llama whose linear layers are packed, and return the same with plain weights."""
    config, plain, packed = llama_config(), {}, {}
    for name, array in llama_tensors(config).items():
        if not name.endswith("proj.weight"):
            plain[name] = packed[name] = array
            continue
        outputs, inputs = array.shape
        generator = np.random.default_rng(len(plain))
        groups = np.arange(inputs) // GROUP
        weight = generator.integers(0, 1 << bits, (inputs, outputs))
        zeros = generator.integers(1, 1 << bits, (inputs // GROUP, outputs))
        scales = generator.uniform(0.005, 0.02, zeros.shape).astype(np.float16)
        plain[name] = defined(weight, zeros, scales, groups).astype(np.float32)
        stem = name.removesuffix("weight")
        packed[stem + "qweight"] = gptq_packed(weight, bits)
        packed[stem + "qzeros"] = gptq_packed((zeros - 1).T, bits).T.copy()
        packed[stem + "scales"] = scales
        packed[stem + "g_idx"] = groups.astype(np.int32)
    folder.mkdir()
    settings = {"quantization_config": GPTQ | {"damp_percent": 0.01, "true_sequential": True}}
    (folder / "config.json").write_text(json.dumps(config | settings))
    save_file(packed, folder / "model.safetensors")
    return config, plain


def test_a_quantised_llama_computes_what_its_plain_weights_do_and_exports_them(tmp_path):
    config, plain = quantised_llama(tmp_path / "packed")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config))
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    ids = np.arange(8)[None]
    packed = bridges.load(tmp_path / "packed")
    theirs = bridges.load(tmp_path / "plain")(input_ids=ids)["logits"]
    np.testing.assert_array_equal(packed(input_ids=ids)["logits"], theirs)
    bridges.export(packed, tmp_path / "out")
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    again = open_tensors(tmp_path / "out")
    assert sorted(again.names()) == sorted(plain)
    for name, array in plain.items():
        np.testing.assert_array_equal(again.read(name), array)


def test_an_fp8_weight_whose_scale_no_config_explains_is_refused(tmp_path):
    # Case P004: never the bare 8-bit numbers.
    config = llama_config()
    tensors = llama_tensors(config)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].astype(ml_dtypes.float8_e4m3fn)
    tensors[name + "_scale"] = np.ones(1, np.float32)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputRefused, match=rf"left over +{name}_scale"):
        bridges.load(tmp_path)

"""What a config's small print means in numbers: activations, epsilons, rotary order, placement."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import hf_gpt2, hf_llama, llama_config, llama_tensors, write_llama
from test_bridges_gguf import write_gguf

from bridges.config import Keys
from bridges.files.tensors import open_tensors
from bridges.loading import load
from bridges.rope import read_rope
from dew.nn.rotary import angles, frequencies, rotate

IDS = np.array([[5, 7, 11, 13, 17, 19]])


def logits(folder: Path) -> np.ndarray:
    return np.asarray(load(folder)(input_ids=IDS)["logits"])


def torch_logits(model) -> tuple[np.ndarray, np.ndarray]:
    """Return torch's logits in float32 and in float64."""
    import torch

    with torch.no_grad():
        single = model(torch.tensor(IDS)).logits.numpy()
        return single, model.double()(torch.tensor(IDS)).logits.numpy()


def as_exact(ours: np.ndarray, single: np.ndarray, exact: np.ndarray) -> bool:
    """Say whether our largest float32 error is at most twice torch's, plus one ulp of scale."""
    ulp = np.spacing(np.float32(np.abs(exact).max()))
    return bool(np.abs(ours - exact).max() <= 2 * np.abs(single - exact).max() + ulp)


@pytest.mark.torch
def test_two_kinds_of_gelu_give_two_outputs_and_each_is_torchs(tmp_path):
    # CASES P028: equal weights; the kinds are told apart, however near they lie.
    import torch

    found = {}
    for name in ("gelu", "gelu_new"):
        torch.manual_seed(0)
        model = hf_gpt2(n_layer=12, activation_function=name).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        model.tie_weights()
        model.save_pretrained(tmp_path / name)
        ours, (single, exact) = logits(tmp_path / name), torch_logits(model)
        assert as_exact(ours, single, exact), name
        found[name] = ours, np.abs(single - exact).max()
    apart = np.abs(found["gelu"][0] - found["gelu_new"][0]).max()
    assert apart > 10 * max(error for _, error in found.values())


@pytest.mark.torch
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_epsilon_is_the_configs_own(family, tmp_path):
    # CASES P040: hidden values of standard deviation 1e-3 make an epsilon of 1e-5 a large one.
    import torch

    key = {"llama": "rms_norm_eps", "gpt2": "layer_norm_epsilon"}[family]
    found = []
    for epsilon in (1e-12, 1e-6, 1e-5):
        torch.manual_seed(0)
        model = {"llama": hf_llama, "gpt2": hf_gpt2}[family](**{key: epsilon}).eval()
        for name, parameter in model.named_parameters():
            if "embed" in name or "wte" in name or "wpe" in name:
                torch.nn.init.normal_(parameter, std=1e-3)
        model.tie_weights()
        folder = tmp_path / str(epsilon)
        model.save_pretrained(folder)
        ours, (single, exact) = logits(folder), torch_logits(model)
        assert as_exact(ours, single, exact), epsilon
        found.append(ours)
    for one, other in itertools.pairwise(found):
        assert np.abs(one - other).max() > 0.05 * np.abs(one).max()


@pytest.mark.torch
def test_llama3_frequencies_are_read_whole_from_the_config():
    # CASES P035: Llama 3.2's own numbers, where 3.1 has the factor 8.
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    fields = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    sizes: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 2, "head_dim": 64}
    theirs = LlamaConfig(
        **sizes,
        max_position_embeddings=131072,
        rope_parameters={**fields, "rope_theta": 500000.0},
    )
    wanted = LlamaRotaryEmbedding(theirs).inv_freq.numpy()
    rope = read_rope(Keys({"rope_scaling": fields, "rope_theta": 500000.0}))
    found = frequencies(rope, 64, 131072)
    np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=0)
    # Scaled at every position, not beyond 8192 alone; and by 32, not by 8.
    other = read_rope(Keys({"rope_scaling": {**fields, "factor": 8.0}, "rope_theta": 500000.0}))
    assert np.asarray(found)[-1] == pytest.approx(
        np.asarray(frequencies(other, 64, 131072))[-1] / 4
    )


def interleaved(vectors: np.ndarray, position: int, theta: float) -> np.ndarray:
    """Turn [H, D] the way of Meta's files and llama.cpp: features 2i and 2i + 1 are a pair."""
    size = vectors.shape[-1]
    turn = position * theta ** (-np.arange(0, size, 2) / size)
    pairs = vectors.reshape(len(vectors), size // 2, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * turn)
    return np.stack([turned.real, turned.imag], -1).reshape(vectors.shape)


def test_scores_are_those_of_the_files_own_rotary_order(tmp_path):
    # CASES P024: two heads of eight. What llama.cpp computes from the rows as the file has them,
    # written out in float64, is what dew computes from the rows that it reads.
    from gguf import GGUFReader

    config = llama_config(num_attention_heads=2, num_key_value_heads=1, hidden_size=16)
    tensors = llama_tensors(config)
    path = write_gguf(tmp_path / "a.gguf", config, tensors, "F32")
    stored = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}
    read, hidden, places = (
        open_tensors(path),
        np.random.default_rng(0).normal(size=(2, 16)),
        (3, 11),
    )
    as_stored, as_read = [], []
    for kind, heads, at in (("q", 2, 0), ("k", 1, 1)):
        name = f"model.layers.0.self_attn.{kind}_proj.weight"
        raw = stored[f"blk.0.attn_{kind}.weight"].astype(np.float64)
        as_stored.append(interleaved((raw @ hidden[at]).reshape(heads, 8), places[at], 10000.0))
        ours = read.read(name).astype(np.float64) @ hidden[at]
        rows = jnp.asarray(ours, jnp.float32).reshape(1, 1, heads, 8)
        positions = jnp.asarray([[places[at]]], jnp.int32)
        turn = angles(read_rope(Keys(config)), positions, features=8, max_seq_len=64)
        as_read.append(np.asarray(rotate(rows, *turn))[0, 0])
        assert not np.array_equal(raw, read.read(name))
    np.testing.assert_allclose(as_read[0] @ as_read[1].T, as_stored[0] @ as_stored[1].T, rtol=1e-4)


def test_a_model_goes_to_the_device_that_was_asked_for(tmp_path):
    # CASES P017: every leaf, on a machine whose first device is another one.
    code = (
        "import sys, json, jax, bridges\n"
        "first, second = jax.devices()\n"
        "with jax.default_device(second):\n"
        "    bundle = bridges.load(sys.argv[1])\n"
        "places = {d for leaf in jax.tree.leaves(bundle.variables) for d in leaf.devices()}\n"
        "print(json.dumps([str(place) for place in places] + [str(second)]))\n"
    )
    folder = write_llama(tmp_path / "model", tokenizer=False)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | flags,
    )
    found, wanted = json.loads(run.stdout)
    assert found == wanted

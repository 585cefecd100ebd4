"""Loading: names, ties, dtypes and sources, and logits against torch in float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers import (
    LLAMA3_ROPE,
    hf_gpt2,
    hf_llama,
    llama_config,
    llama_tensors,
    write_llama,
    write_tensors,
)
from safetensors.numpy import save_file

import bridges
from bridges.hub import checked_repository, resolve
from bridges.loading import load
from dew.errors import InputRefused, WeightMismatch

IDS = np.array([[5, 7, 11, 13, 17, 19], [2, 3, 4, 9, 8, 1]])


def logits(bundle) -> np.ndarray:
    return np.asarray(bundle(input_ids=IDS)["logits"])


@pytest.fixture(scope="module")
def tied(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tied"), tokenizer=False)


# Against torch: our float32 error is at most twice torch's own, plus one ulp of scale.


TORCH_MODELS = {
    "llama": lambda: hf_llama(),
    "llama-tied-biased": lambda: hf_llama(
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama-head-dim": lambda: hf_llama(head_dim=12, num_key_value_heads=1),
    "llama-llama3": lambda: hf_llama(rope_parameters={**LLAMA3_ROPE, "rope_theta": 500000.0}),
    "llama-gelu": lambda: hf_llama(hidden_act="gelu", rms_norm_eps=1e-3),
    "gpt2": lambda: hf_gpt2(),
    "gpt2-untied-inner": lambda: hf_gpt2(tie_word_embeddings=False, n_inner=40),
    "gpt2-gelu": lambda: hf_gpt2(activation_function="gelu", layer_norm_epsilon=1e-3),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", TORCH_MODELS)
def test_logits_are_as_exact_as_torchs(name, tmp_path):
    import torch

    torch.manual_seed(0)
    model = TORCH_MODELS[name]().eval()
    for parameter in model.parameters():  # the initial weights hide epsilons and biases
        torch.nn.init.normal_(parameter, std=0.3)
    model.tie_weights()
    model.save_pretrained(tmp_path)
    ours = logits(load(tmp_path))
    with torch.no_grad():
        single = model(torch.tensor(IDS)).logits.numpy()
        truth = model.double()(torch.tensor(IDS)).logits.numpy()
    ulp = np.spacing(np.float32(np.abs(truth).max()))
    assert np.abs(ours - truth).max() <= 2 * np.abs(single - truth).max() + ulp


@pytest.mark.torch
def test_square_projections_of_gpt2_are_not_transposed(tmp_path):
    # CASES P021: c_proj is square, so that no shape check could catch it.
    import torch

    torch.manual_seed(0)
    model = hf_gpt2(n_embd=16, n_head=2).eval()
    model.save_pretrained(tmp_path)
    kernel = load(tmp_path).variables["params"]["layers"]["attention"]["out"]["kernel"]
    theirs = model.transformer.h[1].attn.c_proj.weight.detach().numpy()
    assert np.array_equal(np.asarray(kernel)[1].reshape(16, 16), theirs)


# Names.


def test_a_prefix_that_every_name_bears_is_dropped(tied, tmp_path):
    # CASES P011: torch.compile's wrapper.
    source = llama_tensors(llama_config())
    folder = write_tensors(tmp_path / "a", {f"_orig_mod.{k}": v for k, v in source.items()})
    assert np.array_equal(logits(load(folder)), logits(load(tied)))


def test_a_prefix_that_only_some_names_bear_is_refused(tmp_path):
    source = llama_tensors(llama_config())
    first = next(iter(source))
    folder = write_tensors(tmp_path / "a", {f"_orig_mod.{first}": source.pop(first)} | source)
    with pytest.raises(WeightMismatch, match=r"left over   _orig_mod\.model\.embed_tokens"):
        load(folder)


def test_names_of_the_bare_model_are_read(tied, tmp_path):
    # CASES P010 and P021: the base model's checkpoint lacks the prefix that a head's has.
    source = llama_tensors(llama_config())
    folder = write_tensors(tmp_path / "a", {k.removeprefix("model."): v for k, v in source.items()})
    assert np.array_equal(logits(load(folder)), logits(load(tied)))


def test_buffers_without_weights_are_skipped(tied, tmp_path):
    source = llama_tensors(llama_config())
    source["model.layers.1.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    assert np.array_equal(logits(load(write_tensors(tmp_path / "a", source))), logits(load(tied)))


def test_nothing_is_initialised_when_names_do_not_match(tmp_path):
    source = {f"encoder.{k}": v for k, v in llama_tensors(llama_config()).items()}
    with pytest.raises(WeightMismatch, match=r"22 tensors|missing"):
        load(write_tensors(tmp_path / "a", source))


# Tied heads.


def test_a_stored_copy_of_the_tied_head_is_one_leaf(tied, tmp_path):
    source = llama_tensors(llama_config())
    source["lm_head.weight"] = source["model.embed_tokens.weight"].copy()
    bundle = load(write_tensors(tmp_path / "a", source))
    assert "head" not in bundle.variables["params"]
    assert bundle.stored.tied_copy
    assert np.array_equal(logits(bundle), logits(load(tied)))


@pytest.mark.torch
def test_a_stored_head_that_differs_wins_over_tying(tmp_path):
    # CASES P015: tensors that are there win, and only what is absent is tied.
    # transformers 5 keeps both when both are stored with different values: the oracle.
    import torch
    from transformers import AutoModelForCausalLM

    source = llama_tensors(llama_config())
    generator = np.random.default_rng(9)
    shape = source["model.embed_tokens.weight"].shape
    source["lm_head.weight"] = generator.normal(size=shape).astype(np.float32)
    folder = write_tensors(tmp_path / "a", source)
    with pytest.warns(UserWarning, match="differs from"):
        ours = logits(load(folder))
    model = AutoModelForCausalLM.from_pretrained(folder).double()
    with torch.no_grad():
        theirs = model(torch.tensor(IDS)).logits.numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_tied_model_with_only_a_head_takes_it_for_both(tied, tmp_path):
    source = llama_tensors(llama_config())
    source["lm_head.weight"] = source.pop("model.embed_tokens.weight")
    assert np.array_equal(logits(load(write_tensors(tmp_path / "a", source))), logits(load(tied)))


def test_an_untied_model_without_a_head_is_refused(tmp_path):
    source = llama_tensors(llama_config())
    with pytest.raises(WeightMismatch, match=r"missing     lm_head\.weight"):
        load(write_tensors(tmp_path / "a", source, tie_word_embeddings=False))


# Vocabulary.


def test_padded_vocabulary_rows_never_win(tmp_path):
    # CASES P014: config.json is right, the tensor is padded to a multiple of 64.
    source = llama_tensors(llama_config(vocab_size=384))
    source["model.embed_tokens.weight"][320:] = 100.0
    folder = write_tensors(tmp_path / "a", source, vocab_size=320)
    with pytest.warns(UserWarning, match="padding"):
        bundle = load(folder)
    assert logits(bundle).shape[-1] == 320
    plain = source | {"model.embed_tokens.weight": source["model.embed_tokens.weight"][:320]}
    assert np.array_equal(logits(bundle), logits(load(write_tensors(tmp_path / "b", plain))))


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    source = llama_tensors(llama_config(vocab_size=310))
    with pytest.raises(WeightMismatch, match=r"wanted \(300, 32\), found \(310, 32\)"):
        load(write_tensors(tmp_path / "a", source, vocab_size=300))


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path):
    # BAD-INPUTS BP051: a gather would clamp the id in silence.
    with pytest.raises(InputRefused, match=r"vocab_size is 256.*ids up to 3"):
        load(write_llama(tmp_path, vocab_size=256))


# Dtypes.


def test_parameters_are_float32_whatever_is_stored(tmp_path):
    # CASES P003 and P018: per tensor, and storage apart from computation.
    source = llama_tensors(llama_config())
    for number, name in enumerate(source):
        source[name] = source[name].astype((ml_dtypes.bfloat16, np.float16, np.float32)[number % 3])
    folder = write_tensors(tmp_path / "a", source)
    bundle = load(folder, dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(bundle.variables)} == {jnp.dtype("float32")}
    assert bundle.model.dtype == "bfloat16"
    narrow = load(folder, param_dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(narrow.variables)} == {jnp.dtype("bfloat16")}


def test_an_integer_dtype_is_refused(tied):
    with pytest.raises(InputRefused, match="param_dtype is 'int8'; expected one of float32"):
        load(tied, param_dtype="int8")


def test_a_weight_that_is_nan_is_named(tmp_path):
    # BAD-INPUTS BP012.
    source = llama_tensors(llama_config())
    source["model.norm.weight"][3] = np.nan
    with pytest.warns(UserWarning, match=r"model\.norm\.weight: 1"):
        load(write_tensors(tmp_path / "a", source))


# Sources.


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputRefused, match="no such file or folder"):
        load(tmp_path / "absent")


def test_a_folder_without_config_says_what_is_expected(tmp_path):
    with pytest.raises(InputRefused, match=r"no config\.json"):
        load(tmp_path)


def test_a_folder_with_an_adapter_only_says_how_to_load_it(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputRefused, match="load_adapter"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name", ["../../etc", "a/../../b", "a/b@../../main", "-rf", "a//b", "A" * 300, "a/b/c", "a b"]
)
def test_repository_ids_with_path_parts_are_refused(name, monkeypatch, tmp_path):
    # BAD-INPUTS BP097: before any request or path is made.
    def refuse(*args, **kwargs):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputRefused):
        resolve(name)


@pytest.mark.parametrize("revision", ["../main", "a..b", "-x", "", "a b", "x" * 300])
def test_revisions_with_path_parts_are_refused(revision):
    with pytest.raises(InputRefused, match="revision"):
        checked_repository("owner/name", revision)


def test_a_repository_that_is_not_cached_is_refused_offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputRefused, match="cache does not hold it"):
        load("nobody/no-such-model-of-dew")


# What loading costs.


def test_importing_bridges_is_cheap():
    code = "import sys, bridges; print([m for m in ('jax', 'flax', 'torch') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_loading_needs_no_torch(tied):
    # CASES P019: a finder that refuses torch stands in for a machine without it.
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.split('.')[0] in ('torch', 'transformers'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import bridges\n"
        f"out = bridges.load({str(tied)!r})(input_ids=[[1, 2, 3]])\n"
        "print(out['logits'].shape)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ
    )
    assert result.stdout.strip() == "(1, 3, 320)", result.stderr


def test_loading_takes_little_more_memory_than_the_parameters(tmp_path):
    # CASES P016, in the large: 200 MB of bfloat16 become 400 MB of float32, and no more than
    # 1.3 times that, the file's own pages included.
    config = llama_config(
        vocab_size=1024, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, head_dim=256
    )
    source = {}
    for name, small in llama_tensors(config | {"num_hidden_layers": 1}).items():
        names = [name.replace("layers.0", f"layers.{n}") for n in range(6)]
        for repeated in dict.fromkeys(names):
            source[repeated] = small.astype(ml_dtypes.bfloat16)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(source, str(tmp_path / "model.safetensors"))
    code = (
        "import resource, jax, numpy as np, bridges\n"
        "from bridges.loading import load, read_model\n"
        "from bridges.files.json_file import read_json\n"
        f"folder = {str(tmp_path)!r}\n"
        "jax.device_put(np.zeros(8)).block_until_ready()\n"
        "read_model(read_json(folder + '/config.json')).parameter_shapes()\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = peak()\n"
        "params = load(folder).variables['params']\n"
        "size = sum(x.nbytes for x in jax.tree.leaves(params))\n"
        "print(size, (peak() - before) / size)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    size, ratio = result.stdout.split()
    assert int(size) > 300e6, result.stderr
    assert float(ratio) <= 1.3


def test_the_public_name_is_the_function():
    assert bridges.load is load
    assert callable(bridges.export)

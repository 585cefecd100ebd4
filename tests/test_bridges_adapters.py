"""Adapters: PEFT's layout both ways, the scale, fused projections, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from bad_files import gpt2_config, gpt2_tensors
from helpers import llama_config, llama_tensors, write_checkpoint, write_tensors
from safetensors.numpy import load_file, save_file

import bridges
from bridges.adapters import adapter_targets, merge
from bridges.loading import load
from dew.errors import InputRefused, UnknownName, WeightMismatch
from dew.nn.lora import LoRA

IDS = np.array([[5, 7, 11, 13, 2], [3, 1, 4, 1, 5]])
QUERY = "base_model.model.model.layers.{layer}.self_attn.q_proj"
FUSED = "base_model.model.transformer.h.{layer}.attn.c_attn"


def write_adapter(folder: Path, tensors: dict, **config) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    return folder


def query_adapter(rank: int = 2, seed: int = 1) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    tensors = {}
    for layer in range(2):
        name = QUERY.format(layer=layer)
        tensors[f"{name}.lora_A.weight"] = generator.normal(size=(rank, 32)).astype(np.float32)
        tensors[f"{name}.lora_B.weight"] = generator.normal(size=(32, rank)).astype(np.float32)
    return tensors


def fused_adapter(rank: int = 2, seed: int = 1) -> dict[str, np.ndarray]:
    generator, name = np.random.default_rng(seed), FUSED.format(layer=0)
    return {
        f"{name}.lora_A.weight": generator.normal(size=(rank, 8)).astype(np.float32),
        f"{name}.lora_B.weight": generator.normal(size=(24, rank)).astype(np.float32),
    }


def logits(bundle) -> np.ndarray:
    return np.asarray(bundle(input_ids=IDS)["logits"])


def trained(bundle, lora: LoRA):
    """Return the bundle with an adapter whose every value is nonzero."""
    tree = lora.init(jax.random.key(0), bundle.variables["params"])
    tree = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), tree)
    return bundle.replace(
        model=bundle.model.clone(adapter_scale=lora.scale),
        variables=bundle.variables | {"lora": tree},
        adapter=lora,
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    tensors = llama_tensors(llama_config())
    return load(write_tensors(tmp_path_factory.mktemp("llama"), tensors))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder, tensors = tmp_path_factory.mktemp("gpt2"), gpt2_tensors(scale=0.3)
    return load(write_checkpoint(folder, gpt2_config(), tensors))


# The mathematics, by hand: W + alpha / r * B A, in float64.


@pytest.mark.parametrize(("settings", "scale"), [({}, 2.0), ({"use_rslora": True}, 8.0**0.5)])
def test_merged_weights_are_the_sum_by_hand(settings, scale, llama, tmp_path):
    # CASES P058: alpha / r, or alpha / sqrt(r) for rank-stabilised adapters.
    tensors = query_adapter()
    adapted = bridges.load_adapter(llama, write_adapter(tmp_path / "a", tensors, **settings))
    bridges.export(merge(adapted), tmp_path / "merged", verify=False)
    found = load_file(tmp_path / "merged/model.safetensors")
    for name, base in llama_tensors(llama_config()).items():
        module = name.removesuffix(".weight")
        a = tensors.get(f"base_model.model.{module}.lora_A.weight")
        wanted = base.astype(np.float64)
        if a is not None:
            b = tensors[f"base_model.model.{module}.lora_B.weight"]
            wanted = wanted + scale * b.astype(np.float64) @ a.astype(np.float64)
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6, atol=1e-6, err_msg=name)


def test_ones_give_rank_times_scale(llama, tmp_path):
    # CASES P058's own numbers: A and B ones, r 8, alpha 16: every delta is 16.
    tensors = {k: np.ones_like(v) for k, v in query_adapter(rank=8).items()}
    folder = write_adapter(tmp_path / "a", tensors, r=8, lora_alpha=16)
    adapted = merge(bridges.load_adapter(llama, folder))
    kernels = (b.variables["params"]["layers"]["attention"]["query"] for b in (adapted, llama))
    after, before = (np.asarray(k["kernel"]) for k in kernels)
    np.testing.assert_allclose(after - before, 16.0, rtol=1e-6)


def test_a_fused_projection_merges_by_hand(gpt2, tmp_path):
    tensors = fused_adapter()
    folder = write_adapter(tmp_path / "a", tensors, target_modules=["c_attn"], fan_in_fan_out=True)
    bridges.export(merge(bridges.load_adapter(gpt2, folder)), tmp_path / "merged", verify=False)
    found = load_file(tmp_path / "merged/model.safetensors")
    name = FUSED.format(layer=0)
    a, b = tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
    base = gpt2_tensors(scale=0.3)["transformer.h.0.attn.c_attn.weight"]
    wanted = base.astype(np.float64) + 2.0 * (b.astype(np.float64) @ a.astype(np.float64)).T
    np.testing.assert_allclose(
        found["transformer.h.0.attn.c_attn.weight"], wanted, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_merged_and_unmerged_agree(family, request, tmp_path):
    # CASES P060, with an adapter on every linear map and a scale that is not 1.
    bundle = request.getfixturevalue(family)
    adapted = trained(bundle, LoRA(rank=3, alpha=20.0, targets=adapter_targets(bundle)))
    ours, theirs = logits(adapted), logits(merge(adapted))
    scale = np.abs(ours).max()
    assert np.abs(ours - logits(bundle)).max() > 1e-2 * scale
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * scale, rtol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_transformers_agrees_with_the_unmerged_adapter(family, request, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    bundle = request.getfixturevalue(family)
    adapted = trained(bundle, LoRA(rank=3, alpha=6.0, targets=adapter_targets(bundle)))
    bridges.export(merge(adapted), tmp_path / "merged")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").double().eval()
    with torch.no_grad():
        theirs = model(torch.tensor(IDS)).logits.numpy()
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(logits(adapted), theirs, atol=1e-5 * scale, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", ["gpt_neox", "phi3"])
def test_an_adapter_of_fused_maps_is_read_as_peft_lays_it_out(name, tmp_path):
    """Oracle: the products of the written files, added to transformers' own weights by hand."""
    import torch
    from transformers import AutoModelForCausalLM

    from parity import tiny

    source = tiny.write(name, tmp_path, seed=0)
    bundle = bridges.load(source)
    adapted = trained(bundle, LoRA(rank=3, alpha=6.0, targets=adapter_targets(bundle)))
    bridges.export_adapter(adapted, tmp_path / "adapter")
    found = load_file(tmp_path / "adapter/adapter_model.safetensors")
    settings = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(source).double().eval()
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for key in (key for key in found if key.endswith("lora_A.weight")):
            module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            a, b = (torch.tensor(found[key.replace("_A", f"_{x}")]).double() for x in "AB")
            weights[f"{module}.weight"] += (settings["lora_alpha"] / settings["r"]) * b @ a
        theirs = model(torch.tensor(IDS)).logits.numpy()
    scale = np.abs(theirs).max()
    for ours in (adapted, bridges.load_adapter(bundle, tmp_path / "adapter")):
        np.testing.assert_allclose(logits(ours), theirs, atol=1e-5 * scale, rtol=1e-5)


# Both ways.


def test_export_undoes_load(llama, tmp_path):
    tensors = query_adapter()
    folder = write_adapter(tmp_path / "a", tensors)
    bridges.export_adapter(bridges.load_adapter(llama, folder), tmp_path / "b")
    found = load_file(tmp_path / "b/adapter_model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)


def test_export_undoes_load_of_a_fused_projection(gpt2, tmp_path):
    tensors = fused_adapter()
    folder = write_adapter(tmp_path / "a", tensors, target_modules=["c_attn"], fan_in_fan_out=True)
    bridges.export_adapter(bridges.load_adapter(gpt2, folder), tmp_path / "b")
    found = load_file(tmp_path / "b/adapter_model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)
    config = json.loads((tmp_path / "b/adapter_config.json").read_text())
    assert config["target_modules"] == ["c_attn"]
    assert config["fan_in_fan_out"] is True
    assert config["rank_pattern"] == {}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("names", [(), ("attention/query", "attention/value")])
def test_load_undoes_export(family, names, request, tmp_path):
    bundle = request.getfixturevalue(family)
    lora = LoRA(rank=3, alpha=5.0, targets=names or adapter_targets(bundle))
    adapted = trained(bundle, lora)
    bridges.export_adapter(adapted, tmp_path)
    again = bridges.load_adapter(bundle, tmp_path)
    np.testing.assert_allclose(logits(again), logits(adapted), rtol=1e-5, atol=1e-5)
    assert again.adapter.scale == pytest.approx(lora.scale, rel=1e-12)


def test_rank_and_alpha_travel_with_the_adapter(llama, tmp_path):
    # CASES P059: nobody types them again.
    adapted = trained(llama, LoRA(rank=4, alpha=8.0))
    bridges.export_adapter(adapted, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert config["base_model_name_or_path"] == llama.source
    assert config["peft_type"] == "LORA"


def test_other_files_of_the_folder_stay(llama, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/log.jsonl").write_text("log")
    (tmp_path / "out/model.safetensors").write_text("not the adapter's")
    for _ in range(2):
        bridges.export_adapter(trained(llama, LoRA(rank=1)), tmp_path / "out")
    assert (tmp_path / "out/log.jsonl").read_text() == "log"
    assert (tmp_path / "out/model.safetensors").read_text() == "not the adapter's"


@pytest.mark.parametrize(
    ("names", "modules"),
    [
        (("q_proj",), ("attention/query",)),
        (("self_attn.q_proj", "down_proj"), ("attention/query", "mlp/down")),
    ],
)
def test_module_names_of_the_checkpoint_are_targets(names, modules, llama):
    assert adapter_targets(llama, names) == modules
    assert len(adapter_targets(llama, ["all-linear"])) == 7


def test_a_name_without_a_module_offers_the_nearest(llama):
    with pytest.raises(UnknownName, match="did you mean 'q_proj'"):
        adapter_targets(llama, ["q_prj"])


def test_an_ambiguous_last_name_is_written_with_its_parent(gpt2, tmp_path):
    # GPT-2 has two modules that end in c_proj.
    bridges.export_adapter(trained(gpt2, LoRA(rank=1, targets=("attention/out",))), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["attn.c_proj"]
    assert bridges.load_adapter(gpt2, tmp_path).adapter.targets == ("attention/out",)


# What is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 0, "lora_alpha": -1}, "r is 0: expected a whole number from 1"),  # BP080
        ({"lora_alpha": -1}, "lora_alpha is -1"),
        ({"peft_type": "IA3"}, "dew computes only 'LORA'"),
        ({"use_dora": True}, "missing     base_model.model.model.layers.0.self_attn.q_proj.lora_m"),
        ({"bias": "most"}, "bias is 'most': expected none, all, lora_only"),
        ({"modules_to_save": ["lm_head"]}, "'lm_head' shares its weight with the embedding"),
        ({"modules_to_save": ["norn"]}, "no module 'norn'; did you mean 'norm'"),
        ({"modules_to_save": ["norm"]}, "missing     base_model.model.model.norm.weight"),
        ({"layers_to_transform": [0]}, "layers.1.self_attn.q_proj has tensors but is no target"),
        ({"layers_to_transform": [-1]}, "layers_to_transform is [-1]"),
        ({"target_modules": "^(([a-z])+.)+[A-Z]([a-z])+$"}, "is no target"),  # BP083
        ({"target_modules": ["(a+)+$"]}, "in a list stand names"),
        ({"rank_pattern": {"(?=a)": 2}}, "only plain groups"),
        ({"target_modules": "((((" * 20}, "target_modules is"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights is 'loftq'"),
        ({"lora_dropout": 1.0}, "lora_dropout is 1.0"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is [1]"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is"),
        ({"target_parameters": ["experts.up"]}, "target_parameters is"),
        ({"target_modules": ["k_proj"]}, "'k_proj' is a target without tensors"),
    ],
)
def test_an_adapter_config_that_cannot_be_followed_is_refused(changes, message, llama, tmp_path):
    folder = write_adapter(tmp_path, query_adapter(), **changes)
    start = time.monotonic()
    with pytest.raises(InputRefused) as refusal:
        bridges.load_adapter(llama, folder)
    assert message in str(refusal.value)
    assert time.monotonic() - start < 5


def test_another_rank_than_the_configs_is_refused(llama, tmp_path):
    # BAD-INPUTS BP081.
    with pytest.raises(WeightMismatch, match=r"wanted \(8, 32\), found \(2, 32\)"):
        bridges.load_adapter(llama, write_adapter(tmp_path, query_adapter(), r=8))


def test_modules_that_the_model_lacks_are_listed(llama, tmp_path):
    # BAD-INPUTS BP084; the base weights stay as they are.
    before = logits(llama)
    tensors = {k.replace("layers.1", "layers.9"): v for k, v in query_adapter().items()}
    with pytest.raises(WeightMismatch, match=r"left over   .*layers\.9.*lora_A") as refusal:
        bridges.load_adapter(llama, write_adapter(tmp_path, tensors))
    assert "missing" in str(refusal.value)
    assert np.array_equal(logits(llama), before)


def test_another_base_is_warned_about_and_never_opened(llama, tmp_path):
    # BAD-INPUTS BP082.
    folder = write_adapter(tmp_path, query_adapter(), base_model_name_or_path="evil-org/other")
    with pytest.warns(UserWarning, match="made for 'evil-org/other'"):
        bridges.load_adapter(llama, folder)


def test_a_pickled_adapter_is_refused(llama, tmp_path):
    # BAD-INPUTS BP085.
    write_adapter(tmp_path, query_adapter())
    (tmp_path / "adapter_model.safetensors").unlink()
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x02cposix\nsystem\n.")
    with pytest.raises(InputRefused, match="pickle"):
        bridges.load_adapter(llama, tmp_path)


def test_a_bundle_without_an_adapter_has_none_to_write(llama, tmp_path):
    with pytest.raises(InputRefused, match="no adapter"):
        bridges.export_adapter(llama, tmp_path)
    with pytest.raises(InputRefused, match="no adapter"):
        merge(llama)

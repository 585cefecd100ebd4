"""Adapters against peft itself: its files give its logits here, and ours give ours there."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bridges
from bridges.adapters import merge

pytestmark = [pytest.mark.torch]

IDS = np.array([[5, 7, 11, 13, 2], [3, 1, 4, 1, 5]])
SMALL: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16}
LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4}
TOLERANCE = 1e-5


def llama() -> Any:
    """A Llama of two layers, its head a table of its own, with biases."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **SMALL,
        **LAYERS,
        intermediate_size=24,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def gpt2() -> Any:
    """A GPT-2 of two layers: its query, key and value are one map, stored across."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=32, **ids)
    )


def neox() -> Any:
    """A GPT-NeoX: the heads' query, key and value stand in turn."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes = {"intermediate_size": 24, "max_position_embeddings": 32}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, **LAYERS, **sizes))


def phi3() -> Any:
    """A Phi-3: query, key and value are one map, and so are gate and up."""
    from transformers import Phi3Config, Phi3ForCausalLM

    sizes = {"intermediate_size": 24, "num_key_value_heads": 2, "pad_token_id": 0}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return Phi3ForCausalLM(Phi3Config(**SMALL, **LAYERS, **sizes, **ids))


def bert() -> Any:
    """A BERT that tells three classes apart."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"intermediate_size": 24, "max_position_embeddings": 32, "num_labels": 3}
    return BertForSequenceClassification(BertConfig(**SMALL, **LAYERS, **sizes))


def t5() -> Any:
    """A T5 of two layers on each side."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0}
    return T5ForConditionalGeneration(T5Config(vocab_size=40, **sizes, **ids))


def vit() -> Any:
    """A ViT that tells three classes apart."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "intermediate_size": 24, "image_size": 8, "patch_size": 4}
    return ViTForImageClassification(ViTConfig(**sizes, **LAYERS, num_labels=3))


def inputs_of(model: Any) -> dict[str, np.ndarray]:
    """Return inputs that a model takes."""
    if model.config.model_type == "vit":
        image = np.random.default_rng(0).standard_normal((2, 3, 8, 8))
        return {"pixel_values": image.astype(np.float32)}
    if model.config.model_type == "t5":
        return {"input_ids": IDS, "decoder_input_ids": IDS[:, ::-1].copy()}
    return {"input_ids": IDS}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return what makes a model, and a bundle of it, by name; each once."""
    made: dict[str, Any] = {}

    def get(name: str, traced: bool = False) -> tuple[Any, Any]:
        if name not in made:
            torch.manual_seed(0)
            model = globals()[name]().eval()
            folder = tmp_path_factory.mktemp(name)
            with torch.no_grad():
                for part, value in model.named_parameters():
                    if part.endswith("bias"):
                        value.normal_(std=0.1)
            model.save_pretrained(folder)
            made[name] = model, folder
        model, folder = made[name]
        key = name, traced
        if key not in made:
            how = {"traced": "always"} if traced else {}
            made[key] = bridges.load(folder, **how)
        return model, made[key]

    patch = pytest.MonkeyPatch()
    patch.setenv("DEW_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield get
    patch.undo()


def stirred(model: Any, options: dict[str, Any]) -> Any:
    """Return a PEFT model of its own whose every trained value has moved."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = get_peft_model(copy.deepcopy(model), LoraConfig(**options))
    with torch.no_grad():
        for value in made.parameters():
            if value.requires_grad:
                value.add_(0.2 * torch.randn_like(value))
    return made.eval()


def torch_logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        given = {name: torch.tensor(value) for name, value in inputs_of(model).items()}
        return model(**given).logits.numpy()


def our_logits(bundle: Any, model: Any) -> np.ndarray:
    return np.asarray(bundle(**inputs_of(model))["logits"])


def written(model: Any, folder: Path, source: str) -> Path:
    """Write PEFT's folder, as made for the base of that folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": source}))
    return folder


def agree(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(found - wanted).max() <= TOLERANCE * max(1.0, np.abs(wanted).max())


Q_V = ["q_proj", "v_proj"]
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "rslora and patterns": (
        "llama",
        {
            "r": 3,
            "lora_alpha": 6,
            "use_rslora": True,
            "target_modules": [*Q_V, "down_proj"],
            "rank_pattern": {"v_proj": 2, r"layers\.1\.self_attn\.q_proj": 5},
            "alpha_pattern": {"^model.layers.0.mlp.down_proj": 11, "q_proj": 3},
        },
    ),
    "dora, dropout, one layer": (
        "llama",
        {
            "r": 2,
            "use_dora": True,
            "lora_dropout": 0.1,
            "target_modules": Q_V,
            "layers_to_transform": [1],
            "layers_pattern": "layers",
        },
    ),
    "saved head, biases of adapted maps": (
        "llama",
        {"r": 2, "target_modules": Q_V, "modules_to_save": ["lm_head"], "bias": "lora_only"},
    ),
    "an expression, exclusions": (
        "llama",
        {
            "r": 2,
            "target_modules": r".*layers\.\d\.(self_attn|mlp)\.(q_proj|up_proj|o_proj)",
            "exclude_modules": r".*1\.mlp\..*",
        },
    ),
    "pissa": (
        "llama",
        {"r": 2, "lora_alpha": 6, "init_lora_weights": "pissa", "target_modules": Q_V},
    ),
    "all biases": ("llama", {"r": 2, "target_modules": Q_V, "bias": "all"}),
    "all-linear": ("llama", {"r": 2, "target_modules": "all-linear"}),
    "olora": (
        "llama",
        {
            "r": 2,
            "lora_alpha": 6,
            "use_rslora": True,
            "init_lora_weights": "olora",
            "target_modules": Q_V,
        },
    ),
    "dora and pissa": (
        "llama",
        {"r": 2, "use_dora": True, "init_lora_weights": "pissa", "target_modules": Q_V},
    ),
    "no-op starts": (
        "llama",
        {"r": 2, "init_lora_weights": "gaussian", "target_modules": Q_V},
    ),
    "a fused map": (
        "gpt2",
        {"r": 2, "use_dora": True, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
    ),
    "a fused map's biases and patterns": (
        "gpt2",
        {
            "r": 2,
            "bias": "lora_only",
            "target_modules": ["c_attn"],
            "rank_pattern": {"h.1.attn.c_attn": 4},
            "fan_in_fan_out": True,
        },
    ),
    "heads in turn": ("neox", {"r": 2, "use_dora": True, "target_modules": ["query_key_value"]}),
    "two fused maps": ("phi3", {"r": 2, "use_dora": True, "target_modules": "all-linear"}),
    "a classifier": (
        "bert",
        {"r": 2, "task_type": "SEQ_CLS", "use_dora": True, "target_modules": ["query", "dense"]},
    ),
    "a classifier's biases": (
        "bert",
        {"r": 2, "task_type": "SEQ_CLS", "bias": "all", "target_modules": ["query"]},
    ),
    "both sides": (
        "t5",
        {
            "r": 2,
            "task_type": "SEQ_2_SEQ_LM",
            "target_modules": ["q", "v", "wo"],
            "rank_pattern": {"decoder.*q": 3},
        },
    ),
    "images": (
        "vit",
        {"r": 2, "target_modules": ["q_proj", "fc2"], "modules_to_save": ["classifier"]},
    ),
}
FAST = ("rslora and patterns", "dora, dropout, one layer", "saved head, biases of adapted maps")


def cases(fast: tuple[str, ...]) -> list[Any]:
    slow = pytest.mark.slow
    return [pytest.param(n, marks=() if n in fast else slow, id=n) for n in OPTIONS]


@pytest.mark.filterwarnings("ignore:.*PEFT config.*")
@pytest.mark.parametrize("name", cases(FAST))
def test_pefts_adapter_gives_its_logits_here_and_ours_gives_them_there(name, base, tmp_path):
    both_ways(name, base, tmp_path, traced=False)


def both_ways(name: str, base: Any, tmp_path: Path, *, traced: bool) -> None:
    from peft import PeftModel

    family, options = OPTIONS[name]
    model, bundle = base(family, traced)
    theirs = stirred(model, options)
    wanted = torch_logits(theirs)
    assert np.abs(wanted - torch_logits(model)).max() > 1e-2
    here = bridges.load_adapter(bundle, written(theirs, tmp_path / "peft", bundle.source))
    agree(our_logits(here, model), wanted)
    agree(our_logits(merge(here), model), wanted)
    bridges.export_adapter(here, tmp_path / "ours")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=FutureWarning)
        there = PeftModel.from_pretrained(copy.deepcopy(model), str(tmp_path / "ours")).eval()
    agree(torch_logits(there), wanted)
    again = bridges.load_adapter(bundle, tmp_path / "ours")
    agree(our_logits(again, model), wanted)


TRACED = (
    "rslora and patterns",
    "dora, dropout, one layer",
    "saved head, biases of adapted maps",
    "an expression, exclusions",
    "dora and pissa",
    "olora",
    "all biases",
    "all-linear",
    "a fused map",
    "a fused map's biases and patterns",
    "a classifier",
    "both sides",
    "images",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*PEFT config.*", "ignore:.*traced.*", "ignore:.*no native.*")
@pytest.mark.parametrize("name", TRACED)
def test_traced_models_read_and_write_pefts_adapters_too(name, base, tmp_path):
    both_ways(name, base, tmp_path, traced=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*PEFT config.*", "ignore:.*traced.*", "ignore:.*no native.*")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*multiple adapters.*")
@pytest.mark.parametrize(("family", "traced"), [("llama", False), ("llama", True), ("gpt2", False)])
def test_a_weighted_sum_is_pefts(family, traced, base, tmp_path):
    model, bundle = base(family, traced)
    names = {"llama": (Q_V, ["q_proj", "up_proj"]), "gpt2": (["c_attn"], ["c_attn", "c_fc"])}
    extra = {"fan_in_fan_out": True} if family == "gpt2" else {}
    for number, targets in enumerate(names[family]):
        options = {"r": 2 + number, "lora_alpha": 6, "target_modules": targets, **extra}
        written(stirred(model, options), tmp_path / str(number), bundle.source)
    from peft import PeftModel

    theirs = PeftModel.from_pretrained(copy.deepcopy(model), str(tmp_path / "0"), "0")
    theirs.load_adapter(str(tmp_path / "1"), "1")
    theirs.add_weighted_adapter(["0", "1"], [0.7, -0.4], "sum", combination_type="cat")
    theirs.set_adapter("sum")
    both = bridges.load_adapter(bundle, tmp_path / "0", "0")
    both = bridges.load_adapter(both, tmp_path / "1", "1")
    ours = both.add_weighted_adapter(["0", "1"], [0.7, -0.4], "sum", "cat").set_adapter("sum")
    wanted = torch_logits(theirs.eval())
    agree(our_logits(ours, model), wanted)
    bridges.export_adapter(ours, tmp_path / "sum")
    agree(our_logits(bridges.load_adapter(bundle, tmp_path / "sum"), model), wanted)
    with pytest.raises(ValueError, match="dew adds adapters up exactly"):
        both.add_weighted_adapter(["0", "1"], [1.0, 1.0], "sum", "svd")
    with pytest.raises(ValueError, match="2 adapters and 1 weights"):
        both.add_weighted_adapter(["0", "1"], [1.0], "sum", "cat")

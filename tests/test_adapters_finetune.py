"""`dew finetune` with adapters: every flag, what it writes, and what peft makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import SENTENCES, write_lines, write_llama, write_tokenizer
from safetensors.numpy import load_file

import bridges
from bridges.adapters import merge
from dew.cli.main import main

FLAGS = ("--per_device_train_batch_size", 2, "--max_length", 32, "--learning_rate", 0.01)
QUIET = ("--quiet", "--certify", "false", "--use_cpu")
IDS = np.array([[5, 7, 11, 13, 2], [3, 1, 4, 1, 5]])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_lines(tmp_path_factory.mktemp("data") / "train.jsonl", SENTENCES * 4)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model"), tie_word_embeddings=False)


def finetune(model, data, out, *flags, steps=2) -> int:
    words = ("--model", model, "--data", data, "--output", out, "--steps", steps)
    return main(["finetune", *map(str, (*words, *FLAGS, *QUIET, *flags))])


def logits(bundle) -> np.ndarray:
    return np.asarray(bundle(input_ids=IDS)["logits"])


@pytest.mark.slow
def test_flags_by_hugging_faces_names_reach_the_adapters_config(model, data, tmp_path):
    out = tmp_path / "out"
    flags = ("--lora_r", 4, "--lora_alpha", 6, "--use_rslora", "--use_dora", "--lora_dropout", 0.1)
    more = ("--lora_target_modules", "q_proj", "down_proj", "--lora_modules_to_save", "lm_head")
    assert finetune(model, data, out, *flags, *more) == 0
    config = json.loads((out / "adapter_config.json").read_text())
    wanted = {
        "r": 4,
        "lora_alpha": 6,
        "use_rslora": True,
        "use_dora": True,
        "lora_dropout": 0.1,
        "target_modules": ["q_proj", "down_proj"],
        "modules_to_save": ["lm_head"],
    }
    assert {key: config[key] for key in wanted} == wanted
    base = load_file(model / "model.safetensors")
    head = load_file(out / "adapter_model.safetensors")["base_model.model.lm_head.weight"]
    assert not np.array_equal(head, base["lm_head.weight"])
    over = bridges.load_adapter(bridges.load(model), out)
    np.testing.assert_allclose(logits(over), logits(bridges.load(out / "merged")), atol=1e-5)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("flag", ["--load_in_8bit", "--load_in_4bit"])
def test_a_base_stored_narrow_trains_an_adapter_that_peft_loads(flag, model, data, tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from bridges.adapter_quantized import quantize
    from dew.nn.quantized import widened

    out = tmp_path / "out"
    assert finetune(model, data, out, "--lora_r", 4, "--lora_dropout", 0, flag) == 0
    kind = "int8" if flag == "--load_in_8bit" else "nf4"
    base = quantize(bridges.load(model), kind)
    ours = logits(bridges.load_adapter(base, out))
    np.testing.assert_allclose(ours, logits(bridges.load(out / "merged")), atol=1e-5)
    wide = base.replace(variables=widened(base.variables))
    bridges.export(wide, tmp_path / "wide", verify=False)
    there = AutoModelForCausalLM.from_pretrained(tmp_path / "wide")
    there = PeftModel.from_pretrained(there, str(out)).eval()
    with torch.no_grad():
        theirs = there(input_ids=torch.tensor(IDS)).logits.numpy()
    assert np.abs(ours - theirs).max() < 1e-5 * max(1, np.abs(theirs).max())


@pytest.mark.slow
def test_a_fused_map_is_trained_as_one_adapter_of_the_asked_rank(data, tmp_path):
    from bad_files import gpt2_config, gpt2_tensors
    from helpers import write_checkpoint

    sizes = {"vocab_size": 320, "n_embd": 8, "n_positions": 64}
    config = gpt2_config(**sizes)
    generator = np.random.default_rng(0)
    tensors = {
        name: generator.normal(scale=0.2, size=shape).astype(np.float32)
        for name, shape in (
            (n, (320, 8) if "wte" in n else (64, 8) if "wpe" in n else t.shape)
            for n, t in gpt2_tensors().items()
        )
    }
    model = write_checkpoint(tmp_path / "gpt2", config, tensors)
    write_tokenizer(model)
    assert finetune(model, data, tmp_path / "out", "--lora_r", 3, "--use_dora") == 0
    found = load_file(tmp_path / "out/adapter_model.safetensors")
    name = "base_model.model.transformer.h.0.attn.c_attn.lora_"
    assert found[f"{name}A.weight"].shape == (3, 8)
    assert found[f"{name}B.weight"].shape == (24, 3)
    assert found[f"{name}magnitude_vector"].shape == (24,)
    over = bridges.load_adapter(bridges.load(model), tmp_path / "out")
    np.testing.assert_allclose(logits(over), logits(merge(over)), atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lora_target_modules", "q_prj"), "no module 'q_prj' to adapt; did you mean 'q_proj'"),
        (("--lora_target_modules", "embed_tokens"), 'traced="always"'),
        (("--lora_target_modules", "(?!a)b"), "only plain groups"),
        (("--lora_modules_to_save", "hea"), "no module 'hea'"),
        (("--load_in_4bit", "--load_in_8bit"), "exclude each other"),
        (("--lora_r", "0"), "lora_r"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_first_step(
    flags, message, model, data, tmp_path, capsys
):
    assert finetune(model, data, tmp_path / "out", "--use_peft", *flags) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_dry_run_plans_a_base_that_is_stored_narrow(model, data, tmp_path, capsys):
    assert (
        finetune(model, data, tmp_path / "out", "--load_in_4bit", "--lora_r", 2, "--dry_run") == 0
    )
    text = capsys.readouterr().out
    assert "layers/attention/query/a" in text
    assert "no weight was read" in text

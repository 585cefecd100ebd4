"""`dew finetune`, `evaluate` and `generate` on a traced model; right values are torch's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from helpers import SENTENCES, TINY_VOCABULARY, write_lines, write_tokenizer
from safetensors.numpy import load_file
from torch import nn

import bridges
from bridges.finetune.learner import learner_of
from bridges.finetune.separate import one_document_a_row
from bridges.torch.kinds import ModuleKinds
from bridges.torch.lora import adapter_of
from bridges.torch.low_rank import LowRankModule, leaves
from bridges.torch.objectives import AdapterObjective, TracedLMObjective
from bridges.torch.parameter_axes import parameter_axes
from bridges.torch.tracing import from_torch
from dew.cli.main import main
from dew.errors import InputRefused
from dew.inputs import Field
from dew.objectives.base import Step
from dew.objectives.samples import Samples
from dew.objectives.supervised import Supervised

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*no native family")]

RATE, DECAY, STEPS, LENGTH = 1e-2, 0.1, 5, 32
QUIET = ("--quiet", "--no_certify")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("DEW_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def gptj(folder: Path, **changes: Any) -> Path:
    """Write a GPT-J of one layer with a tokenizer and return its folder."""
    from transformers import GPTJConfig, GPTJForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPTJConfig(vocab_size=TINY_VOCABULARY, rotary_dim=4, **ends, **sizes | changes)
    GPTJForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return gptj(tmp_path_factory.mktemp("gptj"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Four documents, each shorter than a row: a batch of four rows holds them all."""
    return write_lines(tmp_path_factory.mktemp("data") / "train.jsonl", SHORT)


SHORT = tuple(sentence[:40] for sentence in SENTENCES[:4])


def finetune(model, data, out, *flags, steps=STEPS) -> int:
    words = ["--model", model, "--data", data, "--output", out, "--steps", steps]
    words += ["--max_length", LENGTH, "--per_device_train_batch_size", 4, "--lr", RATE]
    words += ["--logging_steps", 1, *QUIET, *flags]
    return main(["finetune", *map(str, words)])


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def encoded(folder) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the documents as transformers' tokenizer has them, ended and padded, and the mask."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [[*tokenizer(text)["input_ids"], 0] for text in SHORT]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


def torch_loss(module, ids, mask):
    """Return the mean loss of the real targets, labels and mask as transformers takes them."""
    labels = ids.masked_fill(mask == 0, -100)
    return module(input_ids=ids, attention_mask=mask, labels=labels).loss


def torch_run(folder) -> tuple[list[float], Any]:
    """Return the losses of transformers' own model and loop, with its decay groups."""
    from transformers import AutoModelForCausalLM, get_linear_schedule_with_warmup
    from transformers.trainer_pt_utils import get_parameter_names

    module = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids, mask = encoded(folder)
    decayed = set(get_parameter_names(module, [nn.LayerNorm], ["bias"]))
    named = list(module.named_parameters())
    groups = [
        {"params": [p for n, p in named if n in decayed], "weight_decay": DECAY},
        {"params": [p for n, p in named if n not in decayed], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, STEPS)
    found = []
    for _ in range(STEPS):
        loss = torch_loss(module, ids, mask)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        found.append(loss.item())
    return found, module


@pytest.fixture(scope="module")
def finished(model, data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert finetune(model, data, out, "--weight_decay", DECAY) == 0
    return out


def test_losses_and_weights_of_a_run_are_those_of_torchs_own_loop(finished, model):
    from transformers import AutoModelForCausalLM

    wanted, module = torch_run(model)
    assert np.abs(np.subtract(losses(finished), wanted)).max() < 1e-4
    state = AutoModelForCausalLM.from_pretrained(finished).state_dict()
    before = load_file(model / "model.safetensors")
    for name, tensor in module.state_dict().items():
        # Adam moves a weight by the rate whatever the gradient's size, so one near 0 may differ.
        assert (state[name] - tensor).abs().mean() < 1e-4 * RATE * STEPS * 10, name
        assert not np.array_equal(state[name].numpy(), before[name]), name


def test_packing_that_was_asked_for_is_refused_by_name(model, data, tmp_path, capsys):
    assert finetune(model, data, tmp_path / "out", "--packing") == 2
    assert "gptj is traced and takes no mask of documents" in capsys.readouterr().err


def test_pieces_of_packed_rows_get_rows_of_their_own_and_none_is_lost(model, tmp_path):
    path = write_lines(tmp_path / "long.jsonl", [" ".join(SENTENCES), *SENTENCES])
    tokenizer = bridges.load(model).processor
    packed: Any = bridges.dataset(path, tokenizer, seq_len=20, batch=2, eval_source=path)
    apart = one_document_a_row(packed, tokenizer, seed=0)
    pieces = []
    for tokens, segments in zip(packed.rows.tokens, packed.rows.segments, strict=True):
        pieces += [tokens[segments == number].tolist() for number in range(1, segments.max() + 1)]
    taken = apart.rows.take(np.arange(len(apart.rows)))
    rows = zip(taken["text"], taken["segments"], strict=True)
    assert [tokens[segments == 1].tolist() for tokens, segments in rows] == pieces
    assert set(np.unique(taken["segments"])) <= {0, 1}
    assert taken["text"].shape[1] == max(map(len, pieces)) == apart.report.seq_len + 1
    assert (taken["segments"][:, 1:] != 0).sum() == packed.rows.targets.sum()
    assert apart.report.targets == packed.report.targets
    assert apart.report.validation_rows == len(apart.eval_rows) == len(pieces)


def test_a_model_that_reads_ahead_is_refused(tmp_path):
    from transformers import RoFormerConfig, RoFormerForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = RoFormerConfig(**sizes, vocab_size=96, intermediate_size=32, is_decoder=False)
    RoFormerForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(InputRefused, match=r"reads later tokens too(?s:.*)is_decoder"):
        learner_of(bridges.load(tmp_path))


class Maps(nn.Module):
    """A plain linear map, one written as a product, and one whose weight is read otherwise too."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.third = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        both = self.second(hidden) + hidden @ self.second.weight.tanh()
        return both @ self.third.weight.T


@pytest.fixture(scope="module")
def maps():
    torch.manual_seed(0)
    return from_torch(Maps().eval(), (torch.randn(3, 5),))


def test_low_rank_sums_are_the_merged_weights_and_so_are_their_gradients(maps):
    adapter = adapter_of(maps, rank=2, alpha=3.0)
    params = maps.variables["params"]
    adapters = adapter.init(jax.random.key(0), params)
    adapters = jax.tree.map(lambda leaf: leaf + 0.3, adapters)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 5)), jnp.float32)
    low = LowRankModule(maps, adapter)

    def merged(adapters):
        held = {**maps.variables, "params": adapter.laid_over(params, adapters)}
        return jnp.sum(jnp.sin(maps.apply(held, x)))

    def summed(adapters):
        held = {**maps.variables, "params": {**params, **leaves(adapters)}}
        return jnp.sum(jnp.sin(low.apply(held, x, rngs=jax.random.key(1))))

    for found, wanted in zip(
        jax.tree.leaves(jax.value_and_grad(summed)(adapters)),
        jax.tree.leaves(jax.value_and_grad(merged)(adapters)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_adapter_dropout_drops_inputs_of_the_product_alone(maps):
    """As torch's dropout: a value is 0 or divided by what is kept, in a step and not without."""
    torch.manual_seed(0)
    linear = from_torch(nn.Linear(6, 6, bias=False), (torch.randn(2, 6),))
    adapter = adapter_of(linear, rank=6, alpha=12.0, targets=("",), dropout=0.25)
    low = LowRankModule(linear, adapter)
    pair = {"": {"A": jnp.eye(6), "B": jnp.eye(6)}}
    held = {**linear.variables, "params": {**linear.variables["params"], **leaves(pair)}}
    x = jnp.asarray(np.random.default_rng(1).uniform(1, 2, (400, 6)), jnp.float32)
    plain = linear.apply(linear.variables, x)
    np.testing.assert_allclose(low.apply(held, x) - plain, 2 * x, rtol=1e-4)
    seen = np.asarray((low.apply(held, x, rngs=jax.random.key(2)) - plain) / (2 * x))
    kept = seen > 0.5
    np.testing.assert_allclose(seen[kept], 1 / 0.75, rtol=1e-4)
    np.testing.assert_allclose(seen[~kept], 0, atol=1e-4)
    assert abs(kept.mean() - 0.75) < 4 * np.sqrt(0.25 * 0.75 / seen.size)
    product = LowRankModule(maps, adapter_of(maps, rank=2, targets=("third",), dropout=0.9))
    params = maps.variables["params"]
    pair = {"third": {"A": jnp.ones((2, 4)), "B": jnp.ones((3, 2))}}
    both = {**maps.variables, "params": {**params, **leaves(pair)}}
    rows = jnp.ones((3, 5))
    whole = product.apply(both, rows)
    assert jnp.abs(product.apply(both, rows, rngs=jax.random.key(0)) - whole).max() > 0.01
    dropping = LowRankModule(maps, adapter_of(maps, dropout=0.1))
    with pytest.raises(InputRefused, match=r"read otherwise than by a linear map(?s:.*)second"):
        dropping.apply(maps.variables, jnp.ones((3, 5)), rngs=jax.random.key(0))
    objective = Supervised(linear, Field("x", (6,)), Field("y", ()))
    with pytest.raises(InputRefused, match="no input to drop"):
        AdapterObjective(objective, adapter)


@pytest.mark.slow
def test_a_run_in_two_parts_ends_as_one_that_never_stopped(model, data, tmp_path, capsys):
    flags = ("--lr_scheduler_type", "constant", "--eval_data", data, "--eval_strategy", "steps")
    assert finetune(model, data, tmp_path / "straight", *flags, "--eval_steps", 2, steps=4) == 0
    assert finetune(model, data, tmp_path / "parts", *flags, "--eval_steps", 2, steps=2) == 0
    assert finetune(model, data, tmp_path / "parts", *flags, "--eval_steps", 2, steps=4) == 0
    assert "going on from checkpoint-2" in capsys.readouterr().out
    ours, theirs = (
        load_file(tmp_path / run / "model.safetensors") for run in ("straight", "parts")
    )
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    records = (tmp_path / "parts" / "log.jsonl").read_text().splitlines()
    scored = [json.loads(line)["step"] for line in records if "eval_loss" in line]
    assert scored == [2, 4]


@pytest.mark.slow
def test_a_dry_run_reads_no_weight(model, data, tmp_path, capsys, monkeypatch):
    import shutil

    monkeypatch.setenv("DEW_CACHE", str(tmp_path / "cache"))
    copy = Path(shutil.copytree(model, tmp_path / "model"))
    (copy / "model.safetensors").write_bytes(b"\0" * 100)
    for flags in ((), ("--lora_rank", 2, "--activation_checkpointing")):
        assert finetune(copy, data, tmp_path / "out", "--dry-run", *flags) == 0
    text = capsys.readouterr().out
    assert "transformer.h.0.mlp.fc_in.weight" in text
    assert "transformer.h.0.mlp.fc_in/A" in text
    assert f"int32 [4, {LENGTH}]" in text
    assert not (tmp_path / "out").exists()


def with_adapter(model, folder):
    """Return transformers' model with scale * B A of a PEFT folder added in float64 by hand."""
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(model).eval()
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    assert config["target_modules"]
    for name in config["target_modules"]:
        a, b = (tensors.pop(f"base_model.model.{name}.lora_{side}.weight") for side in "AB")
        product = torch.tensor(b.astype(np.float64) @ a.astype(np.float64))
        weight = module.get_parameter(f"{name}.weight")
        scaled = config["lora_alpha"] / config["r"] * product
        weight.data = (weight.data.double() + scaled).float()
    assert not tensors
    return module, config


@pytest.mark.slow
def test_an_adapter_run_leaves_a_peft_folder_and_the_model_with_it_merged(model, data, tmp_path):
    from transformers import AutoModelForCausalLM

    out = tmp_path / "adapter"
    assert finetune(model, data, out, "--lora_rank", 2, "--save_steps", 2) == 0
    module, config = with_adapter(model, out)
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 32, 0.05)
    merged = AutoModelForCausalLM.from_pretrained(out / "merged").eval()
    ids, mask = encoded(model)
    with torch.no_grad():
        wanted, found = module(ids).logits, merged(ids).logits
        base = AutoModelForCausalLM.from_pretrained(model).eval()(ids).logits
        last = torch_loss(module, ids, mask).item()
    assert (wanted - base).abs().max() > 1e-2 * base.abs().max()
    assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert last < losses(out)[-1] < losses(out)[0]
    assert (out / "checkpoint-2" / "adapter_model.safetensors").exists()
    assert set(config["target_modules"]) == {
        f"transformer.h.0.{name}"
        for name in ("attn.k_proj", "attn.v_proj", "attn.q_proj", "attn.out_proj")
    } | {"transformer.h.0.mlp.fc_in", "transformer.h.0.mlp.fc_out"}


@pytest.mark.slow
def test_adapter_dropout_changes_a_run_and_resumes_as_it_was(model, data, tmp_path):
    flags = ("--lora_rank", 2, "--lora_dropout", 0.5, "--lr_scheduler_type", "constant")
    assert finetune(model, data, tmp_path / "one", *flags, steps=4) == 0
    assert finetune(model, data, tmp_path / "two", *flags, steps=2) == 0
    assert finetune(model, data, tmp_path / "two", *flags, steps=4) == 0
    ours, theirs = (
        load_file(tmp_path / run / "adapter_model.safetensors") for run in ("one", "two")
    )
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    plain = tmp_path / "plain"
    assert finetune(model, data, plain, "--lora_rank", 2, *flags[4:], steps=4) == 0
    assert losses(plain)[0] == pytest.approx(losses(tmp_path / "one")[0], abs=1e-6)  # B is 0
    assert abs(losses(plain)[3] - losses(tmp_path / "one")[3]) > 1e-4
    assert json.loads((tmp_path / "one/adapter_config.json").read_text())["lora_dropout"] == 0.5


@pytest.mark.slow
def test_evaluate_gives_torchs_perplexity_and_generate_its_words(finished, data, capsys, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    module: Any = AutoModelForCausalLM.from_pretrained(finished).eval()
    words = ["--model", finished, "--data", data, "--max_length", LENGTH, "--output", tmp_path]
    assert main(["evaluate", *map(str, words)]) == 0
    with torch.no_grad():
        wanted = torch_loss(module, *encoded(finished)).item()
    found = json.loads((tmp_path / "eval_results.json").read_text())
    assert abs(found["eval_loss"] - wanted) < 1e-5
    capsys.readouterr()
    prompt = SENTENCES[2][:12]
    assert main(["generate", str(finished), "--prompt", prompt, "--max_new_tokens", "8"]) == 0
    tokenizer = AutoTokenizer.from_pretrained(finished)
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    right = module.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    text = tokenizer.decode(right[0], skip_special_tokens=True)
    assert capsys.readouterr().out.strip() == text.strip()


@pytest.mark.slow
def test_bfloat16_computes_in_it_and_learns_in_float32(model, data, tmp_path):
    out = tmp_path / "half"
    assert finetune(model, data, out, "--dtype", "bfloat16") == 0
    weights = load_file(out / "model.safetensors")
    assert {array.dtype.name for array in weights.values()} == {"float32"}
    rounded = weights["lm_head.weight"].view(np.uint32) & 0xFFFF
    assert rounded.any()  # more digits than bfloat16 holds
    wanted, _ = torch_run(model)
    assert np.abs(np.subtract(losses(out), wanted)).max() < 0.05


@pytest.mark.slow
def test_a_preview_writes_what_transformers_generates(model):
    from transformers import AutoModelForCausalLM

    bundle: Any = bridges.load(model)
    prompts = ((5, 6, 7), (8, 9, 10, 11))
    samples = Samples(prompts, max_new_tokens=6, temperature=0, decode=lambda ids: str(list(ids)))
    objective = AdapterObjective(
        TracedLMObjective(bundle, LENGTH - 1, samples=samples), adapter_of(bundle, rank=2)
    )
    key = jax.random.key(0)
    variables = objective.init(key, bundle.variables)
    step = Step(step=jnp.int32(0), key=key)
    written: Any = objective.preview(variables, {}, step)
    module: Any = AutoModelForCausalLM.from_pretrained(model).eval()
    for prompt, found in zip(prompts, written, strict=True):
        ids = torch.tensor([prompt])
        right = module.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
        assert found.tokens[0].tolist() == right[0, len(prompt) :].tolist()
        assert found.prompt == str(list(prompt))


def test_axes_are_those_of_megatrons_columns_and_rows():
    """Column-parallel maps are cut along their outputs, row-parallel ones along their inputs."""
    names = ("h.0.attn.q_proj", "h.0.attn.out_proj", "h.0.mlp.fc_in", "h.0.mlp.fc_out", "h.0.odd")
    kinds = {**dict.fromkeys(names, "Linear"), "wte": "Embedding", "lm_head": "Linear"}
    kinds |= {"c_attn": "Conv1D", "ln": "LayerNorm"}
    shapes = {f"{name}.weight": jax.ShapeDtypeStruct((8, 8), np.float32) for name in kinds}
    shapes["ln.weight"] = jax.ShapeDtypeStruct((8,), np.float32)
    found = parameter_axes(ModuleKinds(kinds, "lm_head", {}), shapes)
    assert found == {
        "h.0.attn.q_proj.weight": ("heads", "embed"),
        "h.0.attn.out_proj.weight": ("embed", "heads"),
        "h.0.mlp.fc_in.weight": ("mlp", "embed"),
        "h.0.mlp.fc_out.weight": ("embed", "mlp"),
        "wte.weight": ("vocab", "table_features"),
        "lm_head.weight": ("vocab", "table_features"),
        "c_attn.weight": ("embed", "heads"),
    }


@pytest.mark.slow
def test_a_mesh_cuts_by_torchs_names_and_changes_no_loss(data, tmp_path):
    wide = gptj(tmp_path / "wide", n_embd=128)  # leaves of 65,536 elements are cut
    assert finetune(wide, data, tmp_path / "one", steps=2) == 0
    words = ["finetune", "--model", wide, "--data", data, "--output", tmp_path / "mesh"]
    words += ["--max_length", LENGTH, "--per_device_train_batch_size", 2, "--lr", RATE]
    words += ["--logging_steps", 1, "--steps", 2, "--mesh", "fsdp=2,tensor=2", *QUIET]
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    program = [sys.executable, "-m", "dew.cli.main", *map(str, words)]
    done = subprocess.run(program, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert np.abs(np.subtract(losses(tmp_path / "mesh"), losses(tmp_path / "one"))).max() < 1e-5

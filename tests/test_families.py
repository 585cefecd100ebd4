"""Every native family against transformers: what is loaded, computed, trained and exported.

The right values are transformers' own, in float64 where a number is judged (`parity.checks`). The
tiny models of `parity.tiny` differ from their configs' defaults where a port would show it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bridges
from bridges.family import FAMILIES
from parity import tiny
from parity.check import judge
from parity.reference import first_output
from parity.running import load_check
from parity.subject import Subject, load_subject

pytestmark = pytest.mark.torch

# Llama's and GPT-2's variants are in test_parity_checks.
NAMES = tuple(name for name in tiny.MODELS if not name.startswith(("llama", "gpt2")))
# What the others compute is computed by one of these too.
ALIKE = {"gpt_neox sequential", "opt", "mistral", "qwen2", "qwen3_moe", "gemma", "phi3"}
# Encoders and encoder-decoders have fast tests of their own.
ALIKE |= {name for name, config in tiny.MODELS.items() if "architectures" in config}
FAST = [pytest.param(n, marks=pytest.mark.slow) if n in ALIKE else n for n in NAMES]
READ_BY_FOUR = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
torch.set_num_threads(1)
for folder in sys.argv[2:]:
    named = json.load(open(folder + "/config.json"))["architectures"][0]
    model, found = getattr(transformers, named).from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager")
    inputs = {name: torch.tensor(value) for name, value in np.load(folder + "/ids.npz").items()}
    with torch.no_grad():
        output = model.eval()(**inputs)
    first = [name for name in ("logits", "start_logits", "last_hidden_state") if name in output]
    np.save(folder + "/four.npy", output[first[0]].numpy())
    print(json.dumps({key: sorted(map(str, value)) for key, value in found.items() if value}))
"""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """Tiny random checkpoints, written by transformers when they are first wanted."""
    pytest.importorskip("torch").set_num_threads(1)
    folder = tmp_path_factory.mktemp("families")

    class Subjects(dict[str, Subject]):
        def __missing__(self, name: str) -> Subject:
            self[name] = load_subject(tiny.write(name, folder, seed=0), name=name)
            return self[name]

    return Subjects()


def test_every_decoder_has_a_tiny_model():
    kinds = {config["model_type"] for config in tiny.MODELS.values()}
    decoders = {name for name in FAMILIES if classes(name)}
    assert decoders
    assert decoders <= kinds


def classes(name: str) -> list[str]:
    """Return a family's causal language models."""
    family = importlib.import_module(FAMILIES[name]).FAMILY
    return [kind for kind in family.architectures if kind.endswith(("ForCausalLM", "LMHeadModel"))]


@pytest.mark.parametrize("name", FAST)
def test_a_family_holds_and_computes_what_transformers_does(subjects, name):
    for check in ("weights", "logits"):
        verdict = judge(load_check(check), subjects[name], seed=0)
        assert verdict.passed, verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "check", ["loss and gradient", "update", "greedy", "perplexity", "round trip"]
)
def test_a_family_trains_writes_and_goes_back(subjects, name, check):
    if subjects[name].why_not(check):
        assert check in ("greedy", "perplexity")
        return
    verdict = judge(load_check(check), subjects[name], seed=0)
    assert verdict.passed, verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_export_of_an_export_has_the_same_bytes(subjects, name, tmp_path):
    bridges.export(subjects[name].bundle, tmp_path / "one", verify=False)
    bridges.export(bridges.load(tmp_path / "one"), tmp_path / "two", verify=False)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.slow
def test_transformers_4_reads_every_export(tmp_path_factory, tmp_path):
    """The second environment: transformers 4 beside the same torch, in a process of its own."""
    import torch
    import transformers

    four = transformers_4(tmp_path_factory)
    folders = []
    ids = np.random.default_rng(0).integers(0, tiny.LLAMA["vocab_size"], (1, 40))
    for name in tiny.MODELS:
        source = tiny.write(name, tmp_path / "source", seed=0)
        folder = tmp_path / name.replace(" ", "-")
        bridges.export(bridges.load(source), folder, verify=False)
        named = json.loads((source / "config.json").read_text())["architectures"][0]
        kind = getattr(transformers, named)
        model = kind.from_pretrained(source, attn_implementation="eager").eval()
        inputs = {"input_ids": ids}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids[:, ::-1].copy()
        with torch.no_grad():
            output = model(**{name: torch.tensor(value) for name, value in inputs.items()})
        np.save(folder / "five.npy", first_output(output).numpy())
        np.savez(folder / "ids.npz", **inputs)
        folders.append(folder)
    run = subprocess.run(
        [sys.executable, "-c", READ_BY_FOUR, str(four), *map(str, folders)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for folder, line in zip(folders, run.stdout.splitlines(), strict=True):
        assert json.loads(line) == {}, folder.name
        four_, five = (np.load(folder / f"{name}.npy") for name in ("four", "five"))
        # The two versions add and turn in another order here and there: rounding, no more.
        assert np.abs(four_ - five).max() <= 1e-5 * np.abs(five).max(), folder.name


def transformers_4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with transformers 4 and what it needs that 5 has in other versions."""
    folder = tmp_path_factory.mktemp("four")
    packages = ["transformers==4.57.6", "tokenizers==0.22.2", "huggingface_hub==0.36.2"]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--target", str(folder), *packages], check=True)
    return folder

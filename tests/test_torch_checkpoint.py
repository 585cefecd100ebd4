"""Checkpoints without a native family: traced, kept, and read again without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import write_llama

import bridges
from bridges.torch.store import kept_programs
from dew.errors import InputRefused, WeightMismatch

pytestmark = pytest.mark.torch

AGAIN = """
import sys, numpy as np, bridges
bundle = bridges.load(sys.argv[1])
logits = bundle(input_ids=np.arange(12).reshape(2, 6))["logits"]
np.save(sys.argv[2], logits)
print("torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def stablelm(tmp_path_factory):
    from transformers import StableLmConfig, StableLmForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    config = StableLmConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, vocab_size=100)
    folder = tmp_path_factory.mktemp("stablelm")
    module = StableLmForCausalLM(config).eval()
    module.save_pretrained(folder)
    return folder, module


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("cache")
    patch.setenv("DEW_CACHE", str(folder))
    yield folder
    patch.undo()


@pytest.fixture(scope="module")
def loaded(stablelm, cache):
    with pytest.warns(UserWarning, match="stablelm has no native family"):
        bundle = bridges.load(stablelm[0])
    bundle(input_ids=np.arange(12).reshape(2, 6))
    return bundle


def test_a_model_type_without_a_family_gives_transformers_logits(stablelm, loaded):
    ids = np.arange(21).reshape(3, 7) * 4
    mask = np.ones_like(ids)
    mask[1, :3] = 0
    ours = loaded(input_ids=ids, attention_mask=mask)["logits"]
    with torch.no_grad():
        theirs = stablelm[1](torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.numpy()
    real = mask.astype(bool)
    assert np.abs(np.asarray(ours) - theirs)[real].max() < 1e-5 * np.abs(theirs).max()


def test_a_second_start_needs_no_torch(stablelm, loaded, tmp_path):
    wanted = loaded(input_ids=np.arange(12).reshape(2, 6))["logits"]
    out = tmp_path / "logits.npy"
    command = [sys.executable, "-W", "ignore", "-c", AGAIN, str(stablelm[0]), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert np.array_equal(np.load(out), wanted)


def test_a_damaged_trace_is_made_anew(stablelm, loaded, cache):
    first = min(cache.glob("traces/*/evaluation-*.json"))
    stored = sorted(first.parent.glob("evaluation-*.json"))
    text = stored[0].read_text()
    try:
        stored[0].write_text(text.replace("aten.mul.Tensor", "aten.add.Tensor", 1))
        with pytest.warns(UserWarning, match="not those that were written; the module is traced"):
            assert len(kept_programs(stored[0].parent)[False]) == len(stored) - 1
    finally:
        stored[0].write_text(text)


def test_tracing_can_be_refused(stablelm):
    with pytest.raises(InputRefused, match="unknown model_type 'stablelm'"):
        bridges.load(stablelm[0], traced="never")
    with pytest.raises(InputRefused, match="traced is 'perhaps'; expected one of"):
        bridges.load(stablelm[0], traced="perhaps")


def test_a_checkpoint_that_wants_its_own_code_is_refused(stablelm, tmp_path):
    config = json.loads((stablelm[0] / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoModel": "modeling.Theirs"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "modeling.py").write_text("raise SystemExit('ran')")
    with pytest.raises(InputRefused, match="remote code, which dew never runs"):
        bridges.load(tmp_path)


@pytest.mark.parametrize("traced", [pytest.param("always", marks=pytest.mark.slow), "never"])
def test_a_known_type_with_code_of_its_own_is_read_as_the_plain_one(tmp_path, cache, traced):
    """As transformers does by itself; right: the plain checkpoint's logits."""
    ids = np.asarray([[1, 2, 3]])
    plain = bridges.load(write_llama(tmp_path / "plain"), traced=traced)(input_ids=ids)["logits"]
    folder = write_llama(tmp_path / "own", auto_map={"AutoModelForCausalLM": "modeling.Theirs"})
    (folder / "modeling.py").write_text("raise SystemExit('ran')")
    with pytest.warns(UserWarning, match="dew never runs: this is read as a plain 'llama'"):
        own = bridges.load(folder, traced=traced)
    np.testing.assert_array_equal(own(input_ids=ids)["logits"], plain)


def test_a_missing_tensor_is_named_and_nothing_is_drawn(stablelm, cache, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(stablelm[0] / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((stablelm[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "initializer_range": 0.03}))
    with (
        pytest.warns(UserWarning, match="no native family"),
        pytest.raises(WeightMismatch, match=r"missing  model\.norm\.weight"),
    ):
        bridges.load(tmp_path)


def test_an_untouched_export_gives_the_sources_bytes_and_loads_in_transformers(
    stablelm, loaded, tmp_path
):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    bridges.export(loaded, tmp_path / "out")
    source = load_file(stablelm[0] / "model.safetensors")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert set(source) == set(written)
    assert all(torch.equal(source[name], written[name]) for name in source)
    module = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(6)[None]
    with torch.no_grad():
        assert torch.equal(module(ids).logits, stablelm[1](ids).logits)

"""Traced models on a mesh and in checkpoints; the reference is torch, or one device beside four."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch_layout_child as child
from pools import run

import bridges
from dew import Checkpoints, DataPartition, Layout, MeshSpec
from dew.placement import LayoutRefused, Placement

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*no native family")]


@pytest.fixture(scope="module")
def neo(tmp_path_factory):
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_layers": 1, "num_heads": 4}
    config = GPTNeoConfig(**sizes, max_position_embeddings=64, attention_types=[[["local"], 1]])
    folder = tmp_path_factory.mktemp("neo")
    GPTNeoForCausalLM(config).eval().save_pretrained(folder)
    patch = pytest.MonkeyPatch()
    patch.setenv("DEW_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield folder
    patch.undo()


@pytest.fixture(scope="module")
def bundle(neo):
    return bridges.load(neo)


@pytest.fixture(scope="module")
def four(neo, one, tmp_path_factory):
    """What a process of four devices saw, and the folder with its checkpoints."""
    out = tmp_path_factory.mktemp("four") / "figures.json"
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    program = [sys.executable, str(Path(child.__file__)), str(neo), str(out)]
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    subprocess.run(program, check=True, env=env, capture_output=True, text=True)
    return json.loads(out.read_text()), out.parent / "steps"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def one(bundle, saved):
    return child.trained(bundle, MeshSpec(), saved)


def shards(spec, shape, layout, axes=None):
    """Return how an array is cut on a mesh of abstract devices."""
    mesh = jax.sharding.AbstractMesh(tuple(spec.sizes.values()), tuple(spec.sizes))
    return layout.spec(axes, shape, mesh)


def test_losses_on_four_devices_are_those_on_one(one, four):
    for name, figures in four[0].items():
        assert len(figures["losses"]) == child.STEPS, name
        difference = np.abs(np.subtract(figures["losses"], one[0]))
        assert difference.max() <= 1e-5 * max(one[0]), name


def test_losses_are_those_of_torch(neo, one):
    """The first loss and those after each AdamW step, torch's own model and optimizer."""
    from transformers import GPTNeoForCausalLM

    module = GPTNeoForCausalLM.from_pretrained(neo).eval()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=1e-4)
    losses = []
    for batch in child.BATCHES:
        text = torch.tensor(batch["text"].astype(np.int64))
        scores = module(text[:, :-1]).logits.reshape(-1, 96)
        loss = torch.nn.functional.cross_entropy(scores, text[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.abs(np.subtract(losses, one[0])).max() <= 1e-5 * max(losses)


def test_no_device_holds_more_than_its_shard(bundle, four):
    params = bundle.variables["params"]
    small = sum(leaf.size for leaf in params.values() if leaf.size < 64)
    everything = sum(leaf.size for leaf in params.values())
    for part in ("loaded", "moments"):
        assert set(four[0]["fsdp"][part]) == {(everything - small) // 4 + small}
        assert set(four[0]["data"][part]) == {everything}


@pytest.mark.slow
def test_two_processes_load_their_parts_of_the_same_values(neo, bundle):
    plain = [np.asarray(leaf) for leaf in jax.tree.leaves(bundle.variables)]
    said = run(
        "pool_loading_child.py", 2, devices=2, source=str(neo), mesh={"fsdp": 4}, values=True
    )
    for rank in said:
        assert rank.said["held"] < 0.6 * rank.said["whole"]
        for mine, right in zip(rank.said["values"], plain, strict=True):
            np.testing.assert_array_equal(np.asarray(mine, right.dtype), right)


def test_names_cut_the_axes_that_they_name(four):
    assert four[0]["names"]["specs"] == {
        "params": ["tensor", "fsdp"],
        "moments": ["tensor", "fsdp"],
    }
    assert four[0]["fsdp"]["specs"]["params"] == ["fsdp", "None"]


def test_a_leaf_without_names_is_cut_along_its_largest_axis_that_divides():
    layout, spec = Layout(min_shard=1), MeshSpec(fsdp=4)
    assert shards(spec, (50257, 768), layout) == jax.P(None, "fsdp")
    assert shards(spec, (768, 3072), layout) == jax.P(None, "fsdp")
    assert shards(spec, (6, 7), layout) == jax.P()
    assert shards(spec, (), layout) == jax.P()


def test_names_match_paths_and_their_ends_the_first_counts():
    layout = Layout(
        names=(("h.*.attn.q.weight", ("heads", "embed")), ("*.weight", ("vocab", None)))
    )
    assert layout.named("opt_state/0/mu/h.11.attn.q.weight") == ("heads", "embed")
    assert layout.named("params/wte.weight") == ("vocab", None)
    assert layout.named("params/h.0.attn.q.bias") is None


def test_names_that_fit_no_parameter_are_refused(bundle):
    mesh = MeshSpec()
    wrong = Layout(names=(("*.query.weight", ("heads", "embed")), ("*.c_fc.weight", ("mlp",))))
    with pytest.raises(LayoutRefused, match=r"no parameter matches '\*\.query(?s:.*)names 1"):
        Placement.of(mesh, wrong, {}).check(bundle.variables)


def test_a_state_comes_back_from_its_checkpoint_bit_for_bit(one, saved):
    again, position = Checkpoints(saved).restore(one[1], share=DataPartition())
    assert position is not None
    assert same(again, one[1])


def test_a_run_that_stopped_ends_as_one_that_did_not(bundle, one, tmp_path):
    child.trained(bundle, MeshSpec(), tmp_path, steps=1)
    losses, state = child.trained(bundle, MeshSpec(), tmp_path)
    assert losses == one[0][1:]
    assert same(state, one[1])


def test_a_checkpoint_of_four_devices_goes_on_with_one(bundle, one, four):
    losses, state = child.trained(bundle, MeshSpec(), four[1])
    assert len(losses) == 1
    assert abs(losses[0] - one[0][2]) <= 1e-5 * one[0][2]
    assert int(state.step) == 3


def same(first, second):
    """Say whether two trees are equal bit for bit."""

    def equal(a, b):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()

    return jax.tree.all(jax.tree.map(equal, first, second))

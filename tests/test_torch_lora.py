"""Adapters by name patterns on traced models; right values are torch's, computed by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from torch import nn

import bridges
from bridges.adapters import merge
from bridges.torch.lora import AdaptedBundle, adapted, adapter_of
from bridges.torch.lora_files import write_adapter
from bridges.torch.objectives import AdapterObjective, TracedLMObjective
from bridges.torch.tracing import from_torch
from dew import DataPartition, Dataset, Trainer
from dew.errors import InputRefused, UnknownName, WeightMismatch
from dew.inputs import Field
from dew.objectives.base import Step
from dew.objectives.supervised import Supervised
from dew.training.progress import Silent

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*no native family")]

IDS = (np.arange(20).reshape(2, 10) * 7) % 96
RANK, ALPHA = 3, 6.0


class Small(nn.Module):
    """Linear maps, a convolution, an embedding and a weight held twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 1)
        self.table = nn.Embedding(7, 6)
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 3, bias=False)
        self.tied = nn.Linear(6, 7, bias=False)
        self.tied.weight = self.table.weight

    def forward(self, x):
        return self.last(torch.relu(self.first(x))) + self.tied(self.first(x))[..., :3]


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    module = Small().eval()
    return module, from_torch(module, (torch.randn(5, 4),))


@pytest.fixture(scope="module")
def neo(tmp_path_factory):
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
    config = GPTNeoConfig(
        **sizes, max_position_embeddings=64, attention_types=[[["global", "local"], 1]]
    )
    folder = tmp_path_factory.mktemp("neo")
    module = GPTNeoForCausalLM(config).eval()
    module.save_pretrained(folder)
    patch = pytest.MonkeyPatch()
    patch.setenv("DEW_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield bridges.load(folder), module
    patch.undo()


def drawn(adapter, params):
    """Return adapters whose B is not zero."""
    generator = np.random.default_rng(3)
    adapters = adapter.init(jax.random.key(1), params)
    for pair in adapters.values():
        pair["B"] = 0.1 * generator.standard_normal(pair["B"].shape).astype(np.float32)
    return adapters


def with_deltas(module, adapter, adapters):
    """Return torch's logits with scale * B A added to the weights in float64 by hand."""
    weights = {}
    for name, pair in adapters.items():
        delta = torch.tensor(np.asarray(pair["B"], np.float64) @ np.asarray(pair["A"], np.float64))
        weight = module.get_parameter(f"{name}.weight").detach().double()
        weights[f"{name}.weight"] = (weight + adapter.alpha / adapter.rank * delta).float()
    with torch.no_grad():
        return torch.func.functional_call(module, weights, (torch.tensor(IDS),)).logits.numpy()


def test_all_linear_leaves_out_the_output_embedding_as_peft_does(neo):
    names = [n for n, m in neo[1].named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]
    assert adapter_of(neo[0]).modules == tuple(names)


def test_a_list_holds_ends_of_names_and_a_text_is_one_expression(neo):
    ends = adapter_of(neo[0], targets=("q_proj", "h.1.mlp.c_fc"))
    pattern = adapter_of(neo[0], targets=r"transformer\.h\.(\d+\.attn\.attention\.q_proj|1.*c_fc)")
    wanted = (
        "transformer.h.0.attn.attention.q_proj",
        "transformer.h.1.attn.attention.q_proj",
        "transformer.h.1.mlp.c_fc",
    )
    assert ends.modules == pattern.modules == wanted


def test_targets_that_are_no_linear_map_of_their_own_are_refused_by_name(neo, small):
    with pytest.raises(InputRefused, match=r"transformer\.wte is an Embedding"):
        adapter_of(neo[0], targets=("wte", "q_proj"))
    with pytest.raises(InputRefused, match=r"lm_head shares its weight with transformer\.wte"):
        adapter_of(neo[0], targets=("lm_head",))
    with pytest.raises(InputRefused, match=r"conv is a Conv1d(?s:.*)tied shares its weight"):
        adapter_of(small[1], targets=("conv", "tied", "first"))
    with pytest.raises(UnknownName, match="no module 'q_prj' to adapt; did you mean 'q_proj'"):
        adapter_of(neo[0], targets=("q_prj",))
    with pytest.raises(UnknownName, match="names no module"):
        adapter_of(neo[0], targets="q_proj")  # an expression matches whole names
    with pytest.raises(InputRefused, match="no expression that dew matches"):
        adapter_of(neo[0], targets="(")
    with pytest.raises(InputRefused, match="rank is 0"):
        adapter_of(neo[0], rank=0)


def test_first_values_are_kaiming_uniform_and_zero_and_change_nothing(neo):
    bundle = neo[0]
    adapter = adapter_of(bundle, rank=64, targets=("c_fc",))
    adapters = adapter.init(jax.random.key(0), bundle.variables["params"])
    reference = torch.empty(64, 32)
    nn.init.kaiming_uniform_(reference, a=math.sqrt(5))
    for pair in adapters.values():
        a = np.asarray(pair["A"])
        assert a.shape == (64, 32)
        assert pair["B"].shape == (128, 64)
        assert not np.asarray(pair["B"]).any()
        assert np.abs(a).max() <= 1 / math.sqrt(32)
        assert abs(a.std() / reference.std().item() - 1) < 0.05
    over = adapted(bundle, adapter, adapters)
    assert np.array_equal(over(input_ids=IDS)["logits"], bundle(input_ids=IDS)["logits"])


def test_adapted_logits_are_those_of_torch_with_the_products_added(neo):
    bundle, module = neo
    adapter = adapter_of(bundle, rank=RANK, alpha=ALPHA, targets=("q_proj", "c_proj"))
    adapters = drawn(adapter, bundle.variables["params"])
    over = adapted(bundle, adapter, adapters)
    wanted = with_deltas(module, adapter, adapters)
    base = np.asarray(bundle(input_ids=IDS)["logits"])
    assert np.abs(wanted - base).max() > 1e-2 * np.abs(wanted).max()
    for found in (
        over(input_ids=IDS),
        over.apply(over.variables, input_ids=IDS),
        merge(over)(input_ids=IDS),
    ):
        assert np.abs(np.asarray(found["logits"]) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_gradients_reach_a_and_b_alone_and_are_torchs(small):
    module, traced = small
    adapter = adapter_of(traced, rank=2, alpha=3.0, targets=("first", "last"))
    adapters = drawn(adapter, traced.variables["params"])
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    y = np.arange(5) % 3
    base = Supervised(traced, Field("x", (4,)), Field("y", ()))
    objective = AdapterObjective(base, adapter)
    variables = objective.init(jax.random.key(0), traced.variables)
    step = Step(step=np.int32(0), key=jax.random.key(0))

    def loss(params):
        return objective.loss({**variables, "params": params}, {"x": x, "y": y}, step)[0].value

    value, found = jax.value_and_grad(loss)(adapters)
    leaves = {
        name: {side: torch.tensor(np.asarray(v), requires_grad=True) for side, v in pair.items()}
        for name, pair in adapters.items()
    }
    weights = {
        f"{name}.weight": module.get_parameter(f"{name}.weight").detach()
        + 1.5 * pair["B"] @ pair["A"]
        for name, pair in leaves.items()
    }
    scores = torch.func.functional_call(module, weights, (torch.tensor(x),))
    reference = nn.functional.cross_entropy(scores, torch.tensor(y))
    reference.backward()
    assert abs(float(value) - reference.item()) < 1e-6
    for name, pair in leaves.items():
        for side, tensor in pair.items():
            wanted = tensor.grad.numpy()
            assert np.abs(wanted).max() > 0
            assert np.abs(found[name][side] - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_conv1d_weights_are_adapted_across(neo):
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(1)
    module = nn.Sequential(Conv1D(4, 4), nn.Linear(4, 4)).eval()
    traced = from_torch(module, (torch.randn(3, 4),))
    adapter = adapter_of(traced, rank=2, alpha=2.0)
    assert adapter.transposed == {"0"}
    adapters = drawn(adapter, traced.variables["params"])
    x = torch.randn(3, 4)
    found = traced.apply(
        {**traced.variables, "params": adapter.laid_over(traced.variables["params"], adapters)},
        x.numpy(),
    )
    low = {name: torch.tensor(np.asarray(p["B"] @ p["A"])) for name, p in adapters.items()}
    with torch.no_grad():
        hidden = x @ (module[0].weight + low["0"].T) + module[0].bias
        wanted = hidden @ (module[1].weight + low["1"]).T + module[1].bias
    assert np.abs(np.asarray(found) - wanted.numpy()).max() < 1e-6


def batches(count):
    """Return a dataset of `count` batches of tokens that repeat."""
    rows = np.random.default_rng(5).integers(0, 96, (count, 4, 13)).astype(np.int32)
    opened = [{"text": row} for row in rows]
    return Dataset(lambda share: iter(opened), None, records=4 * count, batch=4)


@pytest.fixture(scope="module")
def trained(neo):
    """Adapters after four steps of the trainer, and the bundle with them."""
    bundle = neo[0]
    adapter = adapter_of(bundle, rank=RANK, alpha=ALPHA, targets=("q_proj", "v_proj"))
    objective = AdapterObjective(TracedLMObjective(bundle, 12), adapter)
    trainer = Trainer(objective, optax.adam(1e-2), key=jax.random.key(0))
    before = jax.tree.map(np.array, bundle.variables)
    state = trainer.fit(batches(4), steps=4, variables=bundle.variables, progress=Silent())
    return before, state, adapted(bundle, adapter, state.params["params"])


@pytest.mark.slow
def test_the_trainer_moves_the_adapters_and_nothing_else(neo, trained):
    before, state, over = trained
    assert set(state.params) == {"params", "buffers", "frozen"}
    assert set(state.params["params"]) == set(over.adapter.modules)
    assert all(np.abs(np.asarray(pair["B"])).max() > 0 for pair in state.params["params"].values())
    after = {part: over.variables[part] for part in ("params", "buffers")}
    assert jax.tree.all(jax.tree.map(np.array_equal, before, after))


def test_steps_on_adapters_are_those_of_torch(neo, trained):
    """Four Adam steps on A and B, with the products added by hand, in torch."""
    bundle, module = neo
    _, state, over = trained
    first = over.adapter.init(jax.random.key(0), bundle.variables["params"])
    leaves = {
        name: {side: torch.tensor(np.asarray(v), requires_grad=True) for side, v in pair.items()}
        for name, pair in first.items()
    }
    optimizer = torch.optim.Adam([t for pair in leaves.values() for t in pair.values()], lr=1e-2)
    for batch in batches(4).train(DataPartition()):
        text = torch.tensor(batch["text"].astype(np.int64))
        weights = {
            f"{name}.weight": module.get_parameter(f"{name}.weight").detach()
            + over.adapter.scale * pair["B"] @ pair["A"]
            for name, pair in leaves.items()
        }
        logits = torch.func.functional_call(module, weights, (text[:, :-1],)).logits
        loss = nn.functional.cross_entropy(logits.reshape(-1, 96), text[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, pair in leaves.items():
        for side, tensor in pair.items():
            ours = np.asarray(state.params["params"][name][side])
            # Adam's first steps have the size of the rate whatever the gradient's: 1e-2.
            assert np.abs(ours - tensor.detach().numpy()).max() < 1e-4, (name, side)


def test_an_adapter_folder_is_pefts_and_comes_back(neo, trained, tmp_path):
    from safetensors.numpy import load_file

    bundle, module = neo
    over = trained[2]
    bridges.export_adapter(over, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["task_type"]) == ("LORA", "CAUSAL_LM")
    assert (config["r"], config["lora_alpha"], config["fan_in_fan_out"]) == (RANK, ALPHA, False)
    assert config["target_modules"] == list(over.adapter.modules)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    read = {
        name: {side: tensors.pop(f"base_model.model.{name}.lora_{side}.weight") for side in "AB"}
        for name in over.adapter.modules
    }
    assert not tensors
    wanted = with_deltas(module, over.adapter, read)
    again = bridges.load_adapter(bundle, tmp_path)
    assert isinstance(again, AdaptedBundle)
    found = np.asarray(again(input_ids=IDS)["logits"])
    assert np.array_equal(found, over(input_ids=IDS)["logits"])
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_modules_of_another_rank_and_alpha_are_read_as_they_compute(neo, tmp_path):
    bundle, module = neo
    adapter = adapter_of(bundle, rank=2, alpha=4.0, targets=("q_proj",))
    adapters = drawn(adapter, bundle.variables["params"])
    write_adapter(adapter, adapters, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    config["alpha_pattern"] = {"h.1.attn.attention.q_proj": 10.0}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    found = bridges.load_adapter(bundle, tmp_path)(input_ids=IDS)["logits"]
    second = "transformer.h.1.attn.attention.q_proj"
    adapters[second] = {**adapters[second], "B": adapters[second]["B"] * 2.5}
    wanted = with_deltas(module, adapter, adapters)
    assert np.abs(np.asarray(found) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_tensors_that_do_not_fit_are_all_named(neo, tmp_path):
    from safetensors.numpy import load_file, save_file

    bundle = neo[0]
    adapter = adapter_of(bundle, rank=2, targets=("q_proj", "v_proj"))
    write_adapter(adapter, drawn(adapter, bundle.variables["params"]), tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    first, second = (f"base_model.model.{m}.lora_" for m in adapter.modules[:2])
    del tensors[f"{first}B.weight"]
    tensors[f"{second}A.weight"] = np.zeros((2, 5), np.float32)
    save_file(tensors, path)
    with pytest.raises(WeightMismatch, match=r"lora_B\.weight: absent(?s:.*)\[2, 5\], not \[2, 32"):
        bridges.load_adapter(bundle, tmp_path)
    save_file({"base_model.model.x.lora_embedding_A": np.zeros(2, np.float32)}, path)
    with pytest.raises(WeightMismatch, match=r"left over  base_model\.model\.x\.lora_em"):
        bridges.load_adapter(bundle, tmp_path)


def test_an_adapter_is_not_lost_in_silence(neo, trained, tmp_path):
    with pytest.raises(InputRefused, match="holds an adapter beside its weights"):
        bridges.export(trained[2], tmp_path / "out")
    bridges.export(merge(trained[2]), tmp_path / "out")
    with pytest.raises(InputRefused, match="has no adapter"):
        bridges.export_adapter(neo[0], tmp_path / "adapter")
    with pytest.raises(InputRefused, match="no adapter to merge"):
        merge(neo[0])

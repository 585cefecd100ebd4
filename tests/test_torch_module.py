"""`from_torch`: any module's numbers, gradients and training behaviour, held to torch's own."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

from bridges.torch.export import NotExportable
from bridges.torch.outputs import Output
from bridges.torch.run import UnknownOperator
from bridges.torch.tracing import from_torch
from dew import Dataset, Trainer
from dew.errors import InputRefused
from dew.inputs import Field
from dew.objectives.supervised import Supervised
from dew.training.progress import Silent

pytestmark = pytest.mark.torch


class Convolutional(nn.Module):
    """Layers of many kinds, small."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6 * 4 * 4, 5)

    def forward(self, x):
        y = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2, ceil_mode=True)
        return self.head(self.drop(y.flatten(1)))


@pytest.fixture(scope="module")
def convolutional():
    torch.manual_seed(0)
    module = Convolutional().eval()
    with torch.no_grad():
        module.norm.running_mean.uniform_(-1, 1)
        module.norm.running_var.uniform_(0.5, 2)
    return module, from_torch(module, (torch.randn(4, 3, 7, 7),))


@pytest.fixture(scope="module")
def bert():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**sizes, intermediate_size=64, vocab_size=100)
    torch.manual_seed(0)
    module = BertModel(config).eval()
    module.set_attn_implementation("eager")
    ids = torch.randint(0, 100, (2, 9))
    return module, from_torch(module, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def close(ours, theirs, tolerance=1e-5):
    """Hold an array to a tensor, by the tensor's scale."""
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape
    scale = max(np.abs(theirs).max(), 1e-6)
    assert np.abs(np.asarray(ours) - theirs).max() <= tolerance * scale


def test_a_traced_module_gives_torchs_values(convolutional):
    module, traced = convolutional
    for rows in (4, 2, 7):
        x = torch.randn(rows, 3, 7, 7)
        close(traced(x.numpy()), module(x))
    assert len(traced._tracer.programs[False]) == 1


def test_gradients_are_torchs(convolutional):
    module, traced = convolutional
    x = torch.randn(4, 3, 7, 7)
    module.zero_grad()
    module(x).square().sum().backward()

    def loss(params):
        return jnp.sum(traced.apply({**traced.variables, "params": params}, x.numpy()) ** 2)

    gradients = jax.grad(loss)(traced.variables["params"])
    assert set(gradients) == {name for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        close(gradients[name], parameter.grad, 1e-4)


def test_training_mode_moves_the_buffers_as_torch_does(convolutional):
    module, traced = convolutional
    x = torch.randn(4, 3, 7, 7)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    options = {"train": True, "rngs": {"dropout": jax.random.key(0)}, "mutable": ["buffers"]}
    out, changed = traced.apply(traced.variables, x.numpy(), **options)
    buffers = changed["buffers"]
    module.train()
    module(x)
    after = {name: value.clone() for name, value in module.named_buffers()}
    module.load_state_dict(before)
    module.eval()
    assert out.shape == (4, 5)
    assert set(buffers) == set(after)
    for name, value in after.items():
        close(jnp.asarray(buffers[name], jnp.float32), value.float())


def test_a_traced_module_trains_under_an_objective_like_any_other(convolutional):
    """Its loss falls, and its running statistics move."""
    _, traced = convolutional
    rng = np.random.default_rng(0)
    images = rng.normal(size=(32, 3, 7, 7)).astype(np.float32)
    labels = (images.mean((2, 3)) @ rng.normal(size=(3, 5))).argmax(-1).astype(np.int32)
    objective = Supervised(
        traced, Field("x", (3, 7, 7)), Field("label", ()), training={"train": True}
    )
    batch = {"x": images, "label": labels}
    data = Dataset(lambda share: itertools.repeat(batch), None, records=32, batch=32)
    losses: list[float] = []
    state = Trainer(objective, optax.adam(1e-2), key=jax.random.key(0)).fit(
        data,
        steps=30,
        log_every=10,
        variables=traced.variables,
        on_report=lambda scalars, step: losses.append(scalars["train/loss"]),
        progress=Silent(),
    )
    assert losses[-1] < 0.7 * losses[0]
    moved = state.params["buffers"]["norm.running_mean"]
    assert not np.allclose(moved, traced.variables["buffers"]["norm.running_mean"])


def test_dropout_draws_from_the_key(convolutional):
    _, traced = convolutional
    x = np.ones((64, 3, 7, 7), np.float32)
    one, same, other = (
        traced.apply(traced.variables, x, train=True, rngs=jax.random.key(seed))
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_transformer_by_names_takes_any_batch_and_length(bert):
    module, traced = bert
    for shape in ((2, 9), (3, 12), (5, 4)):
        ids = torch.randint(0, 100, shape)
        mask = torch.ones_like(ids)
        mask[0, shape[1] // 2 :] = 0
        ours = traced(input_ids=ids.numpy(), attention_mask=mask.numpy())
        theirs = module(input_ids=ids, attention_mask=mask)
        assert isinstance(ours, Output)
        assert list(ours) == list(theirs)
        close(ours.last_hidden_state, theirs.last_hidden_state)
        close(ours[1], theirs[1])
    assert len(traced._tracer.programs[False]) == 1


def test_named_outputs_cross_jit_and_keep_their_names(bert):
    _, traced = bert
    ids = np.zeros((1, 4), np.int32)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    doubled = jax.tree.map(lambda leaf: 2 * leaf, traced(**inputs))
    assert isinstance(doubled, Output)
    assert doubled["pooler_output"] is doubled.pooler_output
    with pytest.raises(AttributeError, match="no output 'logits'; there are last_hidden_state"):
        _ = doubled.logits


def test_outputs_keep_their_names_in_whatever_order_the_model_set_them():
    """torch rebuilds an output, which brings its fields into another order; right: eager torch."""
    from transformers import BertConfig, BertPreTrainedModel
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    class Late(BertPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.table = nn.Embedding(config.vocab_size, config.hidden_size)
            self.post_init()

        def forward(self, input_ids=None):
            states = self.table(input_ids)
            outputs = BaseModelOutputWithPooling(last_hidden_state=states)
            outputs["hidden_states"] = (None, states + 1)
            outputs["pooler_output"] = states[:, 0]
            return {"image_outputs": outputs}

    module = Late(BertConfig(hidden_size=8, vocab_size=30)).eval()
    ids = torch.arange(6).reshape(2, 3)
    ours, theirs = from_torch(module, {"input_ids": ids})(input_ids=ids.numpy()), module(ids)
    ours, theirs = ours["image_outputs"], theirs["image_outputs"]
    for name in ("last_hidden_state", "pooler_output"):
        np.testing.assert_array_equal(ours[name], theirs[name].detach())
    assert ours["hidden_states"][0] is None
    np.testing.assert_array_equal(ours["hidden_states"][1], theirs["hidden_states"][1].detach())


def test_tied_parameters_are_one_leaf_and_their_gradients_add_up():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 3)
            self.head = nn.Linear(3, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.embed(ids))

    module, ids = Tied(), torch.tensor([[1, 2, 1]])
    traced = from_torch(module, (ids,))
    assert list(traced.variables["params"]) == ["embed.weight"]
    module(ids).square().sum().backward()

    def loss(params):
        return jnp.sum(traced.apply({"params": params, "buffers": {}}, ids.numpy()) ** 2)

    gradient = jax.grad(loss)(traced.variables["params"])["embed.weight"]
    close(gradient, module.embed.weight.grad)


@pytest.mark.parametrize("how", ["detach", "no_grad", "handed through"])
def test_what_torch_keeps_gradients_from_gets_none(how):
    class Stopped(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3)

        def forward(self, x):
            y = self.one(x)
            if how == "detach":
                return y * y.detach()
            with torch.no_grad():
                # torch gives y itself back where `to` changes nothing, and its gradient goes on.
                scale = y.to(torch.float32) + self.one(x).contiguous()
            return y * scale if how == "no_grad" else (y + scale) * y.to(x.dtype)

    module, x = Stopped(), torch.randn(2, 3)
    module(x).sum().backward()
    traced = from_torch(module, (x,))
    gradients = jax.grad(lambda p: jnp.sum(traced.apply({"params": p, "buffers": {}}, x.numpy())))(
        traced.variables["params"]
    )
    close(gradients["one.weight"], module.one.weight.grad)


def test_the_norm_of_zeros_has_a_gradient():
    class Norm(nn.Module):
        def forward(self, x):
            return torch.linalg.vector_norm(x, dim=-1)

    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    Norm()(x).sum().backward()
    traced = from_torch(Norm(), (x.detach(),))
    ours = jax.grad(lambda value: jnp.sum(traced.apply(traced.variables, value)))(
        x.detach().numpy()
    )
    close(ours, x.grad)


def test_an_input_that_decides_shapes_is_named_static():
    class Sized(nn.Module):
        def forward(self, x, repeats):
            return torch.repeat_interleave(x, repeats, dim=0)

    x, repeats = torch.randn(3, 2), torch.tensor([2, 0, 1])
    traced = from_torch(Sized(), (x, repeats), static=(1,))
    assert np.array_equal(traced(x.numpy(), repeats.numpy()), Sized()(x, repeats))
    loose = from_torch(Sized(), (x, repeats))
    with pytest.raises(InputRefused, match=r"name it in static="):
        loose(x.numpy(), repeats.numpy())


def test_control_flow_that_reads_values_is_refused_with_its_line(capsys):
    class Branching(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x
            return -x

    with pytest.raises(NotExportable, match=r"Branching at .*test_torch_module.py:\d+: if x.sum"):
        from_torch(Branching(), (torch.randn(3),))
    assert capsys.readouterr().err == ""


def test_all_unknown_operators_are_named_at_once():
    @torch.library.custom_op("strange::one", mutates_args=())
    def one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @torch.library.custom_op("strange::two", mutates_args=())
    def two(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    for made in (one, two):
        made.register_fake(torch.empty_like)

    class Strange(nn.Module):
        def forward(self, x):
            return two(one(one(x)))

    with pytest.raises(UnknownOperator) as caught:
        from_torch(Strange(), (torch.randn(3),))
    text = str(caught.value)
    assert "strange.one.default (2 times" in text
    assert "strange.two.default (1 times" in text


def test_the_module_is_left_in_its_mode(convolutional):
    module, _ = convolutional
    module.train()
    try:
        from_torch(module, (torch.randn(1, 3, 7, 7),))
        assert module.training
    finally:
        module.eval()


def test_the_module_can_change_afterwards_without_changing_the_trace():
    module = nn.Linear(2, 2)
    traced = from_torch(module, (torch.randn(1, 2),))
    before = np.array(traced(np.ones((1, 2), np.float32)))
    with torch.no_grad():
        module.weight.zero_()
    assert np.array_equal(traced(np.ones((1, 2), np.float32)), before)

"""`bridges.to_torch`: a JAX function inside torch's autograd; the right gradients are torch's."""

from __future__ import annotations

import copy
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from helpers import hf_llama
from torch import nn

import bridges
from bridges import to_torch
from dew.errors import InputRefused

pytestmark = pytest.mark.torch


def network(params, x, *, activation="tanh"):
    hidden = getattr(jnp, activation)(x @ params["in"]["weight"].T + params["in"]["bias"])
    return {"logits": hidden @ params["out"], "hidden": (hidden,)}


wrapped = to_torch(network)


def parameters(seed=0):
    torch.manual_seed(seed)
    weight, bias, out = torch.randn(4, 3), torch.randn(4), torch.randn(4, 2)
    params = {"in": {"weight": weight, "bias": bias}, "out": out}
    return jax.tree.map(lambda leaf: leaf.requires_grad_(), params)


def torchs(params, x):
    hidden = torch.tanh(x @ params["in"]["weight"].T + params["in"]["bias"])
    return {"logits": hidden @ params["out"], "hidden": (hidden,)}


def test_values_and_gradients_are_torchs_through_trees():
    ours, theirs = parameters(), parameters()
    x = torch.randn(5, 3)
    out, expected = wrapped(ours, x), torchs(theirs, x)
    assert list(out) == sorted(expected)
    assert isinstance(out["hidden"], tuple)
    torch.testing.assert_close(out, dict(sorted(expected.items())))
    for made in (out, expected):
        (made["logits"].square().sum() + made["hidden"][0].sin().sum()).backward()
    for name, leaf in {"w": ours["in"]["weight"], "o": ours["out"]}.items():
        other = {"w": theirs["in"]["weight"], "o": theirs["out"]}[name]
        torch.testing.assert_close(leaf.grad, other.grad)
    assert x.grad is None


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_torch_optimizer_trains_it_as_it_trains_torchs_own(optimizer):
    ours, theirs = parameters(), parameters()
    x, target = torch.randn(16, 3), torch.randn(16, 2)
    losses = []
    for params, call in ((ours, wrapped), (theirs, torchs)):
        stepper = optimizer(jax.tree.leaves(params), lr=1e-2)
        for _ in range(20):
            stepper.zero_grad()
            loss = nn.functional.mse_loss(call(params, x)["logits"], target)
            loss.backward()
            stepper.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_gradcheck_in_float64():
    """torch's own check by finite differences, with complex numbers too."""

    def fn(x, z, scale):
        return jnp.sin(x) @ x.T * scale, z * jnp.conj(z[0]) + x.sum(), jnp.abs(z)

    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    z = torch.randn(2, dtype=torch.complex128, requires_grad=True)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    with jax.enable_x64(True):
        assert torch.autograd.gradcheck(to_torch(fn), (x, z, scale))


def test_gradients_come_in_the_dtype_of_their_tensors():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    half = torch.randn(4).bfloat16().requires_grad_()
    out = to_torch(lambda x, y: (x * x, y * 2))(x, half)
    assert [part.dtype for part in out] == [torch.float32, torch.bfloat16]
    (out[0].sum() + out[1].float().sum()).backward()
    assert x.grad.dtype == torch.float64
    torch.testing.assert_close(x.grad, 2 * x.detach(), rtol=1e-6, atol=1e-6)
    assert half.grad.dtype == torch.bfloat16
    assert half.grad.tolist() == [2, 2, 2, 2]


def test_integers_in_and_out_have_no_gradients_and_unused_outputs_none():
    table = torch.randn(5, 2, requires_grad=True)
    ids = torch.tensor([3, 0, 3])
    look_up = to_torch(lambda table, ids: (table[ids], ids + 1, jnp.argmax(table, 1), table * 3))
    rows, more, best, _ = look_up(table, ids)
    assert more.dtype == torch.int32
    assert more.tolist() == [4, 1, 4]
    assert not more.requires_grad
    assert not best.requires_grad
    assert best.tolist() == table.argmax(1).tolist()
    rows.sum().backward()
    assert table.grad[:, 0].tolist() == [1, 0, 0, 2, 0]
    assert ids.grad is None


def test_an_argument_that_the_output_does_not_depend_on_has_a_zero_gradient():
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    to_torch(lambda x, y: x + jax.lax.stop_gradient(y))(x, y).sum().backward()
    assert x.grad.tolist() == [1, 1, 1]
    assert y.grad.tolist() == [0, 0, 0]


def test_under_no_grad_and_without_parameters_nothing_is_kept():
    x = torch.randn(3, requires_grad=True)
    square = to_torch(lambda x: x * x)
    with torch.no_grad():
        assert not square(x).requires_grad
    assert not square(x.detach()).requires_grad
    assert square(x).requires_grad


def test_a_second_derivative_is_refused_and_one_inside_the_function_is_right():
    x = torch.randn(3, requires_grad=True)
    (first,) = torch.autograd.grad(to_torch(lambda x: x**3)(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, 3 * x.detach() ** 2)
    with pytest.raises(InputRefused, match="no derivative of the derivative"):
        (x.sum() + first.square().sum()).backward()
    x.grad = None
    inner = to_torch(jax.grad(lambda x: (x**3).sum()))
    inner(x).sum().backward()
    torch.testing.assert_close(x.grad, 6 * x.detach())


def test_the_graph_is_freed_by_backward_and_kept_where_asked():
    x = torch.randn(3, requires_grad=True)
    out = to_torch(lambda x: jnp.sin(x) * x)(x).sum()
    out.backward(retain_graph=True)
    once = x.grad.clone()
    out.backward()
    torch.testing.assert_close(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_an_input_changed_before_backward_is_an_error_only_where_it_matters():
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    product = to_torch(lambda x, y: x * y)(x, y)
    y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    total = to_torch(lambda x, y: x + y)(x, y)
    y += 1
    total.sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("jit", [True, False])
def test_outputs_may_be_written_to(jit):
    """Outputs that XLA or Python would give twice, or as the input itself, are memory apart."""
    x = torch.arange(3.0, requires_grad=True)
    constant = jnp.ones(3)
    fn = to_torch(lambda x: (x, x, e := jnp.exp(x), e, constant), jit=jit)
    parts = fn(x)
    with torch.no_grad():
        parts[4].add_(1)
    assert constant.tolist() == [1, 1, 1]
    copies = [part.clone() for part in parts]
    changed = parts[2].mul_(0)
    assert changed.tolist() == [0, 0, 0]
    torch.testing.assert_close(parts[3], copies[3])
    torch.testing.assert_close(x.detach(), torch.arange(3.0))
    (changed.sum() + parts[3].sum() + parts[0].sum()).backward()
    torch.testing.assert_close(x.grad, x.detach().exp() + 1)


def test_what_is_no_tensor_is_known_when_compiling_and_compiled_anew_when_it_changes():
    compiled = []

    def fn(x, *, power, name="none"):
        compiled.append((power, name))
        return x**power, name

    call, x = to_torch(fn), torch.tensor([2.0, 3.0])
    assert call(x, power=2)[0].tolist() == [4, 9]
    assert call(x, power=3, name="cube")[1] == "cube"
    assert call(x, power=2)[0].tolist() == [4, 9]
    assert compiled == [(2, "none"), (3, "cube")]
    call(x, power=2.0)
    call(x, power=True)
    assert len(compiled) == 4
    call(x, power=torch.tensor(2))
    call(x, power=torch.tensor(3))
    assert len(compiled) == 5
    with pytest.raises(InputRefused, match=r"set.*hashed"):
        call(x, power={1, 2})


def test_numpy_and_jax_arrays_and_keys_go_in_without_gradients():
    key = jax.random.key(0)

    @jax.checkpoint
    def noisy(x, key, scale):
        return x * jax.random.uniform(key, x.shape) * scale

    x = torch.ones(4, requires_grad=True)
    scale = np.full(4, 2.0)
    out = to_torch(noisy)(x, key, scale)
    scale[:] = 0
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())
    expected = 2 * jax.random.uniform(key, (4,))
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-6)


def test_shapes_that_change_give_the_right_structure():
    call = to_torch(lambda x: [x] * x.shape[0])
    assert len(call(torch.ones(2))) == 2
    assert len(call(torch.ones(3))) == 3
    assert call(torch.ones(0)) == []


def test_empty_scalar_and_strided_tensors():
    call = to_torch(lambda x: (x * 2).sum())
    for x in (torch.ones(0, 3), torch.tensor(3.0), torch.ones(4, 6)[:, ::2], torch.ones(3, 2).t()):
        leaf = x.clone().requires_grad_()
        out = call(leaf if x.is_contiguous() else leaf.expand_as(leaf))
        assert out.shape == ()
        out.backward()
        assert leaf.grad.shape == x.shape
        assert (leaf.grad == 2).all()


def test_it_stands_between_torch_layers():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    other = copy.deepcopy(layers)
    x = torch.randn(6, 3)
    layers[2](to_torch(jnp.tanh)(layers[0](x))).sum().backward()
    other(x).sum().backward()
    for ours, theirs in zip(layers.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_what_a_call_keeps_goes_when_its_graph_goes():
    x = torch.ones(1000, requires_grad=True)
    call = to_torch(lambda x: jnp.sin(jnp.exp(x)))
    call(x).sum().backward()
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(5):
        call(x).sum().backward()
    gc.collect()
    assert len(jax.live_arrays()) <= before


def test_a_sparse_tensor_is_refused():
    with pytest.raises(InputRefused, match="sparse"):
        to_torch(jnp.sin)(torch.eye(2).to_sparse())


def test_a_dew_model_trains_in_a_torch_loop_as_transformers_model_does(tmp_path):
    """The docstring's example: losses and the embedding after three steps are torch's."""
    torch.manual_seed(0)
    theirs = hf_llama()
    theirs.save_pretrained(tmp_path)
    bundle = bridges.load(tmp_path)
    model = to_torch(lambda params, ids: bundle.apply({"params": params}, input_ids=ids)["logits"])
    params = bridges.tensors.to_torch(bundle.variables["params"], copy=True)
    leaves = [leaf.requires_grad_() for leaf in jax.tree.leaves(params)]
    ids = torch.randint(0, 96, (2, 8))
    calls = [
        (lambda: model(params, ids), torch.optim.SGD(leaves, lr=0.5)),
        (lambda: theirs(input_ids=ids).logits, torch.optim.SGD(theirs.parameters(), lr=0.5)),
    ]
    losses = {0: [], 1: []}
    for _ in range(4):
        for side, (call, optimizer) in enumerate(calls):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(call()[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses[side].append(loss.item())
    assert losses[0][-1] < losses[0][0] - 0.1
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-5)
    table = params["embed"]["table"]
    torch.testing.assert_close(table, theirs.get_input_embeddings().weight, rtol=1e-4, atol=1e-5)


def test_the_name_is_bridges():
    assert bridges.to_torch is to_torch
    assert wrapped.__name__ == "network"

"""Kernels stored narrow: bitsandbytes' codes and values, and training beside them."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import llama_config, llama_tensors, write_checkpoint

from bridges.adapter_quantized import quantize
from bridges.adapter_settings import AdapterSettings
from bridges.adapters import laid_over, lora_of, merge
from bridges.exporting import export
from bridges.loading import load
from dew.errors import InputRefused
from dew.nn.dense import linear, product
from dew.nn.quantized import NORMAL_FLOAT, quantized, widened
from dew.objectives.base import Step
from dew.objectives.lm import LoRAObjective

IDS = np.array([[5, 7, 11, 13, 2], [3, 1, 4, 1, 5]])
KINDS = ("nf4", pytest.param("int8", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    config = llama_config()
    return load(write_checkpoint(tmp_path_factory.mktemp("llama"), config, llama_tensors(config)))


def weight() -> np.ndarray:
    """Return a weight [outputs, inputs] as torch stores it."""
    return np.random.default_rng(0).standard_normal((48, 128)).astype(np.float32) * 0.1


def digest(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def test_nf4_has_the_codes_and_the_values_of_bitsandbytes():
    # Stored: quantize_4bit and dequantize_4bit of bitsandbytes 0.50.2 on CPU, blocks of 64.
    found = quantized(weight().T, "nf4", inputs=1, stacked=False)
    assert digest(found.codes) == "c1a5b6ce7bed1cf6"
    assert digest(np.asarray(found).T) == "356437a3a2cb47f2"


def test_int8_is_the_nearest_of_127_steps_a_row():
    found = quantized(weight().T, "int8", inputs=1, stacked=False)
    largest = np.abs(weight()).max(axis=1, keepdims=True)
    codes = np.rint(weight().astype(np.float64) * 127 / largest)
    np.testing.assert_array_equal(found.codes, codes)
    np.testing.assert_allclose(np.asarray(found).T, codes * largest / 127, rtol=1e-6)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(48, 128), (7, 9), (64, 1)])
def test_bitsandbytes_agrees_where_it_is_installed(shape):
    functional = pytest.importorskip("bitsandbytes.functional")
    import torch

    torch_weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    codes, state = functional.quantize_4bit(torch_weight, blocksize=64, quant_type="nf4")
    wanted = functional.dequantize_4bit(codes, state).numpy()
    found = np.asarray(quantized(torch_weight.numpy().T, "nf4", inputs=1, stacked=False)).T
    np.testing.assert_array_equal(found, wanted)
    codes, largest, _ = functional.int8_vectorwise_quant(torch_weight)
    found = quantized(torch_weight.numpy().T, "int8", inputs=1, stacked=False)
    np.testing.assert_array_equal(found.codes, codes.numpy())
    np.testing.assert_array_equal(found.absmax, largest.numpy())


def test_the_table_is_the_papers():
    """Dettmers et al. 2023, appendix E: quantiles of the normal distribution, scaled to 1."""
    from statistics import NormalDist

    normal, edge = NormalDist(), 0.9677083
    upper = [normal.inv_cdf(q) for q in np.linspace(edge, 0.5, 9)[:-1]]
    lower = [-normal.inv_cdf(q) for q in np.linspace(edge, 0.5, 8)[:-1]]
    values = np.sort([*upper, 0.0, *lower]) / upper[0]
    np.testing.assert_allclose(NORMAL_FLOAT, values, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("int8", (2, 6, 3, 5)), pytest.param("nf4", (3, 2, 5, 7), marks=pytest.mark.slow)],
)
def test_a_layers_kernel_is_a_part_of_the_stack_and_rows_of_zeros_stay(kind, shape):
    kernel = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    kernel[0, ..., 0] = 0
    stack = quantized(kernel, kind, inputs=1, stacked=True)
    assert stack.shape == shape
    wide = np.asarray(stack)
    assert np.abs(wide - kernel).max() < (0.02 if kind == "int8" else 0.6)
    if kind == "int8":
        assert not wide[0, ..., 0].any()
    for layer, part in enumerate(kernel):
        alone = quantized(part, kind, inputs=1, stacked=False)
        np.testing.assert_array_equal(np.asarray(alone), wide[layer])
        np.testing.assert_array_equal(np.asarray(stack[layer]), wide[layer])


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_and_its_gradient_are_the_wide_kernels(kind):
    kernel = quantized(
        np.random.default_rng(2).standard_normal((2, 5, 3)), kind, inputs=2, stacked=False
    )
    x = jnp.asarray(np.random.default_rng(3).standard_normal((4, 2, 5)), jnp.float32)

    def loss(of: Any, held: Any) -> Any:
        return lambda x: jnp.sum(jnp.sin(of(x, held, 2)))

    ours = jax.value_and_grad(loss(product, kernel))(x)
    theirs = jax.value_and_grad(loss(linear, kernel.wide()))(x)
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_learn_beside_a_narrow_base_as_beside_its_wide_values(kind, llama):
    narrow = quantize(llama, kind)
    wide = llama.replace(variables=widened(narrow.variables))
    settings = AdapterSettings(2, 4.0, None, dora=kind == "nf4", dropout=0.1)
    batch = {"text": jnp.asarray(np.arange(24).reshape(2, 12) % 300, jnp.int32)}
    step = Step(jnp.int32(0), jax.random.key(1))
    found = []
    for bundle in (narrow, wide):
        lora = lora_of(bundle, settings)
        objective = LoRAObjective(bundle.model, 11, lora)
        held = objective.init(jax.random.key(0), bundle.variables)
        params = jax.tree.map(lambda leaf: leaf + 0.05, held["params"])

        def loss(params: Any, held: Any = held, objective: Any = objective) -> Any:
            return objective.loss({**held, "params": params}, batch, step).value

        found.append(jax.jit(jax.value_and_grad(loss))(params))
    for ours, theirs in zip(jax.tree.leaves(found[0]), jax.tree.leaves(found[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_narrow_model_computes_generates_and_merges_as_its_wide_values(kind, llama):
    narrow = quantize(llama, kind)
    kernels = narrow.variables["params"]["layers"]["mlp"]["up"]["kernel"]
    full = llama.variables["params"]["layers"]["mlp"]["up"]["kernel"].nbytes
    # A byte or half a byte a value, and float32 for each row of 32 or each 64 values.
    assert kernels.nbytes == full / 4 * (1 + 4 / 32 if kind == "int8" else 0.5 + 4 / 64)
    wide = llama.replace(variables=widened(narrow.variables))
    ours, theirs = (np.asarray(b(input_ids=IDS)["logits"]) for b in (narrow, wide))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    lora = lora_of(narrow, AdapterSettings(2, 4.0, ("q_proj",)))
    tree = lora.init(jax.random.key(0), narrow.variables["params"])
    over = laid_over(narrow, lora, jax.tree.map(lambda leaf: leaf + 0.1, tree))
    merged = merge(over)
    np.testing.assert_allclose(
        merged(input_ids=IDS)["logits"], over(input_ids=IDS)["logits"], atol=1e-5
    )
    if kind == "int8":
        ids = [b.generate(IDS[:, :3], max_new_tokens=3, do_sample=False) for b in (narrow, wide)]
        np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_loaded_narrow_and_written_as_its_wide_values(kind, llama, tmp_path):
    """Oracle: the checkpoint loaded whole and stored narrow then; bytes of its wide values."""
    found, wanted = load(llama.source, quantize=kind), quantize(llama, kind)
    jax.tree.map(np.testing.assert_array_equal, found.variables, wanted.variables)
    export(found, tmp_path / "out")
    again = load(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, again.variables, widened(wanted.variables))


def test_what_cannot_be_stored_narrow_is_refused(llama):
    with pytest.raises(InputRefused, match="did you mean 'int8'"):
        load(llama.source, quantize="int4")
    with pytest.raises(InputRefused, match="llama is traced, and only native models"):
        load(llama.source, quantize="nf4", traced="always")
    with pytest.raises(InputRefused, match="no way 'int4' to store weights; did you mean 'int8'"):
        quantize(llama, "int4")
    lora = lora_of(llama, AdapterSettings(2, 4.0, ("q_proj",)))
    over = laid_over(llama, lora, lora.init(jax.random.key(0), llama.variables["params"]))
    with pytest.raises(InputRefused, match="before it is laid over"):
        quantize(over, "nf4")

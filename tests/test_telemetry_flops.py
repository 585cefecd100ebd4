"""Work and memory: counted from the program, against closed forms and XLA where it counts right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm import LMObjective
from dew.telemetry.flops import PEAKS, peak_flops, traced_flops
from dew.telemetry.memory import peak_memory
from dew.training.compiled import forward_backward_flops
from dew.training.meter import Meter
from dew.training.state import first_state

W = jnp.ones((8, 64, 64))
X = jnp.ones((32, 64))
PRODUCT = 2 * 32 * 64 * 64


def test_a_product_is_two_flops_a_multiply_add_as_xla_counts():
    analysis = jax.jit(jnp.matmul).lower(X, W[0]).compile().cost_analysis()
    assert traced_flops(jnp.matmul, X, W[0]) == PRODUCT == analysis["flops"]
    batched = traced_flops(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), W, W)
    assert batched == 8 * 2 * 64**3


def test_a_scan_counts_by_its_length():
    """XLA counts its body once, which is why dew counts by itself."""

    def scanned(w, x):
        return lax.scan(lambda h, one: (h @ one, None), x, w)[0]

    assert traced_flops(jax.jit(scanned), W, X) == 8 * PRODUCT
    assert traced_flops(jax.checkpoint(scanned), W, X) == 8 * PRODUCT
    assert jax.jit(scanned).lower(W, X).compile().cost_analysis()["flops"] < 2 * PRODUCT


def test_a_conditional_counts_by_its_dearest_branch():
    def chosen(x, w):
        return lax.cond(x[0, 0] > 0, lambda: x @ w[0] @ w[1], lambda: x @ w[0])

    assert traced_flops(chosen, X, W) == 2 * PRODUCT


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_counts_as_xla_counts_it(groups):
    x = jnp.ones((2, 9, 9, 4))
    kernel = jnp.ones((3, 3, 4 // groups, 8))

    def convolved(x, kernel):
        return lax.conv_general_dilated(
            x,
            kernel,
            (2, 2),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    counted = traced_flops(convolved, x, kernel)
    assert counted == 2 * (3 * 3 * 4 / groups) * (2 * 4 * 4 * 8)
    assert counted == jax.jit(convolved).lower(x, kernel).compile().cost_analysis()["flops"]


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_language_models_step_is_three_forward_passes(kv_heads):
    """Closed form: two FLOPs a weight and token, attention's two products, the output table.

    P026: heads that share keys and values make the count smaller.
    """
    width, inner, layers, vocabulary, rows, length = 32, 64, 3, 50, 4, 16
    model = CausalTransformer(
        vocab_size=vocabulary,
        emb_features=width,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=kv_heads,
        mlp_features=inner,
        max_seq_len=length,
        dtype="float32",
        attention_impl="xla",
    )
    objective = LMObjective(model, seq_len=length)
    key = jax.random.key(0)
    variables = jax.eval_shape(objective.init, key)
    import optax

    state = jax.eval_shape(
        lambda v, k: first_state(v, optax.sgd(0.1), key=k, ema=None, accumulation=1), variables, key
    )
    batch = {"text": jax.ShapeDtypeStruct((rows, length + 1), jnp.int32)}
    mlp = jax.tree.leaves(variables["params"]["layers"]["mlp"])
    attention = 2 * width * width + 2 * width * (width // 4) * kv_heads
    kernels = layers * attention + sum(leaf.size for leaf in mlp if leaf.ndim == 3)
    tokens = rows * length
    forward = 2 * tokens * kernels + layers * 2 * 2 * tokens * length * width
    forward += 2 * tokens * width * vocabulary
    assert forward_backward_flops(objective, state, {}, batch) == 3 * forward

    class Knowing(LMObjective):
        def step_flops(self, variables, batch):
            return 5

    assert forward_backward_flops(Knowing(model, seq_len=length), state, {}, batch) == 5.0


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v9", None),
        ("NVIDIA L400", None),
        ("cpu", None),
    ],
)
def test_the_peak_goes_by_the_device_kind_and_is_none_where_unknown(kind, peak):
    assert peak_flops(kind) == peak


def test_peak_memory_holds_what_was_held_and_does_not_fall():
    """Linux counts pages in batches a thread, so its peak may read a little lower later on."""
    size = 256 * 2**20
    held = np.ones(size, np.uint8)
    assert held.sum() == size
    after = peak_memory()
    assert after is not None
    assert size < after < size + 2**33
    del held
    assert peak_memory() > 0.99 * after


def test_a_meter_gives_rates_of_the_interval_and_mfu_where_the_peak_is_known(monkeypatch):
    meter = Meter()
    report = {"total": 1.0, "mass": 1.0, "updated": False, "aux": {}}
    for flops in (3e9, 1e9):
        meter.add(report, flops)
    values = meter.scalars()
    seconds = values["train/step_seconds"] * 2
    rate = 4e9 / jax.device_count() / seconds
    assert values["train/tflops_per_device"] == pytest.approx(rate / 1e12)
    assert values["train/peak_memory_gib"] > 0
    assert "train/mfu" not in values, "the peak of a CPU is not known"
    monkeypatch.setitem(PEAKS, jax.devices()[0].device_kind, 1e10)
    meter.reset()
    meter.add(report, 4e9)
    values = meter.scalars()
    expected = values["train/tflops_per_device"] * 1e12 / 1e10
    assert values["train/mfu"] == pytest.approx(expected)
    meter.reset()
    meter.add(report)
    assert not {"train/mfu", "train/tflops_per_device"} & set(meter.scalars())

"""`parity.compare` on a user's own pairs: the rule of float64, a stated tolerance, both sides."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import parity

X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    """Return it as numpy computes it, in the precision of its input."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_a_right_function_is_held_to_float64_of_its_reference() -> None:
    """numpy's own float64 is the measure."""
    verdict = parity.compare(lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True), softmax, X)
    assert verdict.passed, verdict
    assert 0 < verdict.figures["ours"] <= verdict.figures["allowed"]
    assert verdict.tolerance.startswith("float32 error <= 2 x")


def test_an_error_of_three_roundings_fails_the_rule() -> None:
    verdict = parity.compare(lambda x: softmax(x) * (1 + 1e-5), softmax, X)
    assert not verdict.passed
    assert verdict.reason.startswith("1 of 1 differ: output is off by")


def test_arguments_go_by_place_or_by_name_and_integers_stay() -> None:
    def taken(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
        assert ids.dtype == np.int32
        return table[ids]

    ids = np.array([3, 0, 7], np.int32)
    assert parity.compare(taken, taken, (X, ids)).passed
    assert parity.compare(taken, taken, {"ids": ids, "table": X}).passed


@pytest.mark.torch
def test_a_module_of_torch_runs_on_tensors_and_its_copy_in_float64() -> None:
    """torch.nn.Linear is the reference; its own weights stay float32."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(16, 4)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(W.T))
    bias = module.bias.detach().numpy()
    verdict = parity.compare(lambda x: jnp.asarray(x) @ W + bias, module, X)
    assert verdict.passed, verdict
    assert module.weight.dtype == torch.float32
    of_tensors = parity.compare(lambda x: x @ W + bias, module, torch.tensor(X))
    assert of_tensors.passed, of_tensors
    assert not parity.compare(lambda x: x @ W, module, X).passed


def test_a_reference_without_float64_needs_a_tolerance() -> None:
    def single(x: np.ndarray) -> np.ndarray:
        return np.tanh(x.astype(np.float32))

    verdict = parity.compare(np.tanh, single, X)
    assert not verdict.passed
    assert verdict.reason.startswith("not proven: of float64 inputs the reference makes float32")
    assert parity.compare(np.tanh, single, X, tolerance=1e-6).passed


def test_a_stated_tolerance_is_of_the_largest_value() -> None:
    """Closed form: an error of 3 where the largest value is 1000."""
    wanted = np.array([1000.0, 1.0, -2.0])
    near = parity.compare(lambda x: x + 3, lambda x: x, wanted, tolerance=0.0031)
    assert near.passed, near
    assert near.figures["difference"] == pytest.approx(0.003)
    far = parity.compare(lambda x: x + 3, lambda x: x, wanted, tolerance=0.0029)
    assert far.reason == "output is off by 3.00e-03 of its largest value (allowed 0.0029)"


@pytest.mark.parametrize("tolerance", [None, 1.0])
def test_nan_is_no_agreement(tolerance: float | None) -> None:
    verdict = parity.compare(lambda x: x * np.nan, softmax, X, tolerance=tolerance)
    assert not verdict.passed


def test_outputs_are_matched_by_name_and_shape() -> None:
    def both(x: np.ndarray) -> dict[str, np.ndarray]:
        return {"sum": x.sum(-1), "top": x.max(-1)}

    assert parity.compare(both, both, X).figures["tensors"] == 2
    lacking = parity.compare(lambda x: {"sum": x.sum(-1)}, both, X)
    assert lacking.reason == "ours gives sum; the reference sum, top"
    flat = parity.compare(lambda x: x.reshape(-1), lambda x: x, X, tolerance=1.0)
    assert flat.reason == "output: ours has shape (128,), the reference (8, 16)"


@pytest.mark.parametrize("side", ["ours", "the reference"])
def test_a_side_that_raises_is_a_verdict_that_names_it(side: str) -> None:
    def broken(x: np.ndarray) -> np.ndarray:
        raise RuntimeError("no such luck")

    pair = (broken, softmax) if side == "ours" else (softmax, broken)
    verdict = parity.compare(*pair, X, name="softmax", subject="mine")
    assert not verdict.passed
    assert verdict.reason == f"not proven: {side} raised RuntimeError: no such luck"
    assert (verdict.name, verdict.subject) == ("softmax", "mine")

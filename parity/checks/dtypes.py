"""Does dew round as torch does in bfloat16 and in float16?"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from parity import inputs as model_inputs
from parity import reference
from parity.check import Finding
from parity.checks.logits import SHORT
from parity.inputs import Inputs
from parity.rounding import TWICE, Deviation, deviation, judged
from parity.subject import Subject

DTYPES = ("bfloat16", "float16")

Answers = dict[str, dict[str, np.ndarray]]


class Dtypes:
    """Every output, with weights and activations in half precision, at real positions."""

    name = "dtypes"
    tolerance = (
        f"error in {' and '.join(DTYPES)} <= {TWICE:g} x torch's in that dtype + 1 ulp of scale in "
        "it, against float64 torch"
    )

    def inputs(self, subject: Subject, seed: int) -> Inputs:
        """Return a batch."""
        return model_inputs.batch(subject, min(SHORT, subject.context), seed)

    def ours(self, subject: Subject, inputs: Inputs) -> Answers:
        """Return dew's outputs in each dtype."""
        return {
            dtype: _wide(model_inputs.outputs(in_dtype(subject, dtype), inputs), inputs)
            for dtype in DTYPES
        }

    def reference(
        self, subject: Subject, inputs: Inputs
    ) -> tuple[Answers, dict[str, np.ndarray], dict[str, str]]:
        """Return torch's outputs in each dtype, its float64 ones, and why a dtype is absent."""
        found, absent = {}, {}
        exact = reference.outputs(subject.checkpoint.model(reference.EXACT), inputs)
        for dtype in DTYPES:
            try:
                model = subject.checkpoint.fresh_model(dtype)
                found[dtype] = _wide(reference.outputs(model, inputs), inputs)
            except (RuntimeError, NotImplementedError) as error:
                # An operator that torch has no half-precision form of on this device.
                absent[dtype] = str(error).splitlines()[0]
        return found, _wide(exact, inputs), absent

    def compare(
        self,
        ours: Answers,
        reference: tuple[Answers, dict[str, np.ndarray], dict[str, str]],
    ) -> Finding:
        """Hold each output in each dtype to the rule."""
        halves, exact, absent = reference
        found = [
            _judged_in(dtype, name, ours[dtype], answers, value)
            for dtype, answers in halves.items()
            for name, value in exact.items()
        ]
        if not found:
            return Finding(False, {}, f"torch computes in neither: {absent}")
        return judged(found, **{f"absent_{dtype}": text for dtype, text in absent.items()})


def in_dtype(subject: Subject, dtype: str) -> Subject:
    """Return a native subject with weights and activations in `dtype`."""
    import jax

    bundle = subject.bundle
    variables = jax.tree.map(lambda leaf: leaf.astype(dtype), dict(bundle.variables))
    model = bundle.model.clone(dtype=dtype, param_dtype=dtype)
    return dataclasses.replace(subject, bundle=bundle.replace(model=model, variables=variables))


def _judged_in(
    dtype: str,
    name: str,
    ours: Mapping[str, np.ndarray],
    torch: Mapping[str, np.ndarray],
    exact: np.ndarray,
) -> Deviation:
    scale = float(np.abs(exact).max()) * _step(dtype) / _step("float32")
    return deviation(f"{name} in {dtype}", ours[name], torch[name], exact, scale=scale)


def _step(dtype: str) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def _wide(found: Mapping[str, Any], inputs: Inputs) -> dict[str, np.ndarray]:
    kept = model_inputs.real({name: np.asarray(value) for name, value in found.items()}, inputs)
    return {name: value.astype(np.float64) for name, value in kept.items()}

"""A user's own pair of functions, held to each other as dew is held to torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parity.check import NOT_PROVEN, Finding, Verdict
from parity.rounding import RULE, deviations, judged

Arrays = dict[str, np.ndarray]

DOUBLE = "float64"


def compare(
    ours: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Any,
    *,
    tolerance: float | None = None,
    name: str = "compare",
    subject: str = "",
) -> Verdict:
    """Return whether a function gives what its reference gives.

    The inputs go to both as they are; a `torch.nn.Module` gets tensors, and where the inputs are
    tensors `ours` gets arrays. Without a tolerance the reference also runs on inputs in float64 (a
    module's copy in float64), which is then the measure: our error may be twice the reference's
    own plus one unit in the last place. jax's products run at the highest precision.

    Args:
        ours: the function to judge.
        reference: the function to hold it to.
        inputs: an array; a list or tuple of arguments; or a mapping of named ones.
        tolerance: the largest difference that passes, as a share of the reference's largest
            value; None for the rule above.
        name: of the comparison, in reports.
        subject: what is compared, in reports.

    Returns:
        The verdict. An error of either side is a verdict that did not pass, and so is a reference
        that has no float64 form where no tolerance is stated.
    """
    start = time.perf_counter()
    side = "ours"
    try:
        found = _ours(ours, inputs)
        side = "the reference"
        single = _called(reference, inputs, "")
        finding = (
            _by_rule(found, single, reference, inputs)
            if tolerance is None
            else _within(found, single, tolerance)
        )
    except Exception as error:
        text = str(error).strip() or "no message"
        finding = Finding(False, {}, f"{NOT_PROVEN}{side} raised {type(error).__name__}: {text}")
    return Verdict(
        name,
        finding.passed,
        finding.figures,
        RULE if tolerance is None else f"difference <= {tolerance:g} of the largest value",
        finding.reason,
        time.perf_counter() - start,
        subject,
        plots=finding.plots,
    )


def _by_rule(ours: Arrays, single: Arrays, reference: Callable[..., Any], inputs: Any) -> Finding:
    advice = "state a tolerance"
    try:
        exact = _called(reference, inputs, DOUBLE)
    except Exception as error:
        text = f"the reference has no float64 form ({type(error).__name__}: {error})"
        return Finding(False, {}, f"{NOT_PROVEN}{text}; {advice}")
    narrow = [name for name, value in exact.items() if value.dtype != np.float64]
    if narrow:
        kind = exact[narrow[0]].dtype
        text = f"of float64 inputs the reference makes {kind} {narrow[0]}"
        return Finding(False, {}, f"{NOT_PROVEN}{text}; {advice}")
    problem = _unlike(ours, exact)
    return Finding(False, {}, problem) if problem else judged(deviations(ours, single, exact))


def _within(ours: Arrays, wanted: Arrays, tolerance: float) -> Finding:
    problem = _unlike(ours, wanted)
    if problem:
        return Finding(False, {}, problem)
    shares = {name: _share(ours[name], value) for name, value in wanted.items()}
    # nan is larger than anything: it is no agreement.
    worst = max(shares, key=lambda name: np.inf if np.isnan(shares[name]) else shares[name])
    figures = {"difference": shares[worst], "worst": worst, "outputs": len(shares)}
    if shares[worst] <= tolerance:
        return Finding(True, figures)
    reason = f"{worst} is off by {shares[worst]:.2e} of its largest value"
    return Finding(False, figures, f"{reason} (allowed {tolerance:g})")


def _share(ours: np.ndarray, wanted: np.ndarray) -> float:
    difference = np.abs(ours.astype(np.float64) - wanted.astype(np.float64))
    if not difference.size:
        return 0.0
    largest = float(np.abs(wanted).max())
    error = float(difference.max())
    return error / largest if largest else (0.0 if error == 0 else float("inf"))


def _unlike(ours: Arrays, wanted: Arrays) -> str:
    """Return how the outputs differ in number, name or shape, or nothing."""
    if set(ours) != set(wanted):
        return f"ours gives {', '.join(sorted(ours))}; the reference {', '.join(sorted(wanted))}"
    for name, value in wanted.items():
        if ours[name].shape != value.shape:
            return f"{name}: ours has shape {ours[name].shape}, the reference {value.shape}"
    return ""


def _ours(function: Callable[..., Any], inputs: Any) -> Arrays:
    import jax

    with jax.default_matmul_precision("highest"):
        return _outputs(_applied(function, _mapped(_as_array, inputs)))


def _called(function: Callable[..., Any], inputs: Any, precision: str) -> Arrays:
    """Return what the reference gives, of inputs in float64 where that is asked."""
    if not _is_module(function):
        return _outputs(_applied(function, _mapped(lambda part: _cast(part, precision), inputs)))
    import copy

    import torch

    module = copy.deepcopy(function).double() if precision else function
    given = _mapped(lambda part: _cast(torch.as_tensor(part), precision), inputs)
    with torch.no_grad():
        return _outputs(_applied(module, given))


def _applied(function: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return function(**inputs)
    return function(*inputs) if isinstance(inputs, list | tuple) else function(inputs)


def _mapped(change: Callable[[Any], Any], inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: change(part) for name, part in inputs.items()}
    if isinstance(inputs, list | tuple):
        return [change(part) for part in inputs]
    return change(inputs)


def _cast(part: Any, precision: str) -> Any:
    """Return an array or a tensor in float64 where that is asked and it holds real numbers."""
    if not precision:
        return part
    if hasattr(part, "is_floating_point"):
        return part.double() if part.is_floating_point() else part
    if isinstance(part, float) or "float" not in str(getattr(part, "dtype", "")):
        return part
    return np.asarray(part, np.float64)


def _as_array(part: Any) -> Any:
    return part.detach().cpu().numpy() if hasattr(part, "detach") else part


def _outputs(found: Any) -> Arrays:
    """Return outputs by name: `output`, or each by its place or its name."""
    if isinstance(found, Mapping) or hasattr(found, "items"):
        named = dict(found.items())
    elif isinstance(found, Sequence) and not isinstance(found, str | bytes):
        named = {f"output {place}": part for place, part in enumerate(found)}
    else:
        named = {"output": found}
    return {name: np.asarray(_as_array(part)) for name, part in named.items() if part is not None}


def _is_module(function: Any) -> bool:
    import sys

    torch = sys.modules.get("torch")
    return torch is not None and isinstance(function, torch.nn.Module)

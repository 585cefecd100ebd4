"""Floating-point work: of a traced function, and what a device can do a second.

The work is counted from the traced program, since XLA's own analysis counts the body of a scan
once, whatever its length (jax 0.10), and dew's models scan their layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

PEAKS = {
    "TPU v4": 275e12,
    "TPU v5": 459e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A10G": 70e12,
    "NVIDIA A100": 312e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA GeForce RTX 3090": 71e12,
    "NVIDIA GeForce RTX 4090": 165e12,
}
"""Dense bfloat16 FLOP/s of one device, by the name that jax gives its kind.

Source: Google's TPU pages and NVIDIA's datasheets, sparsity left out.
"""


def peak_flops(device_kind: str) -> float | None:
    """Return the dense bfloat16 FLOP/s of a device, None where dew does not know it.

    Args:
        device_kind: `device.device_kind`; memory size and socket may follow a known name.
    """
    for name in sorted(PEAKS, key=len, reverse=True):
        rest = device_kind.removeprefix(name)
        is_gpu = name.startswith("NVIDIA")
        if rest == "" or (is_gpu and rest != device_kind and rest[0] in " -"):
            return PEAKS[name]
    return None


def traced_flops(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the FLOPs of the matrix products and convolutions of one call.

    One multiply-add is two. Scans count by their length, a `while` of unknown length once, a
    conditional by its dearest branch; work inside custom kernels is not seen.

    Args:
        function: traced, not run.
        arguments: arrays or their shapes.
    """
    import jax

    return _flops_of(jax.make_jaxpr(function)(*arguments).jaxpr)


def _flops_of(jaxpr: Any) -> float:
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation: Any) -> float:
    name = equation.primitive.name
    if name == "dot_general":
        return _product_flops(equation)
    if name == "conv_general_dilated":
        return _convolution_flops(equation)
    inner = [_flops_of(part) for part in _inner(equation.params)]
    if not inner:
        return 0.0
    if name == "cond":
        return max(inner)
    if name == "scan":
        return equation.params["length"] * sum(inner)
    if name == "shard_map":
        return equation.params["mesh"].size * sum(inner)
    return sum(inner)


def _product_flops(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    depth = math.prod(left[axis] for axis in contracted)
    return 2.0 * depth * math.prod(equation.outvars[0].aval.shape)


def _convolution_flops(equation: Any) -> float:
    kernel = equation.invars[1].aval.shape
    features = equation.params["dimension_numbers"].rhs_spec[0]
    a_output = math.prod(kernel) / kernel[features]
    return 2.0 * a_output * math.prod(equation.outvars[0].aval.shape)


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the programs inside an equation."""
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part

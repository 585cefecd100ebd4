"""`bridges.tensors`: torch tensors as JAX arrays and back, on the same memory where that works.

An array made without a copy is the tensor's own memory. What torch writes there later shows in
the array, which JAX takes to never change, and a compiled computation that still runs may read
either value: ask for `copy=True` where the tensor will be written to. The memory lives as long as
either side holds it.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bridges.table import ALIGNMENT
from dew.errors import InputRefused

# torch's dtypes that JAX has too, under the same names.
_SHARED = """
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64
complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz
"""
SHARED_DTYPES = frozenset(_SHARED.split())

# What JAX holds in their place unless jax_enable_x64 is set.
NARROWER = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}

Turn = Callable[[Any, str], Any]


def to_jax(tree: Any, *, copy: bool | None = None) -> Any:
    """Turn every tensor and NumPy array of a tree into a JAX array.

    An array shares its tensor's memory when the tensor lies contiguous in CPU memory, starts at a
    multiple of 64 bytes (torch's own allocations do; a slice of one may not), has a dtype that
    JAX holds, and JAX computes on the CPU. Otherwise it is a copy:

    - of int64, uint64, float64 and complex128 unless `jax_enable_x64` is set, to half their
      width: a float is rounded, infinite beyond float32's range; an integer has to fit;
    - of transposed, strided and expanded tensors, of NumPy arrays that are read-only, byte-swapped
      or run backwards, and of conjugated or negated views;
    - of tensors on another device, and where JAX's default device is not the CPU.

    A parameter, or another leaf that requires a gradient, gives its value. A tensor that torch
    computed from one is refused, since its gradient would end here without a word.

    Args:
        tree: dicts, lists, tuples, named tuples and what JAX knows as a tree, with their types
            and order kept. A tensor that stands in it twice becomes one array. JAX arrays,
            strings, numbers and all else stay as they are.
        copy: as NumPy has it: None copies where it must, True always, False never.

    Returns:
        The same tree with arrays of the same shapes.

    Raises:
        InputRefused: a sparse, quantised, nested or meta tensor, one with a gradient to lose, a
            dtype that JAX has not, an integer too large, or a copy needed with `copy=False`. The
            place in the tree is named.
    """
    home = _home()
    return _mapped(tree, "", lambda leaf, path: _array(leaf, path, copy, home), {})


def to_torch(tree: Any, *, copy: bool | None = None) -> Any:
    """Turn every JAX and NumPy array of a tree into a torch tensor on the CPU.

    A tensor shares its array's memory when that lies on one CPU device. Other arrays, and NumPy
    arrays that are read-only, byte-swapped or run backwards, are copied. torch lets a shared
    tensor be written to, and JAX does not know: ask for `copy=True` for what will be trained or
    changed in place.

    Args:
        tree: as for `to_jax`; tensors stay as they are.
        copy: as NumPy has it: None copies where it must, True always, False never.

    Returns:
        The same tree with tensors of the same shapes and dtypes, none of which require gradients.

    Raises:
        InputRefused: a tracer, a donated array, one that other processes hold a part of, a dtype
            that torch has not (random keys and int4 among them), or a copy needed with
            `copy=False`. The place in the tree is named.
    """
    return _mapped(tree, "", lambda leaf, path: _tensor(leaf, path, copy), {})


def _mapped(value: Any, path: str, turn: Turn, seen: dict[int, tuple[Any, Any]]) -> Any:
    """Return a tree with `turn` applied to its leaves, once for a leaf that stands twice."""
    if isinstance(value, dict):
        made = copying.copy(value)
        for key in value:
            made[key] = _mapped(dict.__getitem__(value, key), f"{path}[{key!r}]", turn, seen)
        return made
    if isinstance(value, list | tuple):
        parts = [_mapped(part, f"{path}[{n}]", turn, seen) for n, part in enumerate(value)]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return type(value)(parts)
    leaves, structure = jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda node: node is not value
    )
    if jax.tree_util.treedef_is_leaf(structure):
        if id(value) not in seen:
            seen[id(value)] = value, turn(value, path)
        return seen[id(value)][1]
    parts = [_mapped(p, path + jax.tree_util.keystr(key), turn, seen) for key, p in leaves]
    return jax.tree.unflatten(structure, parts)


def _home() -> Any:
    """Return the device of JAX's new arrays, or None for CPU memory that torch can share."""
    chosen: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None or isinstance(chosen, str):
        chosen = jax.local_devices(backend=chosen)[0]
    return None if chosen.platform == "cpu" and chosen.local_hardware_id in (0, None) else chosen


def _array(leaf: Any, path: str, copy: bool | None, home: Any) -> Any:
    import torch

    if isinstance(leaf, jax.Array):
        return jnp.array(leaf, copy=True) if copy else leaf
    if isinstance(leaf, np.ndarray):
        tensor = _of_numpy(leaf, path, copy)
        copied = copy is True
    elif isinstance(leaf, torch.Tensor):
        _check_plain(leaf, path)
        tensor, copied = leaf.detach(), False
    else:
        return leaf
    name = _dtype_name(tensor.dtype)
    narrow = None if jax.config.jax_enable_x64 else NARROWER.get(name)  # type: ignore[attr-defined]
    reason = _reason_to_copy(tensor, narrow, home)
    if reason and copy is False:
        raise _copy_refused(path, f"a {name} tensor of shape {tuple(tensor.shape)}", reason)
    if tensor.is_conj() or tensor.is_neg():
        tensor, copied = tensor.resolve_conj().resolve_neg(), True
    if narrow:
        tensor, copied = _narrowed(tensor.cpu(), narrow, path), True
    if (reason or copy) and not (copied and _lies_ready(tensor)):
        tensor = tensor.cpu().clone(memory_format=torch.contiguous_format)
    return jax.dlpack.from_dlpack(tensor) if home is None else jax.device_put(_numpy(tensor), home)


def _check_plain(tensor: Any, path: str) -> None:
    """Refuse a tensor without values of its own in memory, or with a gradient to lose."""
    import torch

    kind: Any = type(tensor)
    found = None
    if tensor.is_nested:
        found = "is nested: pad it, or pass the parts of unbind()"
    elif tensor.layout != torch.strided:
        found = f"is sparse ({_dtype_name(tensor.layout)}): call to_dense() first"
    elif tensor.is_quantized:
        found = f"is quantised ({_dtype_name(tensor.dtype)}): call dequantize() first"
    elif tensor.device.type == "meta":
        found = "is on the meta device and holds no values: load its weights first"
    elif kind.__torch_dispatch__ is not getattr(torch.Tensor, "__torch_dispatch__", None):
        found = f"is a {kind.__name__}, which has its own arithmetic: make it a plain tensor first"
    elif _dtype_name(tensor.dtype) not in SHARED_DTYPES:
        found = f"has the dtype {_dtype_name(tensor.dtype)}, which JAX has not: cast it first"
    elif tensor.requires_grad and not tensor.is_leaf:
        found = (
            "was computed from what requires a gradient, and torch's gradient would end here: "
            "call detach() if that is meant, or bring the JAX side in by bridges.to_torch(fn)"
        )
    if found:
        shape = "" if tensor.is_nested else f" of shape {tuple(tensor.shape)}"
        raise InputRefused(f"the tensor{_at(path)}{shape} {found}")


def _reason_to_copy(tensor: Any, narrow: str | None, home: Any) -> str | None:
    if tensor.device.type != "cpu":
        return f"lies on {tensor.device}"
    if home is not None:
        return f"lies in CPU memory, and JAX computes on {home}"
    if narrow:
        return f"becomes {narrow} (set jax_enable_x64 to keep its width)"
    if tensor.is_conj() or tensor.is_neg():
        return "is a conjugated or negated view"
    if not tensor.is_contiguous():
        return f"is not contiguous (strides {tuple(tensor.stride())})"
    if not _lies_ready(tensor):
        return f"starts {tensor.data_ptr() % ALIGNMENT} bytes past a multiple of {ALIGNMENT}"
    return None


def _lies_ready(tensor: Any) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and tensor.data_ptr() % ALIGNMENT == 0
    )


def _narrowed(tensor: Any, name: str, path: str) -> Any:
    import torch

    if "int" in name and tensor.numel():
        values, limits = tensor.numpy(), np.iinfo(name)
        low, high = int(values.min()), int(values.max())
        if low < limits.min or high > limits.max:
            raise InputRefused(
                f"the {_dtype_name(tensor.dtype)} tensor{_at(path)} of shape "
                f"{tuple(tensor.shape)} goes from {low} to {high}, and JAX holds {name} here: set "
                "jax_enable_x64, or pass smaller values"
            )
    return tensor.to(getattr(torch, name))


def _tensor(leaf: Any, path: str, copy: bool | None) -> Any:
    import torch

    if isinstance(leaf, torch.Tensor):
        return leaf.clone() if copy else leaf
    if isinstance(leaf, np.ndarray):
        return _of_numpy(leaf, path, copy)
    if not isinstance(leaf, jax.Array):
        return leaf
    _check_readable(leaf, path)
    devices = leaf.devices()
    places = {device.platform for device in devices}
    if len(devices) == 1 and places == {"cpu"}:
        tensor = torch.from_dlpack(leaf)
        return tensor.clone() if copy else tensor
    if copy is False:
        reason = f"lies on {len(devices)} devices of kind {', '.join(sorted(places))}"
        raise _copy_refused(path, f"a {leaf.dtype} array of shape {leaf.shape}", reason)
    return _of_numpy(np.array(leaf), path, None)


def _check_readable(array: Any, path: str) -> None:
    found = None
    if isinstance(array, Tracer):
        found = "is being traced (under jit, grad or vmap) and has no values yet: convert outside"
    elif jnp.issubdtype(array.dtype, jax.dtypes.extended):
        found = f"has the dtype {array.dtype}: take its numbers by jax.random.key_data first"
    elif array.dtype.name not in SHARED_DTYPES:
        found = f"has the dtype {array.dtype.name}, which torch has not: cast it first"
    elif array.is_deleted():
        found = "was deleted or donated to a computation: convert it before"
    elif not array.is_fully_addressable:
        found = "is held in part by other processes: gather it first"
    if found:
        raise InputRefused(f"the array{_at(path)} of shape {tuple(array.shape)} {found}")


def _of_numpy(array: np.ndarray, path: str, copy: bool | None) -> Any:
    """Return a tensor of a NumPy array, on its memory where torch can hold that."""
    import torch

    if array.dtype.name not in SHARED_DTYPES:
        raise InputRefused(
            f"the array{_at(path)} of shape {array.shape} has the dtype {array.dtype}, which torch "
            "and JAX have not: cast it first"
        )
    reason = None
    if not array.dtype.isnative:
        reason = "has its bytes swapped"
    elif any(stride < 0 for stride in array.strides):
        reason = f"runs backwards (strides {array.strides})"
    elif not array.flags.writeable:
        reason = "is read-only, and torch would write to it"
    elif any(stride % array.itemsize for stride in array.strides):
        reason = f"has strides {array.strides} that are no multiples of {array.itemsize}"
    if reason and copy is False:
        raise _copy_refused(path, f"a {array.dtype} array of shape {array.shape}", reason)
    if reason or copy:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view(f"u{array.itemsize}"))
    return bits.view(getattr(torch, array.dtype.name))


def _numpy(tensor: Any) -> np.ndarray:
    """Return a CPU tensor's values as a NumPy array of the same dtype."""
    import torch

    dtype = jnp.dtype(_dtype_name(tensor.dtype))
    if dtype.isbuiltin == 1:
        return tensor.numpy()
    bits = getattr(torch, f"uint{8 * dtype.itemsize}")
    return tensor.view(bits).numpy().view(dtype)


def _copy_refused(path: str, what: str, reason: str) -> InputRefused:
    return InputRefused(
        f"{what}{_at(path)} {reason}, so it has to be copied, and copy is False: pass copy=None"
    )


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")

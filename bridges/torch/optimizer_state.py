"""`bridges.optimizer_state`: the state of torch's AdamW, Adam and SGD as optax's, and back.

A run moves from torch to JAX in the middle, and back:

    saved = torch_optimizer.state_dict()                  # or the path of an optimizer.pt
    names = optimizer_state.parameter_names(torch_optimizer, module)
    optimizer = optimizer_state.optimizer(saved, names)
    state = optimizer_state.to_jax(saved, optimizer.init(params), names)
    ...                                                   # updates in JAX
    torch_optimizer.load_state_dict(optimizer_state.to_torch(state, saved, names))

The parameters are a tree by torch's names, as `bridges.from_torch` and traced bundles have them,
or those of a native family: pass its bundle, and its weight table carries the moments.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bridges.torch import tensors
from bridges.torch.export import numpy_of
from bridges.torch.named_leaves import NamedLeaves
from dew.errors import InputRefused, WeightMismatch, listed, shown
from dew.training.adam import scale_by_adam
from dew.training.optimizers import scaled_by_rate

# Keys of a group that say how torch computes, not what, and notes of schedulers.
_NOTES = """
params param_names foreach capturable differentiable fused initial_lr max_lr min_lr
base_momentum max_momentum lr_scale
"""
_HOW = frozenset(_NOTES.split())
_KEYS = {
    "adam": frozenset(
        ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay")
    ),
    "sgd": frozenset(("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")),
}
_MOMENTS = {"adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
# The fields of optax's states that hold them.
_FIELDS = {"adam": ("mu", "nu"), "sgd": ("trace",)}
_STATES: dict[str, Any] = {"adam": optax.ScaleByAdamState, "sgd": optax.TraceState}

Saved = Mapping[str, Any] | str | os.PathLike[str]


def parameter_names(optimizer: Any, module: Any) -> list[str]:
    """Return the names of a torch optimizer's parameters, in the order of its state.

    Args:
        optimizer: a torch optimizer.
        module: the `torch.nn.Module` whose parameters it updates.

    Raises:
        InputRefused: it updates tensors that are no parameters of the module.
    """
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    unknown = [tuple(tensor.shape) for tensor in held if id(tensor) not in known]
    if unknown:
        raise InputRefused(
            f"the optimizer updates {len(unknown)} tensors that are no parameters of this "
            f"{type(module).__name__}, of shapes {shown(unknown)}: pass the module it was made for"
        )
    return [known[id(tensor)] for tensor in held]


def optimizer(
    saved: Saved, names: Sequence[str] | None = None, *, bundle: Any = None
) -> optax.GradientTransformation:
    """Return the optax transformation that updates as the torch optimizer does.

    Each group of parameters keeps its own numbers. The learning rates are those of the moment:
    a torch scheduler is no part of the optimizer's state.

    Args:
        saved: the optimizer's `state_dict()`, or a file that `torch.save` made of one, read
            without running code.
        names: its parameters' names, in its order, as `parameter_names` gives them; None where it
            was made from `named_parameters()` and knows them. One group alone needs none.
        bundle: the bundle whose parameters are updated, where its family is native.

    Raises:
        InputRefused: another optimizer, `amsgrad`, a `dampening`, or names that do not fit.
    """
    saved = _read(saved)
    kind = _kind(saved)
    groups = saved["param_groups"]
    if len(groups) == 1:
        return _chain(kind, groups[0])
    numbers = [n for n, group in enumerate(groups) for _ in group["params"]]
    of_name = dict(zip(_names(saved, names), numbers, strict=True))
    table = NamedLeaves.of(bundle)

    def labels(params: Any) -> Any:
        of_leaf = table.groups(table.leaves(params), of_name)
        return jax.tree_util.tree_map_with_path(lambda path, _: of_leaf[table.path(path)], params)

    return optax.partition({n: _chain(kind, group) for n, group in enumerate(groups)}, labels)


def to_jax(
    saved: Saved,
    state: Any,
    names: Sequence[str] | None = None,
    *,
    bundle: Any = None,
    updates: int | None = None,
) -> Any:
    """Return an optax state filled from a torch optimizer's.

    Args:
        saved: as for `optimizer`.
        state: the state that the optax optimizer's `init` returns: `optimizer`'s, dew's by name,
            or any with one `ScaleByAdamState` or `TraceState` for each parameter.
        names: as for `optimizer`.
        bundle: as for `optimizer`.
        updates: how many updates were made. Adam's state tells; SGD's does not, and counters for
            schedules stay as they are without it.

    Returns:
        The state with copies of torch's moments, in the dtypes that it has them in, and every
        counter at the updates made. A parameter that SGD has no momentum of yet has zeros.

    Raises:
        WeightMismatch: moments without a parameter, parameters without one, other shapes.
        InputRefused: as `optimizer`; Adam parameters that differ in their step count, which
            optax has one of; a state of another kind of optimizer.
    """
    saved = _read(saved)
    kind, table = _kind(saved), NamedLeaves.of(bundle)
    entries = _entries(saved, names)
    holders = _holders(state, kind, saved)
    leaves = [table.leaves(*(getattr(node, f) for node in holders)) for f in _FIELDS[kind]]
    shapes = table.shapes(leaves[0])
    made = _updates(kind, {name: entries.get(name, {}) for name in shapes}, updates)
    if holders and any(_has_moments(kind, entry) for entry in entries.values()):
        with jax.ensure_compile_time_eval():
            found = _moments(kind, entries, shapes)
            trees = [table.into(part, leaf) for part, leaf in zip(found, leaves, strict=True)]
        state = _filled(state, kind, table, trees)
    if made is None or not optax.tree_utils.tree_get_all_with_path(state, "count"):
        return state
    return optax.tree_utils.tree_set(state, count=jnp.asarray(made, jnp.int32))


def to_torch(
    state: Any, saved: Saved, names: Sequence[str] | None = None, *, bundle: Any = None
) -> dict[str, Any]:
    """Return what a torch optimizer's `load_state_dict` takes, filled from an optax state.

    Args:
        state: the optax state.
        saved: the `state_dict()` of a torch optimizer over the same parameters, new or used: its
            groups, with their learning rates, are kept, and so is the state of parameters that
            the optax state does not have.
        names: as for `optimizer`.
        bundle: as for `optimizer`.

    Returns:
        A state dict with copies of the moments; torch casts them to its parameters' dtypes.

    Raises:
        WeightMismatch: moments without a parameter, or of another shape than torch's.
        InputRefused: as `to_jax`.
    """
    saved = _read(saved)
    kind, table = _kind(saved), NamedLeaves.of(bundle)
    indices = {name: index for index, name in enumerate(_names(saved, names))}
    holders = _holders(state, kind, saved)
    counts = sorted({int(node.count) for node in holders}) if kind == "adam" else [0]
    if len(counts) > 1:
        raise InputRefused(f"the optax state holds the step counts {counts}: expected one")
    parts = [
        table.out(table.leaves(*(getattr(node, field) for node in holders)))
        for field in _FIELDS[kind]
    ]
    _check_known(parts[0], indices, saved, _MOMENTS[kind][0])
    made = dict(saved["state"])
    for name in parts[0]:
        moments = [tensors.to_torch(part[name], copy=True) for part in parts]
        entry: dict[str, Any] = dict(zip(_MOMENTS[kind], moments, strict=True))
        if kind == "adam":
            entry["step"] = tensors.to_torch(np.array(counts[0], np.float32))
        made[indices[name]] = entry
    return {"state": made, "param_groups": copy.deepcopy(saved["param_groups"])}


def resumed(
    optimizer: optax.GradientTransformation,
    saved: Saved,
    names: Sequence[str] | None = None,
    *,
    bundle: Any = None,
    updates: int | None = None,
) -> optax.GradientTransformation:
    """Return an optimizer that begins with a torch optimizer's state: for `dew.Trainer`.

    Args:
        optimizer: what updates; its `init` gives the state to fill.
        saved: as for `optimizer`.
        names: as for `optimizer`.
        bundle: as for `optimizer`.
        updates: as for `to_jax`.

    Raises:
        InputRefused: as `to_jax`, from `init`.
    """
    saved = _read(saved)

    def init(params: Any) -> Any:
        return to_jax(saved, optimizer.init(params), names, bundle=bundle, updates=updates)

    return optax.GradientTransformation(init, optimizer.update)


def _read(saved: Saved) -> Mapping[str, Any]:
    if isinstance(saved, str | os.PathLike):
        import torch

        path = Path(saved)
        if not path.is_file():
            raise InputRefused(f"{path}: no such file; expected one that torch.save wrote")
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise InputRefused(
                f"{path}: torch does not load it without running its code ({reason[:300]}); "
                "expected torch.save(optimizer.state_dict(), path)"
            ) from error
    if not isinstance(saved, Mapping) or not {"state", "param_groups"} <= set(saved):
        found = sorted(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
        raise InputRefused(
            f"found {shown(found)}; expected a torch optimizer's state_dict() with state and "
            "param_groups: pass that part"
        )
    _check_form(saved)
    return saved


def _check_form(saved: Mapping[str, Any]) -> None:
    """Refuse a state whose parts are not what torch writes: a file may hold anything."""
    import torch

    problems = []
    groups, state = saved["param_groups"], saved["state"]
    if not isinstance(groups, list) or not groups:
        problems.append("param_groups is no list of groups")
    else:
        for number, group in enumerate(groups):
            if not isinstance(group, Mapping) or not isinstance(group.get("params"), list):
                problems.append(f"group {number} has no list of params")
    if not isinstance(state, Mapping):
        problems.append("state is no mapping")
    else:
        for index, entry in state.items():
            parts = entry.items() if isinstance(entry, Mapping) else [("itself", entry)]
            for key, part in parts:
                if not isinstance(part, torch.Tensor | float | int | None):
                    kind = type(part).__name__
                    problems.append(f"state {shown(index)}: {shown(key)} is a {kind}, no tensor")
    if problems:
        raise InputRefused(listed("expected a torch optimizer's state_dict():", problems))


def _kind(saved: Mapping[str, Any]) -> str:
    """Return which optimizer wrote a state, and refuse what optax has no same state for."""
    kinds, problems = set(), []
    for number, group in enumerate(saved["param_groups"]):
        keys = set(group) - _HOW
        optional = {"decoupled_weight_decay", "maximize"}
        fits = [k for k, known in _KEYS.items() if keys <= known and known - optional <= keys]
        if not fits:
            problems.append(f"group {number} has the numbers {', '.join(sorted(keys))}")
            continue
        kinds.add(fits[0])
        if group.get("amsgrad"):
            problems.append(f"group {number} has amsgrad, whose largest moment optax has not")
        if group.get("dampening") and group["momentum"]:
            problems.append(f"group {number} has dampening {group['dampening']}; expected 0")
    if problems or len(kinds) != 1:
        heading = "expected the state of torch's AdamW, Adam or SGD:"
        raise InputRefused(listed(heading, problems or [f"found {len(kinds)} kinds of groups"]))
    return kinds.pop()


def _chain(kind: str, group: Mapping[str, Any]) -> optax.GradientTransformation:
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    parts = [optax.scale(-1.0)] if group.get("maximize") else []
    decayed = [optax.add_decayed_weights(decay)] if decay else []
    if kind == "sgd":
        parts += decayed
        if group["momentum"]:
            parts.append(optax.trace(float(group["momentum"]), bool(group["nesterov"])))
    else:
        decoupled = group.get("decoupled_weight_decay")
        if decay and decoupled is None:
            raise InputRefused(
                f"weight_decay is {decay} and the state does not say whether it is Adam's or "
                "AdamW's: set decoupled_weight_decay in its param_groups, True for AdamW"
            )
        b1, b2 = map(float, group["betas"])
        adam = [scale_by_adam(b1, b2, float(group["eps"]))]
        parts += [*adam, *decayed] if decoupled else [*decayed, *adam]
    return optax.chain(*parts, scaled_by_rate(lambda count: rate))


def _names(saved: Mapping[str, Any], names: Sequence[str] | None) -> list[str]:
    groups = saved["param_groups"]
    indices = [index for group in groups for index in group["params"]]
    if indices != list(range(len(indices))):
        raise InputRefused(f"the groups hold the parameters {shown(indices)}: expected 0, 1, 2 ...")
    if names is None and all("param_names" in group for group in groups):
        names = [name for group in groups for name in group["param_names"]]
    if names is None:
        raise InputRefused(
            "the state knows its parameters by number: pass names=, from parameter_names(optimizer,"
            " module), or make the optimizer from module.named_parameters()"
        )
    found = list(names)
    if len(found) != len(indices) or len(set(found)) != len(found):
        raise InputRefused(
            f"{len(found)} names ({len(set(found))} different ones) for {len(indices)} parameters: "
            "expected one each, in the optimizer's order"
        )
    return found


def _entries(saved: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Return each parameter's own state, by name; empty where torch has not updated it."""
    return {name: saved["state"].get(index, {}) for index, name in enumerate(_names(saved, names))}


def _has_moments(kind: str, entry: Mapping[str, Any]) -> bool:
    return all(hasattr(entry.get(moment), "shape") for moment in _MOMENTS[kind])


def _holders(state: Any, kind: str, saved: Mapping[str, Any]) -> list[Any]:
    """Return the parts of an optax state that hold the moments."""
    wanted = _STATES[kind]
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, wanted))
    found = [leaf for leaf in leaves if isinstance(leaf, wanted)]
    needed = kind == "adam" or any(group["momentum"] for group in saved["param_groups"])
    if needed == bool(found):
        return found
    has = "has" if found else "has no"
    does = "keeps" if needed else "keeps no"
    raise InputRefused(
        f"the optax state {has} {wanted.__name__} and torch's optimizer {does} "
        f"{' and '.join(_MOMENTS[kind])}: use the optimizer of optimizer_state.optimizer(saved)"
    )


def _updates(kind: str, entries: Mapping[str, Any], updates: int | None) -> int | None:
    """Return how many updates were made, where that is known."""
    if kind == "sgd":
        return updates
    steps = {name: int(entry["step"]) for name, entry in entries.items() if "step" in entry}
    counts = sorted(set(steps.values()))
    if len(counts) > 1:
        lines = [f"{name}: {step}" for name, step in steps.items() if step != counts[-1]]
        heading = f"most parameters are at step {counts[-1]}, and optax has one count for all:"
        raise InputRefused(listed(heading, lines))
    made = counts[0] if counts else 0
    if updates not in (None, made):
        raise InputRefused(f"updates is {updates}, and the state was made by {made} updates")
    return made


def _moments(
    kind: str, entries: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> list[dict[str, np.ndarray]]:
    """Return each kind of moment by name, as arrays that torch does not write to."""
    found: list[dict[str, np.ndarray]] = [{} for _ in _MOMENTS[kind]]
    problems = []
    for name, entry in entries.items():
        if not _has_moments(kind, entry):
            continue
        for moment, arrays in zip(_MOMENTS[kind], found, strict=True):
            shape = tuple(entry[moment].shape)
            if name not in shapes:
                problems.append(f"left over   {moment} of {name} {shape}")
            elif shape != shapes[name]:
                problems.append(
                    f"misshapen   {moment} of {name}: wanted {shapes[name]}, is {shape}"
                )
            else:
                arrays[name] = numpy_of(entry[moment])
    for name, shape in shapes.items():
        if _has_moments(kind, entries.get(name, {})):
            continue
        if kind == "sgd" and name in entries:
            found[0][name] = np.zeros(shape, np.float32)
        else:
            problems.append(f"missing     {_MOMENTS[kind][0]} of {name} {shape}")
    if problems:
        raise WeightMismatch(listed("torch's moments do not fit the parameters:", problems))
    return found


def _filled(state: Any, kind: str, table: NamedLeaves, trees: Sequence[Mapping[str, Any]]) -> Any:
    def leaf(tree: Mapping[str, Any], path: Any, old: Any) -> jax.Array:
        return jnp.array(tree[table.path(path)], dtype=old.dtype)

    def one(node: Any) -> Any:
        if not isinstance(node, _STATES[kind]):
            return node
        parts = {
            field: jax.tree_util.tree_map_with_path(partial(leaf, tree), getattr(node, field))
            for field, tree in zip(_FIELDS[kind], trees, strict=True)
        }
        return node._replace(**parts)

    return jax.tree.map(one, state, is_leaf=lambda node: isinstance(node, _STATES[kind]))


def _check_known(
    moments: Mapping[str, Any], indices: Mapping[str, int], saved: Mapping[str, Any], moment: str
) -> None:
    """Refuse moments of parameters that torch's optimizer has not, or has in another shape."""
    problems = []
    for name, array in moments.items():
        before = saved["state"].get(indices.get(name), {}).get(moment)
        if name not in indices:
            problems.append(f"left over   {name} {array.shape}")
        elif before is not None and tuple(before.shape) != array.shape:
            problems.append(
                f"misshapen   {name}: torch has {tuple(before.shape)}, is {array.shape}"
            )
    if problems:
        raise WeightMismatch(listed("the optax moments do not fit torch's optimizer:", problems))

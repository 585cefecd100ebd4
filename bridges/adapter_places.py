"""Where adapters can sit in a native model: the linear maps of its checkpoint, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from bridges.adapter_names import other_names, torch_name
from bridges.adapter_settings import ALL, TASK_HEADS, AdapterSettings, ends
from bridges.family import family_of
from bridges.moves import KEEP, in_turn
from bridges.table import LAYER, Row, flat, nested
from dew.errors import InputRefused, UnknownName, listed, nearest, shown
from dew.inference.bundle import Bundle
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.dense import Dense
from dew.nn.lora import ADAPTED, LoRA, Site, path_of

STARTS = {True: "uniform", False: "random"}
"""PEFT's `init_lora_weights` to dew's names, where these are not PEFT's."""
# The map to the labels: PEFT's all-linear leaves out what gives a model's output.
WINDOW = 3
HEADS = ("classifier", "score", "qa_outputs", "lm_head", "cls", "logits_proj")


@dataclass(frozen=True)
class Place:
    """One linear map of the checkpoint where an adapter can sit.

    Attributes:
        module: its name in torch, `{layer}` for the layer's number.
        ours: the dew modules that it holds, as in `LoRA.targets`; several if it is fused.
        groups: how often the modules of a fused map stand in turn, see `bridges.moves.Move`.
        inputs: how many axes of a kernel are contracted.
        layers: how many layers have it; None where it stands outside the layers.
        row: of its weight.
    """

    module: str
    ours: tuple[str, ...]
    groups: int = 1
    inputs: int = 1
    layers: int | None = None
    row: Row = field(kw_only=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The full names, one a layer."""
        if self.layers is None:
            return (self.module,)
        return tuple(self.module.replace(LAYER, str(n)) for n in range(self.layers))

    def cut(self, tensor: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """Return the parts [outputs of a module, ...] of a tensor [all outputs, ...]."""
        return in_turn(KEEP, self.groups).cut(tensor, sizes)

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the tensor whose parts these are."""
        return in_turn(KEEP, self.groups).join(parts)


def places(bundle: Bundle) -> tuple[Place, ...]:
    """Return where an adapter can sit, in the order of the family's weight table."""
    model = bundle.model
    inputs = (
        {path_of(name): axes for name, axes in ADAPTED.items()}
        if isinstance(model, CausalTransformer)
        else _probed(model)
    )
    shapes = flat(model.parameter_shapes())
    found = []
    for row in family_of(bundle.config).rows(model):
        paths = tuple(path.removesuffix("/kernel") for path in row.leaves)
        kernels = all(path.endswith("/kernel") for path in row.leaves)
        flat_map = row.theirs.endswith(".weight") and row.theirs.count("{") == (LAYER in row.theirs)
        if not kernels or not flat_map or any(path not in inputs for path in paths):
            continue
        found.append(
            Place(
                module=torch_name(bundle, row.theirs.removesuffix(".weight")),
                ours=tuple(map(_target, paths)),
                groups=row.move.groups,
                inputs=inputs[paths[0]],
                layers=shapes[row.leaves[0]].shape[0] if row.stacked else None,
                row=row,
            )
        )
    return tuple(found)


def adapter_targets(bundle: Bundle, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return dew's modules for module names of the checkpoint.

    Args:
        bundle: the base model.
        names: names or the ends of names, such as `q_proj`; none, or `all-linear`, means every
            linear map of the layers.

    Raises:
        UnknownName: a name that no module of the model ends in.
    """
    every = not names or list(names) == [ALL]
    settings = AdapterSettings(8, 8.0, None if every else tuple(names))
    return lora_of(bundle, settings).targets


def lora_of(
    bundle: Bundle, settings: AdapterSettings, present: Iterable[str] | None = None
) -> LoRA:
    """Return dew's settings for what PEFT's ask for.

    Args:
        bundle: the base model.
        settings: as of an adapter_config.json.
        present: full names of the modules that have an adapter; None for those that the settings
            choose.

    Raises:
        UnknownName: a target or a module to save that the model does not have.
        InputRefused: a model without places for an adapter; modules that cannot be trained whole.
    """
    known = places(bundle)
    if not known:
        raise InputRefused(
            f"the native {bundle.family} has no place for an adapter; load the model with "
            'traced="always", which has one at every linear map'
        )
    settings = spelled(bundle, settings, known)
    chosen = frozenset(present) if present is not None else _chosen(bundle, known, settings)
    # Only these models carry the one scale themselves.
    decodes = isinstance(bundle.model, CausalTransformer)
    targets: list[str] = []
    sites: dict[str, Site] = {}
    for place in known:
        ranks = tuple(settings.rank_of(n) if n in chosen else 0 for n in place.names)
        alphas = tuple(settings.alpha_of(name) for name in place.names)
        if not any(ranks):
            continue
        usual = set(ranks) == {settings.rank} and set(alphas) == {settings.alpha} and decodes
        for number, target in enumerate(place.ours):
            shares = place.ours[0] if number else ""
            if not usual or shares:
                stacked = place.layers is not None
                sites[target] = Site(ranks, alphas, place.inputs, stacked, shares)
            targets.append(target)
    return LoRA(
        rank=settings.rank,
        alpha=settings.alpha,
        targets=tuple(targets),
        dropout=settings.dropout,
        rslora=settings.rslora,
        dora=settings.dora,
        start=STARTS.get(settings.start, "") if settings.start in STARTS else str(settings.start),
        sites=sites,
        whole=whole_leaves(bundle, settings, chosen),
        saved=settings.saved,
        bias=settings.bias,
    )


def spelled(bundle: Bundle, settings: AdapterSettings, known: Sequence[Place]) -> AdapterSettings:
    """Return the settings, which may name modules as the checkpoint's tensors do too."""
    stored = (
        place.row.theirs.removesuffix(".weight").replace(LAYER, str(number))
        for place in known
        for number in range(place.layers or 1)
    )
    return replace(settings, also=other_names(bundle, stored))


def whole_leaves(
    bundle: Bundle, settings: AdapterSettings, chosen: Iterable[str]
) -> dict[str, tuple[bool, ...] | None]:
    """Return the paths of the leaves that are trained whole, and in which layers, None for all."""
    if not settings.saved and settings.bias == "none":
        return {}
    model, names = bundle.model, frozenset(chosen)
    shapes = flat(model.parameter_shapes())
    found: dict[str, tuple[bool, ...] | None] = {}
    idle = set(settings.saved)
    for row in family_of(bundle.config).rows(model):
        module, _, leaf = torch_name(bundle, row.theirs).rpartition(".")
        layers = shapes[row.leaves[0]].shape[0] if LAYER in row.theirs else None
        modules = (
            [module]
            if layers is None
            else [module.replace(LAYER, str(number)) for number in range(layers)]
        )
        biased = leaf == "bias"
        mask = tuple(
            settings.is_saved(name)
            or (biased and settings.bias == "all")
            or (biased and settings.bias == "lora_only" and name in names)
            for name in modules
        )
        idle = {s for s in idle if not any(settings.saves(s, name) for name in modules)}
        if any(mask):
            for path in row.leaves:
                found[path] = None if all(mask) else mask
    _refuse_saved(bundle, settings, idle, found)
    return found


def _refuse_saved(
    bundle: Bundle, settings: AdapterSettings, idle: set[str], found: Mapping[str, Any]
) -> None:
    """Refuse modules to save that the model lacks, or that share their weight with another."""
    family = family_of(bundle.config)
    head = family.head.rpartition(".")[0]
    tied = bool(head) and bool(getattr(bundle.model, "tied_head", False))
    problems = [
        f"{shown(name)} shares its weight with the embedding"
        for name in sorted(idle)
        if tied and head.endswith(name)
    ]
    table = {path for row in family.rows(bundle.model) for path in row.leaves}
    shared = {row_path for row_path in table & set(found) if row_path == "embed/table"}
    if tied and shared and settings.saved:
        problems.append(f"the embedding shares its weight with {head}")
    if problems:
        raise InputRefused(
            listed(
                "modules_to_save: PEFT would train a copy and leave the other as it was; the "
                "native model holds one weight for both:",
                problems,
            )
        )
    # PEFT names the heads of a task under all of their names.
    wanting = sorted(idle if idle == set(settings.saved) else idle - TASK_HEADS)
    if wanting:
        modules = {row.theirs.split(".")[-2] for row in family.rows(bundle.model)}
        raise UnknownName(
            f"modules_to_save: no module {shown(wanting[0])}{nearest(wanting[0], modules)}"
        )


def _chosen(bundle: Bundle, known: Sequence[Place], settings: AdapterSettings) -> frozenset[str]:
    """Return the full names of the modules that the settings choose."""
    every = [name for place in known for name in place.names]
    if settings.targets is None:
        every = [n for n in every if not any(part in HEADS for part in n.split("."))]
    short = dict.fromkeys(name.rpartition(".")[2] for name in every)
    named = settings.targets if isinstance(settings.targets, tuple) else ()
    spellings = [name for module in every for name in settings.names(module)]
    for name in named:
        if not any(ends(module, name) for module in spellings):
            raise UnknownName(
                f"no module {shown(name)} to adapt{nearest(name, short)} "
                f"Known: {', '.join(short)}, {ALL}{_elsewhere(bundle, name)}"
            )
    chosen = frozenset(name for name in every if settings.chooses(name))
    if not chosen:
        raise UnknownName(
            f"target_modules {shown(settings.targets)} choose no module of the model to adapt"
            f". Known: {', '.join(short)}, {ALL}"
        )
    return chosen


def _elsewhere(bundle: Bundle, name: str) -> str:
    """Return what to do about a module that the checkpoint has, but no place for an adapter."""
    rows = family_of(bundle.config).rows(bundle.model)
    if any(ends(row.theirs.rpartition(".")[0], name) for row in rows):
        return (
            f". The native {bundle.family} adapts no {name}; load the model with "
            'traced="always", which adapts every linear map'
        )
    return ""


def _target(path: str) -> str:
    short = path.removeprefix("layers/")
    return short if short != path and short in ADAPTED else path


def _probed(model: Any) -> dict[str, int]:
    """Return the path of each `Dense` that an adapter's collection reaches, and its input axes."""
    shapes = flat(model.parameter_shapes())
    marks = {
        f"{path.removesuffix('/kernel')}/probe": shape
        for path, shape in shapes.items()
        if path.endswith("/kernel")
    }
    found: dict[str, int] = {}

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        # Over three axes it is a convolution of the checkpoint's.
        linear = isinstance(module, Dense) and module.inputs < WINDOW
        if linear and module.has_variable("lora", "probe"):
            found["/".join(module.path)] = module.inputs
        return call(*args, **kwargs)

    def run(variables: Any, inputs: Any) -> Any:
        with nn.intercept_methods(note):
            return model.apply(variables, **inputs, method="outputs")

    variables = {"params": nested(shapes), "lora": nested(marks)}
    jax.eval_shape(run, variables, model.example_inputs())
    return found

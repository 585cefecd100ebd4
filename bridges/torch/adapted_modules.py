"""Which modules of a traced model an adapter's settings choose, and what they train whole."""

from __future__ import annotations

from collections.abc import Sequence

from bridges.adapter_settings import ALL, TASK_HEADS, AdapterSettings, ends
from bridges.torch.checkpoint import TracedBundle
from bridges.torch.kinds import CONV1D, LINEAR, ModuleKinds
from bridges.torch.module import TracedModule
from dew.errors import InputRefused, UnknownName, listed, nearest, shown


def module_kinds(source: TracedModule | TracedBundle) -> ModuleKinds:
    """Return what each parameterised module of `source` is; a stored record needs no torch."""
    if isinstance(source, TracedBundle):
        return ModuleKinds.from_record(source.stored)
    return ModuleKinds.of(source.torch_module)


def task_heads(bundle: TracedBundle) -> tuple[str, ...]:
    """Return the heads that are trained whole beside an adapter: those of classes and spans."""
    return tuple(sorted(TASK_HEADS & set(module_kinds(bundle).kinds)))


def in_order(kinds: ModuleKinds, present: Sequence[str]) -> list[str]:
    """Return names in the module's order, those that it lacks at the end."""
    names = set(present)
    known = [name for name in kinds.kinds if name in names]
    return known + [name for name in present if name not in kinds.kinds]


def refuse_modules(kinds: ModuleKinds, chosen: Sequence[str]) -> None:
    """Refuse modules that are no linear maps with a weight of their own, all at once."""
    shared = kinds.shared
    unknown = [f"{name} is no module of the model" for name in chosen if name not in kinds.kinds]
    known = [name for name in chosen if name in kinds.kinds]
    problems = [
        f"{name} is {_article(kinds.kinds[name])}"
        for name in known
        if kinds.kinds[name] not in (LINEAR, CONV1D)
    ]
    problems += [
        f"{name} shares its weight with {' and '.join(shared[name])}"
        for name in known
        if name in shared and kinds.kinds[name] in (LINEAR, CONV1D)
    ]
    if unknown or problems:
        raise InputRefused(
            listed(
                "LoRA adapts linear maps with a weight of their own; leave out of targets:",
                unknown + problems,
            )
        )


def whole_leaves(
    kinds: ModuleKinds, settings: AdapterSettings, chosen: Sequence[str]
) -> tuple[str, ...]:
    """Return the leaves that are trained themselves."""
    names = frozenset(chosen)
    found: dict[str, None] = {}
    idle = set(settings.saved)
    for alias, leaf in kinds.canonical.items():
        module, _, last = alias.rpartition(".")
        saved = settings.is_saved(module)
        biased = last == "bias" and (
            settings.bias == "all" or (settings.bias == "lora_only" and module in names)
        )
        if saved and last == "weight" and module in kinds.shared:
            others = " and ".join(kinds.shared[module])
            raise InputRefused(
                f"modules_to_save: {module} shares its weight with {others}; PEFT would train a "
                "copy and leave the other as it was, dew holds one weight for both"
            )
        idle = {s for s in idle if not settings.saves(s, module)}
        if saved or biased:
            found[leaf] = None
    wanting = sorted(idle if idle == set(settings.saved) else idle - TASK_HEADS)
    if wanting:
        modules = {part for name in kinds.kinds for part in name.split(".")}
        raise UnknownName(
            f"modules_to_save: no module {shown(wanting[0])}{nearest(wanting[0], modules)}"
        )
    return tuple(found)


def chosen_modules(kinds: ModuleKinds, settings: AdapterSettings) -> list[str]:
    """Return the names of the modules that the settings choose, in the module's order."""
    names, targets = list(kinds.kinds), settings.targets
    if targets is None:
        linear = [name for name in names if kinds.kinds[name] in (LINEAR, CONV1D)]
        names = [name for name in linear if name != kinds.output]
    elif not isinstance(targets, str):
        idle = [end for end in targets if not any(ends(name, end) for name in names)]
        if idle:
            short = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
            raise UnknownName(
                f"no module {shown(idle[0])} to adapt{nearest(idle[0], short)} "
                f"Known: {', '.join(short)}, {ALL}"
            )
    chosen = [name for name in names if settings.chooses(name)]
    if not chosen:
        raise UnknownName(f"targets {shown(targets)} names no module with a weight of its own")
    return chosen


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"

"""Which of dew's modules is which of torch's: the weight table says so, since both own weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from bridges.table import EXPERT, LAYER, flat
from parity.subject import Subject


@dataclass(frozen=True)
class Site:
    """One module on both sides.

    Args:
        theirs: the name of torch's module.
        ours: the path of dew's module; of several where torch has one map for all of them.
        layer: which of the stacked layers it is of, None where it is in none.
    """

    theirs: str
    ours: tuple[str, ...]
    layer: int | None = None

    @property
    def shown(self) -> str:
        """The path on dew's side, with the layer."""
        paths = " + ".join(self.ours)
        return paths if self.layer is None else f"{paths} of layer {self.layer}"


@dataclass(frozen=True)
class Held:
    """One of torch's tensors, or the part of one that is one of dew's leaves.

    Args:
        name: of the tensor.
        part: which of the leaves that the tensor holds, where it holds several.
        leaf: the path of the leaf.
        layer: which of the stacked layers it is of, or None.
        woven: whether the tensor holds the leaves in turn, a head of each, as GPT-NeoX's does.
    """

    name: str
    part: int
    leaf: str
    layer: int | None
    woven: bool = False


def sites(
    held: Iterable[Held], live_names: Mapping[str, str], modules: Collection[str]
) -> list[Site]:
    """Return the modules that own the same tensors on both sides.

    Args:
        held: of a native model, by the names of its files.
        live_names: a tensor's name in the files to its name in torch's model.
        modules: the names of torch's modules that are called.
    """
    held = [replace(part, name=live_names.get(part.name, part.name)) for part in held]
    found = [*_equal_modules(held, modules), *_fused_modules(held, modules)]
    return list(dict.fromkeys(found))


def layer_sites(found: Iterable[Site]) -> list[Site]:
    """Return the sites that are whole layers of a stack; every site where nothing is stacked."""
    found = list(found)
    stacked = [site for site in found if site.layer is not None and len(site.ours) == 1]
    paths = {site.ours[0] for site in stacked}
    outer = [site for site in stacked if not any(p in paths for p in _above(site.ours[0], "/"))]
    return outer or found


def held_tensors(subject: Subject) -> list[Held]:
    """Return which tensor is which leaf of a native subject."""
    return list(_tensors(subject))


def _tensors(subject: Subject) -> Iterator[Held]:
    from bridges.family import family_of

    bundle = subject.bundle
    family = family_of(bundle.config)
    leaves = flat(bundle.variables["params"])
    prefix = family.base_prefix if bundle.stored.bare else ""
    for row in family.rows(bundle.model):
        for index in np.ndindex(leaves[row.leaves[0]].shape[: row.stacked]):
            name = row.theirs
            layer = index[0] if LAYER in name else None
            for mark, number in zip([m for m in (LAYER, EXPERT) if m in name], index, strict=True):
                name = name.replace(mark, str(number))
            for part, leaf in enumerate(row.leaves):
                yield Held(name.removeprefix(prefix), part, leaf, layer, row.move.groups > 1)


def _equal_modules(held: Iterable[Held], modules: Collection[str]) -> Iterator[Site]:
    """Yield modules that hold the same tensors; of several that do, the innermost on each side.

    A table that only the first layer of torch's stack has, as T5's distances, is no part of a
    layer here.
    """
    theirs: dict[tuple[str, bool], set[Held]] = {}
    ours: dict[tuple[str, int | None], set[Held]] = {}
    for part in held:
        stacked = part.layer is not None
        for module in _above(part.name, "."):
            theirs.setdefault((module, False), set()).add(part)
            if stacked:
                theirs.setdefault((module, True), set()).add(part)
        for module in _above(part.leaf, "/"):
            ours.setdefault((module, part.layer), set()).add(part)
            if stacked:
                ours.setdefault((module, None), set()).add(part)
    inner = sorted(ours.items(), key=lambda item: len(item[0][0]))
    by_tensors = {(frozenset(value), key[1] is not None): key for key, value in inner}
    pairs: dict[tuple[str, int | None], str] = {}
    for (module, stacked), value in sorted(theirs.items(), key=lambda item: len(item[0][0])):
        match = by_tensors.get((frozenset(value), stacked))
        if match and module in modules:
            pairs[match] = module
    for (path, layer), module in pairs.items():
        yield Site(module, (path,), layer)


def _fused_modules(held: Iterable[Held], modules: Collection[str]) -> Iterator[Site]:
    """Yield torch's maps that hold several of dew's."""
    whole: dict[tuple[str, int | None], list[str]] = {}
    for part in held:
        if part.woven:
            continue
        whole.setdefault((part.name, part.layer), []).append(part.leaf.rsplit("/", 1)[0])
    for (name, layer), paths in whole.items():
        module = name.rsplit(".", 1)[0]
        if len(paths) > 1 and len(set(paths)) == len(paths) and module in modules:
            yield Site(module, tuple(paths), layer)


def _above(name: str, mark: str) -> list[str]:
    """Return every module that something lies in, outermost first."""
    parts = name.split(mark)[:-1]
    return [mark.join(parts[: count + 1]) for count in range(len(parts))]

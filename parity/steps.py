"""How far dew and torch are apart inside a model: at what each module reads and gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity import inputs as model_inputs
from parity import reference, reference_inside
from parity.inputs import Inputs
from parity.inside import Seen, seen_inside
from parity.places import Held, Site, held_tensors, sites
from parity.reference_inside import GIVEN, parted
from parity.rounding import Deviation, deviation
from parity.subject import Subject

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Step:
    """One array inside a model, on both sides.

    Args:
        site: the module.
        side: whether it is what the module reads ("input") or gives ("output").
        deviation: how far the two are apart, at real tokens.
    """

    site: Site
    side: str
    deviation: Deviation


@dataclass(frozen=True)
class TorchSide:
    """What torch's modules read and gave, in float32 and in float64, and which are dew's."""

    sites: tuple[Site, ...]
    single: Arrays
    exact: Arrays


def tensors_of(subject: Subject) -> list[Held]:
    """Return what tells dew's modules by torch's names; a traced model needs nothing."""
    return [] if subject.traced else held_tensors(subject)


def torch_side(subject: Subject, inputs: Inputs, held: Sequence[Held], chosen: Any) -> TorchSide:
    """Return torch's side of a run.

    Args:
        subject: the model.
        inputs: by the names that it takes.
        held: from `tensors_of`.
        chosen: makes of all sites those that are wanted.
    """
    single, exact = (
        subject.checkpoint.model(precision) for precision in (reference.SINGLE, reference.EXACT)
    )
    modules = reference_inside.called_modules(single)
    if subject.traced:
        found = [Site(name, (name,)) for name in sorted(modules) if name]
    else:
        found = sites(held, reference_inside.live_names(single), modules)
    wanted = tuple(chosen(found))
    names = {site.theirs for site in wanted}
    return TorchSide(
        wanted,
        reference_inside.events_inside(single, inputs, names),
        reference_inside.events_inside(exact, inputs, names),
    )


def steps_inside(subject: Subject, inputs: Inputs) -> list[Step]:
    """Return the deviation of what every matched module reads and gives, in torch's order.

    Args:
        subject: the model.
        inputs: by the names that it takes.
    """
    theirs = torch_side(subject, inputs, tensors_of(subject), list)
    return steps_between(seen_inside(subject, inputs), theirs, inputs)


def steps_between(ours: Mapping[str, Seen], theirs: TorchSide, inputs: Inputs) -> list[Step]:
    """Return the deviation of each array that both sides have, in torch's order."""
    return list(_steps(ours, theirs, inputs))


def numbered_layers(found: Sequence[Site]) -> list[Site]:
    """Return the sites whose module is one of a list: the layers of a traced model."""
    layers = [site for site in found if re.search(r"(^|\.)\d+$", site.theirs)]
    names = {site.theirs for site in layers}
    return [site for site in layers if not any(_within(site.theirs, name) for name in names)]


def _within(name: str, other: str) -> bool:
    return name.startswith(f"{other}.")


def _steps(ours: Mapping[str, Seen], theirs: TorchSide, inputs: Inputs) -> Iterator[Step]:
    known = {site.theirs: site for site in theirs.sites}
    for name, single in theirs.single.items():
        side, module = parted(name)
        seen, exact = _ours(known[module], side, ours), theirs.exact.get(name)
        if seen is None or exact is None:
            continue
        layouts = _layouts(seen, exact)
        fitting = min(layouts, key=lambda found, exact=exact: _distance(found, exact), default=None)
        if fitting is None:
            continue
        kept = [_real(part, inputs) for part in (fitting, single, exact)]
        if kept[-1].size:
            scale = float(np.abs(kept[-1]).max())
            yield Step(known[module], side, deviation(name, *kept, scale=scale))


def _ours(site: Site, side: str, ours: Mapping[str, Seen]) -> np.ndarray | None:
    """Return dew's array, maps that torch has as one beside each other."""
    parts = []
    for path in site.ours:
        seen = ours.get(path)
        value = None if seen is None else seen.given if side == GIVEN else seen.read
        if value is None:
            return None
        parts.append(value if site.layer is None else value[site.layer])
    if len(parts) == 1 or side != GIVEN:
        return parts[0]
    leading = parts[0].shape[:2]
    if any(part.shape[:2] != leading for part in parts):
        return None
    return np.concatenate([part.reshape(*leading, -1) for part in parts], axis=-1)


def _layouts(found: np.ndarray, wanted: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the ways in which dew's array may be torch's.

    As it lies, but for axes that one side has as one; with channels last; with heads behind the
    tokens.
    """
    if found.size != wanted.size:
        return
    shape = wanted.shape
    if _joins(found.shape, shape):
        yield found.reshape(shape)
    if len(shape) > 2:
        last = (shape[0], *shape[2:], shape[1])
        if _joins(found.shape, last):
            yield np.moveaxis(found.reshape(last), -1, 1)
    if found.ndim == len(shape) == 4 and found.swapaxes(1, 2).shape == shape:
        yield found.swapaxes(1, 2)


def _joins(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Say whether two shapes differ at most in that one joins neighbouring axes of the other."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return min(len(one), len(other)) < 2


def _distance(found: np.ndarray, wanted: np.ndarray) -> float:
    distance = float(np.abs(found - wanted).sum())
    return distance if np.isfinite(distance) else float("inf")


def _real(value: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Return what is of real tokens; heads may stand before them."""
    masks = {inputs[name].shape for name in model_inputs.MASKS if name in inputs}
    if value.ndim == 4 and value.shape[:2] not in masks and value.shape[::2] in masks:
        value = value.swapaxes(1, 2)
    return model_inputs.real({"": value}, inputs)[""]

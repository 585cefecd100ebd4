"""What usually makes a port wrong, and the correction of dew's side that proves each.

A port is wrong in a weight (transposed, dropped, in another layout) or in a constant or a choice
(an epsilon, an activation's form, how positions turn). Weights are held to the files; constants are
tried, since what the config means is what may have been misread.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.places import Site
from parity.reference_inside import GIVEN
from parity.subject import Subject

MAP, NORM, ATTENTION, ACTIVATION = "map", "norm", "attention", "activation"
SUM, EMBEDDING, HEAD, INNER = "sum", "embedding", "head", "inner"
WHOLE = re.compile(r"layers|\w*_blocks|attention|cross|mlp|\w*block\d*")
"""The last part of the path of a module that holds maps and is none."""
CLOSE = 1e-5
SHOWN = 3

LIKELY: Mapping[str, tuple[str, ...]] = {
    MAP: (
        "a transposed square matrix",
        "a dropped bias",
        "rows of heads in another rotary layout",
        "tensors in each other's place",
        "float16 sums",
    ),
    NORM: (
        "the norm's epsilon",
        "a scale of w against 1 + w",
        "a mean that is or is not taken away",
        "float16 sums",
    ),
    ATTENTION: (
        "the mask or the window, off by one",
        "the scale of the scores",
        "the rotary base, layout or scaling",
        "key heads shared by the wrong queries",
        "float16 sums of the softmax",
    ),
    ACTIVATION: ("the activation's form (exact or tanh GELU)", "gate and up in each other's place"),
    INNER: (
        "the shares of experts, and how many are chosen",
        "the scale of the residual",
        "the place of the norms",
        "float16 sums",
    ),
    SUM: ("the place of the norms", "the scale of the residual", "a dropped bias"),
    EMBEDDING: (
        "an offset of the positions",
        "the embedding's scale",
        "rows of another table",
        "interpolated positions (antialias, the cubic's coefficient)",
        "the patches' or the signal's layout",
    ),
    HEAD: ("a head that is or is not tied", "the scale or the cap of the logits"),
}
"""The usual causes of each role, likeliest first."""

EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-7, 1e-3)
ACTIVATIONS = ("gelu", "gelu_new", "quick_gelu", "silu", "relu", "tanh", "linear")
THETAS = (10000.0, 500000.0, 1000000.0, 500.0)
OFFSETS = (0, 1, 2)


@dataclass(frozen=True)
class Correction:
    """A change of dew's side.

    Args:
        said: the cause that it mends, in words.
        made: a subject to the corrected one.
    """

    said: str
    made: Callable[[Subject], Subject]


def role_of(site: Site, side: str, *, first: bool) -> str:
    """Return what an operation is for.

    Args:
        site: the module where two sides part.
        side: whether they do in what it reads or in what it gives.
        first: whether no module of a layer came before.
    """
    tail = site.ours[0].rsplit("/", 1)[-1]
    if side == GIVEN:
        if WHOLE.fullmatch(tail):
            return INNER
        named = site.theirs.lower()
        return NORM if "norm" in tail or "norm" in named or ".ln" in named else MAP
    if tail == "out":
        return ATTENTION
    if tail == "down":
        return ACTIVATION
    return EMBEDDING if first else SUM


def likely(role: str) -> tuple[str, ...]:
    """Return the usual causes of a role, likeliest first."""
    return LIKELY[role]


def corrections(subject: Subject, role: str, module: str) -> Iterator[Correction]:
    """Yield corrections of a native subject, likeliest first.

    Args:
        subject: the wrong port.
        role: what the operation is for where it parts from torch.
        module: torch's name of the module there.
    """
    if subject.traced:
        return
    yield from _tensor_corrections(subject, module)
    model = subject.bundle.model
    for field, values, said in _fields(subject, role):
        here = _held(model, field)
        if here is _ABSENT:
            continue
        for value in values:
            if value != here:
                words = f"{said}: {here!r} where torch has {value!r}"
                yield Correction(words, changing(field, value))
    yield from _layer_choices(model, role)


def _fields(subject: Subject, role: str) -> list[tuple[str, Iterable[Any], str]]:
    """Return the fields of a model that bear on a role, and what each may rightly be."""
    model, told = subject.bundle.model, _numbers(subject.bundle.config)
    width = getattr(model, "emb_features", 0) or 1
    head = getattr(model, "head_width", None) or getattr(model, "head_features", None) or 1
    window = _held(model, "window")
    near = (window - 1, window + 1) if isinstance(window, int) else ()
    by_role: dict[str, list[tuple[str, Iterable[Any], str]]] = {
        NORM: [
            ("norm_epsilon", (*_tiny(told), *EPSILONS), "the norm's epsilon"),
            ("norm", ("rms", "rms_offset", "layer"), "the norm's kind"),
        ],
        INNER: [
            ("experts.chosen", _whole(told), "how many experts are chosen"),
            ("experts.normalized", (True, False), "whether the experts' shares add up to 1"),
            ("residual_scale", (1.0, *_fractions(told)), "the scale of the residual"),
        ],
        ACTIVATION: [("activation", ACTIVATIONS, "the activation's form")],
        ATTENTION: [
            ("window", (*near, None, *_whole(told)), "the window"),
            ("rope.theta", (*_large(told), *THETAS), "the rotary base"),
            ("rope.factor", _above_one(told), "the rotary factor"),
            ("rope.kind", ("default", "linear", "dynamic", "llama3", "yarn"), "the rotary scaling"),
            ("score_scale", (None, 1.0, head**-0.5, width**-0.5), "the scale of the scores"),
            ("score_cap", (None, *_above_one(told)), "the cap of the scores"),
            ("causal", (True, False), "whether the mask is causal"),
            ("buckets", _whole(told), "the buckets of distances"),
            ("farthest", _whole(told), "the farthest distance"),
        ],
        SUM: [
            ("residual_scale", (1.0, *_fractions(told)), "the scale of the residual"),
            ("norm_places", ("before", "residual", "around", "after"), "the place of the norms"),
        ],
        EMBEDDING: [
            ("position_offset", OFFSETS, "the offset of the positions"),
            ("embed_scale", (1.0, width**0.5, *_above_one(told)), "the embedding's scale"),
            ("padding_id", (None, 0, 1), "the positions' first row"),
            ("first_norm", (True, False), "a norm before the layers"),
        ],
        HEAD: [
            ("logit_scale", (1.0, width**-0.5, *_inverse(told)), "the scale of the logits"),
            ("logit_cap", (None, *_above_one(told)), "the cap of the logits"),
            ("pooled", ("end", "largest", "last", "class", "dense"), "which token is pooled"),
            ("pooled_activation", ("tanh", "gelu", "linear"), "the pooler's activation"),
            ("classified", ("class", "patches", "tokens", "class_mean"), "what labels are read of"),
        ],
    }
    lower = [("dtype", ("float32",), "sums in half precision")]
    others = [entry for key, entries in by_role.items() if key != role for entry in entries]
    return [*lower, *by_role.get(role, []), *(others if role == HEAD else [])]


def _layer_choices(model: Any, role: str) -> Iterator[Correction]:
    """Yield which layers look through a window, the other way about."""
    windowed = getattr(model, "windowed", ())
    if role == ATTENTION and windowed:
        turned = tuple(not near for near in windowed)
        said = f"the windowed layers: {windowed} where torch has {turned}"
        yield Correction(said, changing("windowed", turned))


def _tensor_corrections(subject: Subject, module: str) -> Iterator[Correction]:
    """Yield the tensors that are not those of the files, those of `module` first."""
    from parity.stored import stored_tensors

    files = stored_tensors(subject.source)
    ours = subject.by_torch_name(subject.bundle.variables["params"])
    wrong = [
        name
        for name, value in files.items()
        if name in ours and not np.array_equal(ours[name], np.asarray(value, np.float32))
    ]
    wrong.sort(key=lambda name: not name.startswith(module))
    for name in wrong:
        said = f"{name} is {difference(ours[name], files[name], files)}"
        yield Correction(said, holding({name: files[name]}))
    if len(wrong) > 1:
        each = "; ".join(
            f"{name} is {difference(ours[name], files[name], files)}" for name in wrong[:SHOWN]
        )
        said = f"{len(wrong)} tensors are not the files': {each}"
        yield Correction(said, holding({name: files[name] for name in wrong}))


def difference(
    ours: np.ndarray, theirs: np.ndarray, files: Mapping[str, np.ndarray] | None = None
) -> str:
    """Return in words what was done to a tensor.

    Args:
        ours: dew's, in torch's layout.
        theirs: the files'.
        files: all tensors of the files, one of which may stand in the other's place.
    """
    ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
    if ours.shape != theirs.shape:
        return f"of shape {ours.shape}, not {theirs.shape}"
    if not ours.any():
        return "dropped: all zeros"
    forms = {
        "transposed": theirs.T,
        "flipped along its last axis": theirs[..., ::-1],
        "1 too large (a scale of w for 1 + w)": theirs + 1,
        "1 too small (a scale of 1 + w for w)": theirs - 1,
        "rounded to float16": theirs.astype(np.float16).astype(np.float32),
        "of the other sign": -theirs,
    }
    for words, form in forms.items():
        if form.shape == ours.shape and np.array_equal(ours, form):
            return words
    for name, other in (files or {}).items():
        if other.shape == ours.shape and np.array_equal(ours, np.asarray(other, np.float32)):
            return f"{name} in its place"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(np.nanmedian(ours / theirs))
    if np.allclose(ours, ratio * theirs, rtol=CLOSE):
        return f"scaled by {ratio:.4g}"
    if ours.ndim == 2 and _same_rows(ours, theirs):
        return "with its rows in another order (a rotary layout, or heads)"
    return "another tensor's values"


def _same_rows(one: np.ndarray, other: np.ndarray) -> bool:
    first, second = (part[np.lexsort(part.T[::-1])] for part in (one, other))
    return np.array_equal(first, second)


class _Absent:
    """Stands for a field that a model has not."""


_ABSENT = _Absent()


def _held(model: Any, field: str) -> Any:
    """Return a model's field, or that of what it holds: `rope.theta`, or one of its `spec`."""
    owner, _, name = field.rpartition(".")
    holder = _owner(model, owner, name)
    return _ABSENT if holder is _ABSENT else getattr(holder, name)


def _owner(model: Any, owner: str, name: str) -> Any:
    if owner:
        held = getattr(model, owner, _ABSENT)
        return held if _has(held, name) else _ABSENT
    if _has(model, name):
        return model
    parts = (getattr(model, part) for part in ("spec", "text", "vision") if _has(model, part))
    return next((part for part in parts if _has(part, name)), _ABSENT)


def _has(value: Any, name: str) -> bool:
    return dataclasses.is_dataclass(value) and name in {f.name for f in dataclasses.fields(value)}


def changing(field: str, value: Any) -> Callable[[Subject], Subject]:
    """Return what gives a subject's model another value of a field, such as `rope.theta`."""

    def made(subject: Subject) -> Subject:
        model = subject.bundle.model
        owner, _, name = field.rpartition(".")
        if not owner and _has(model, name):
            changed = model.clone(**{name: value})
        else:
            place = owner or next(
                part
                for part in ("spec", "text", "vision")
                if _has(getattr(model, part, None), name)
            )
            part = dataclasses.replace(getattr(model, place), **{name: value})
            changed = model.clone(**{place: part})
        return dataclasses.replace(subject, bundle=subject.bundle.replace(model=changed))

    return made


def holding(tensors: Mapping[str, np.ndarray]) -> Callable[[Subject], Subject]:
    """Return what gives a subject other tensors, by their names in the files."""

    def made(subject: Subject) -> Subject:
        from bridges.family import family_of
        from bridges.table import into_tree

        bundle = subject.bundle
        family = family_of(bundle.config)
        prefix = family.base_prefix if bundle.stored.bare else ""
        held = {prefix + name: value for name, value in _all(subject).items()}
        held |= {prefix + name: np.asarray(value, np.float32) for name, value in tensors.items()}
        params = into_tree(
            family.rows(bundle.model), _Named(held), bundle.model.parameter_shapes(), "float32"
        )
        variables = {**bundle.variables, "params": params}
        return dataclasses.replace(subject, bundle=bundle.replace(variables=variables))

    return made


def _all(subject: Subject) -> dict[str, np.ndarray]:
    return subject.by_torch_name(subject.bundle.variables["params"])


@dataclass(frozen=True)
class _Named:
    """Arrays as an open checkpoint gives them."""

    held: Mapping[str, np.ndarray]

    def names(self) -> list[str]:
        return list(self.held)

    def info(self, name: str) -> np.ndarray:
        return self.held[name]

    def read(self, name: str) -> np.ndarray:
        return self.held[name]

    def release(self, name: str) -> None:
        del name


def _numbers(config: Mapping[str, Any]) -> list[float]:
    """Return every number of a config, those of its sections included."""
    found: list[float] = []
    for value in config.values():
        if isinstance(value, Mapping):
            found += _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append(value)
    return list(dict.fromkeys(found))


def _tiny(numbers: Iterable[float]) -> list[float]:
    return [number for number in numbers if 0 < number < 1e-2]


def _large(numbers: Iterable[float]) -> list[float]:
    return [number for number in numbers if number >= 100]


def _whole(numbers: Iterable[float]) -> list[int]:
    return [int(number) for number in numbers if number == int(number) and 2 <= number <= 4096]


def _above_one(numbers: Iterable[float]) -> list[float]:
    return [float(number) for number in numbers if 1 < number <= 100]


def _fractions(numbers: Iterable[float]) -> list[float]:
    return [float(number) for number in numbers if 1e-2 <= number < 1]


def _inverse(numbers: Iterable[float]) -> list[float]:
    return [1 / number for number in numbers if number > 1]

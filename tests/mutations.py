"""Deliberate faults, one at a time, in ports that are right: what the checks must find.

Each is of a kind that real ports had (CASES, by their numbers). A fault is a change of the subject:
of a weight, of a constant of the model, or of a function of dew's while the checks run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from parity.causes import changing, holding
from parity.subject import Subject

Change = Callable[[Any], AbstractContextManager[Any]]
Array = np.ndarray


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        name: of it, in words.
        kind: of fault.
        subject: the tiny model that it is put into.
        change: gives the wrong subject, while it is entered.
        place: torch's name of the module where the sides part first, or what it starts with;
            empty where the fault is in no layer.
        checks: those that may see it, where they are not those of a forward run.
    """

    name: str
    kind: str
    subject: str
    change: Change
    place: str = ""
    checks: tuple[str, ...] = (
        *("weights", "logits", "hidden states", "padding", "loss and gradient"),
    )


def tensor(name: str, change: Callable[[Array], Array]) -> Change:
    """Change one tensor, by its name in the files."""

    def made(subject: Subject) -> AbstractContextManager[Subject]:
        value = subject.by_torch_name(subject.bundle.variables["params"])[name]
        wrong = np.ascontiguousarray(change(value))
        assert not np.array_equal(wrong, value), f"{name} is as it was"
        return nullcontext(holding({name: wrong})(subject))

    return made


def exchanged(one: str, other: str) -> Change:
    """Put two tensors into each other's place."""

    def made(subject: Subject) -> AbstractContextManager[Subject]:
        held = subject.by_torch_name(subject.bundle.variables["params"])
        return nullcontext(holding({one: held[other], other: held[one]})(subject))

    return made


def field(name: str, value: Any) -> Change:
    """Give the model another constant: `rope.theta` is the `theta` of its `rope`."""
    return lambda subject: nullcontext(changing(name, value)(subject))


def within(part: str, **values: Any) -> Change:
    """Change fields of what the model holds as its field `part`."""

    def made(subject: Subject) -> AbstractContextManager[Subject]:
        changed = dataclasses.replace(getattr(subject.bundle.model, part), **values)
        return field(part, changed)(subject)

    return made


def patched(target: str, wrong: Callable[[Any], Any]) -> Change:
    """Put another function in the place of one of dew's, of which it is made."""

    @contextmanager
    def made(subject: Subject) -> Iterator[Subject]:
        holder, name = target.rsplit(".", 1)
        right = getattr(resolve_name(holder), name)
        jax.clear_caches()
        try:
            with mock.patch(target, wrong(right)):
                yield subject
        finally:
            jax.clear_caches()

    return made


def with_processor(made: Callable[[Any], Any]) -> Change:
    """Give the bundle another processor, made of its own."""

    def change(subject: Subject) -> AbstractContextManager[Subject]:
        bundle = subject.bundle.replace(processor=made(subject.bundle.processor))
        return nullcontext(dataclasses.replace(subject, bundle=bundle))

    return change


def resized(change: Change, size: tuple[int, int] = (32, 40)) -> Change:
    """Ask the subject about images of another size than its own."""
    return lambda subject: change(dataclasses.replace(subject, image_size=size))


def transposed(value: Array) -> Array:
    """Return a square matrix turned about."""
    assert value.shape[0] == value.shape[1], "only a square one goes unnoticed"
    return value.T


def interleaved(heads: int) -> Callable[[Array], Array]:
    """Return rows of heads with their two halves in turn: Meta's rotary layout."""

    def change(value: Array) -> Array:
        halves = value.reshape(heads, 2, -1, *value.shape[1:])
        return halves.swapaxes(1, 2).reshape(value.shape)

    return change


def turned_heads(heads: int) -> Callable[[Array], Array]:
    """Return heads in the other order: query heads then read the wrong key head."""
    return lambda value: value.reshape(heads, -1, *value.shape[1:])[::-1].reshape(value.shape)


def dropped(value: Array) -> Array:
    """Return zeros."""
    return np.zeros_like(value)


def halved(right: Any) -> Any:
    """Return a function whose results are rounded to float16."""
    return lambda *args, **kw: right(*args, **kw).astype(jnp.float16).astype(jnp.float32)


def halved_inner(right: Any) -> Any:
    """Return `recomputed`, of functions whose results are rounded to float16."""
    return lambda function: right(halved(function))


def shifted_mask(right: Any) -> Any:
    """Return `causal_mask` that lets a token see the one behind it."""

    def wrong(mask: Any, segments: Any) -> Any:
        found = right(mask, segments)
        assert found is not None
        length = found.shape[-1]
        return found | (jnp.eye(length, k=1, dtype=bool)[None, None] & (mask != 0)[:, None, None])

    return wrong


def filtered(right: Any) -> Any:
    """Return `stretched` that filters what it shrinks, as JAX's resize does."""

    def wrong(inputs: int, outputs: int) -> Array:
        shape = (outputs, inputs)
        return np.asarray(jax.image.resize(np.eye(inputs), shape, "cubic"), np.float32)

    return wrong


def unmasked(right: Any) -> Any:
    """Return `full_mask` that sees padding."""
    return lambda length, mask, segments: right(length, None, segments)


def every_fault() -> tuple[Fault, ...]:
    """Return the faults of all kinds."""
    from mutations_beyond import BEYOND
    from mutations_layout import LAYOUT
    from mutations_numerics import NUMERICS

    return (*LAYOUT, *NUMERICS, *BEYOND)


def found(fault: Fault, subject: Subject | None, judge: Any, *, seed: int = 0) -> Mapping[str, Any]:
    """Return what the checks say of a fault: which failed first, where, and why.

    Args:
        fault: the fault.
        subject: the right port.
        judge: as `parity.check.judge`.
        seed: of the inputs.
    """
    from parity.localising import localised
    from parity.running import load_check

    record: dict[str, Any] = {"fault": fault.name, "kind": fault.kind, "subject": fault.subject}
    with fault.change(subject) as wrong:
        for name in fault.checks:
            check = load_check(name)
            if wrong is not None and wrong.why_not(name):
                continue
            verdict = judge(check, wrong, seed=seed)
            if not verdict.passed:
                verdict = localised(verdict, check, wrong, seed=seed, judge=judge)
                named = bool(fault.place) and fault.place in verdict.place
                causes = list(verdict.causes)
                return {
                    **record,
                    "check": name,
                    "place": verdict.place,
                    "expected": fault.place,
                    "named": named,
                    "causes": causes,
                }
    return {**record, "check": None, "place": "", "expected": fault.place, "named": False}

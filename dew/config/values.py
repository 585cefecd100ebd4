"""The values of a configuration: JSON's types, and how one is held to a type annotation."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from dew.errors import InputRefused, listed, nearest, shown

DEEPEST = 16


class ConfigRefused(InputRefused):
    """A configuration with something wrong in it; the message lists everything.

    Attributes:
        problems: one line each.
    """

    def __init__(self, problems: Sequence[str]):
        self.problems = tuple(problems)
        super().__init__(listed(f"configuration: {len(problems)} problem(s):", problems))


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """Return `value` in the types of a configuration, copied.

    These are None, bool, int, finite float, str, tuples of them (lists become tuples) and
    mappings from text. NumPy's numbers become Python's, and a dataclass a mapping of its fields.

    Raises:
        InputRefused: anything else, or nested deeper than 16.
    """
    if depth > DEEPEST:
        raise InputRefused(f"{where}: nested deeper than {DEEPEST}")
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise InputRefused(f"{where} is {value}; expected a finite number")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(plain(part, f"{where}.{n}", depth + 1) for n, part in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise InputRefused(f"{where}: a name is text; found {shown(wrong[0])}")
        return {key: plain(part, f"{where}.{key}", depth + 1) for key, part in value.items()}
    raise InputRefused(
        f"{where} is {shown(value)}; a configuration holds texts, numbers, true, false, lists "
        "and mappings"
    )


def to_json(value: Any) -> Any:
    """Return a plain value with lists for tuples, as JSON and YAML write it."""
    if isinstance(value, tuple):
        return [to_json(part) for part in value]
    if isinstance(value, Mapping):
        return {key: to_json(part) for key, part in value.items()}
    return value


def typed(value: Any, hint: Any, where: str) -> Any:
    """Return a plain value as `hint` wants it: a whole number as a float, 1e3 as an int.

    A mapping for a dataclass is checked, and stays a mapping; `built` makes the instance.

    Args:
        value: as `plain` gives it.
        hint: a resolved type annotation; Any takes everything.
        where: the path of the value, for messages.

    Raises:
        InputRefused: another type than the annotation's.
    """
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(value, arms, where)
    if origin is Literal:
        if not any(value == arm and type(value) is type(arm) for arm in arms):
            raise InputRefused(f"{where} is {shown(value)}; expected one of {shown(list(arms))}")
        return value
    if origin in (tuple, list, Sequence):
        return _items(value, origin, arms, where)
    if hint in _SIMPLE:
        return _SIMPLE[hint](value, where)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return _wanted(value, isinstance(value, Mapping), "a mapping", where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        _wanted(value, isinstance(value, Mapping), "a mapping", where)
        problems: list[str] = []
        checked = arguments(value, parameters(hint), where, problems)
        if problems:
            raise ConfigRefused(problems)
        return checked
    return value


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One argument that a class takes: its annotation, and whether it has to be given."""

    hint: Any
    required: bool


def parameters(cls: type) -> dict[str, Parameter]:
    """Return the named arguments that a class takes, by name.

    Flax's own `parent` and `name` are left out.
    """
    import inspect

    code: Any = cls if dataclasses.is_dataclass(cls) else cls.__init__
    try:
        hints = typing.get_type_hints(code)
    except (NameError, TypeError):  # names that exist for type checkers alone
        hints = {}
    found = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if named and name not in ("parent", "name"):
            required = parameter.default is parameter.empty
            found[name] = Parameter(hints.get(name, Any), required)
    return found


def arguments(
    values: Mapping[str, Any],
    known: Mapping[str, Parameter],
    where: str,
    problems: list[str],
) -> dict[str, Any]:
    """Return the values that fit `known`; what does not goes into `problems`."""
    fitting = {}
    for name, value in values.items():
        path = f"{where}.{name}" if where else name
        if name not in known:
            problems.append(f"{path}: no such setting{nearest(name, known)}")
            continue
        try:
            fitting[name] = typed(plain(value, path), known[name].hint, path)
        except ConfigRefused as error:
            problems.extend(error.problems)
        except InputRefused as error:
            problems.append(str(error))
    return fitting


def built(value: Any, hint: Any, home: str) -> Any:
    """Return what a checked value stands for: instances of dataclasses, functions.

    A number in the place of a function is the function that always gives it; a text is the name
    of one in the module `home`.
    """
    if value is None:
        return None
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return built(value, next((arm for arm in arms if _stands_for(value, arm)), Any), home)
    if isinstance(value, tuple) and origin in (tuple, list, Sequence) and arms:
        kinds = arms if len(arms) == len(value) and arms[-1] is not ... else arms[:1] * len(value)
        return tuple(built(part, arm, home) for part, arm in zip(value, kinds, strict=True))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        known = parameters(hint)
        module = hint.__module__
        return hint(**{name: built(part, known[name].hint, module) for name, part in value.items()})
    if origin is Callable or hint is Callable:
        return _function(value, home)
    return value


def _stands_for(value: Any, arm: Any) -> bool:
    """Tell which arm of a union a checked value was meant for."""
    origin = typing.get_origin(arm) or arm
    if isinstance(value, Mapping):
        return dataclasses.is_dataclass(origin) or origin in (dict, Mapping)
    if isinstance(value, tuple):
        return origin in (tuple, list, Sequence)
    return origin is Callable or (isinstance(origin, type) and isinstance(value, origin))


def _function(value: Any, home: str) -> Any:
    import importlib

    if isinstance(value, str):
        module = vars(importlib.import_module(home))
        functions = [name for name, found in module.items() if callable(found)]
        if value not in functions:
            raise InputRefused(f"no function {shown(value)} in {home}{nearest(value, functions)}")
        return module[value]
    return lambda *_: value


def _one_of(value: Any, arms: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in arms:
        return None
    first: InputRefused | None = None
    for arm in arms:
        if arm is type(None):
            continue
        try:
            return typed(value, arm, where)
        except InputRefused as error:
            first = first or error
    raise first or InputRefused(f"{where} is {shown(value)}; expected nothing")


def _items(value: Any, origin: Any, arms: tuple[Any, ...], where: str) -> Any:
    _wanted(value, isinstance(value, tuple), "a list", where)
    if not arms or arms == ((),):
        return value
    if origin is not tuple or arms[1:] == (...,):
        return tuple(typed(part, arms[0], f"{where}.{n}") for n, part in enumerate(value))
    if len(value) != len(arms):
        raise InputRefused(f"{where} has {len(value)} items; expected {len(arms)}")
    pairs = zip(value, arms, strict=True)
    return tuple(typed(part, arm, f"{where}.{n}") for n, (part, arm) in enumerate(pairs))


def _wanted(value: Any, fits: bool, expected: str, where: str) -> Any:
    if not fits:
        kind = "text " if isinstance(value, str) else ""
        raise InputRefused(f"{where} is {kind}{shown(value)}; expected {expected}")
    return value


def _integer(value: Any, where: str) -> int:
    whole = isinstance(value, float) and value == int(value)
    fits = isinstance(value, int) and not isinstance(value, bool)
    return int(_wanted(value, fits or whole, "a whole number", where))


def _float(value: Any, where: str) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    _wanted(value, fits, "a number", where)
    try:
        return float(value)
    except OverflowError:
        raise InputRefused(f"{where} is {shown(value, 40)}; expected a finite number") from None


_SIMPLE: dict[Any, Callable[[Any, str], Any]] = {
    int: _integer,
    float: _float,
    bool: lambda value, where: _wanted(value, isinstance(value, bool), "true or false", where),
    str: lambda value, where: _wanted(value, isinstance(value, str), "a text", where),
    tuple: lambda value, where: _wanted(value, isinstance(value, tuple), "a list", where),
    list: lambda value, where: _wanted(value, isinstance(value, tuple), "a list", where),
    type(None): lambda value, where: _wanted(value, value is None, "nothing", where),
}

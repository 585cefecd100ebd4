"""Reading a run's YAML or JSON: a plain mapping, no tags, no anchors, bounded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dew.errors import InputRefused, shown

LARGEST_FILE = 1 << 20
DEEPEST = 16

# YAML 1.2's float: PyYAML keeps 1.1's, which reads `2e-5` as text.
_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|NaN|-?Infinity)$""",
    re.VERBOSE,
)


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the mapping that a YAML or JSON file holds.

    Raises:
        InputRefused: no such file, not UTF-8, not YAML, a tag, an anchor or alias, a key twice,
            nested deeper than 16, larger than 1 MiB, or not a mapping of texts.
    """
    path = Path(path)
    text = _text(path)
    _check_events(path, text)
    value = _construct(path, text)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputRefused(
            f"{path}: expected a mapping of settings, such as `max_steps: 100`; "
            f"found {type(value).__name__}"
        )
    wrong = [key for key in value if not isinstance(key, str)]
    if wrong:
        raise InputRefused(f"{path}: a setting's name is text; found {shown(wrong)}")
    return value


def read_value(text: str, where: str) -> Any:
    """Return the value that a text stands for in YAML: `1e-3`, `true`, `[1, 2]`, `{a: 1}`.

    Raises:
        InputRefused: not YAML, a tag, an anchor or alias, or nested deeper than 16.
    """
    _check_events(Path(where), text)
    return _construct(Path(where), text)


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise InputRefused(f"{path}: not a regular file; a configuration is a short YAML file")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputRefused(f"configuration file {path}: {error.strerror or error}") from error
    if len(data) > LARGEST_FILE:
        raise InputRefused(f"{path}: over {LARGEST_FILE} bytes; a configuration is a short file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputRefused(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from error


def _check_events(path: Path, text: str) -> None:
    """Refuse what a configuration must not hold, before anything is built from it."""
    import yaml

    depth = documents = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            where = f"{path}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise InputRefused(
                    f"{where}: anchors and aliases (& and *) are not read; write the value out"
                )
            if getattr(event, "tag", None):
                raise InputRefused(
                    f"{where}: tag {shown(event.tag)} is not read; a configuration holds plain "
                    "texts, numbers, true, false and lists"
                )
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            documents += isinstance(event, yaml.DocumentStartEvent)
            if depth > DEEPEST:
                raise InputRefused(f"{where}: nested deeper than {DEEPEST}")
            if documents > 1:
                raise InputRefused(f"{where}: a second document; keep one configuration a file")
    except yaml.YAMLError as error:
        raise InputRefused(_located(path, error)) from error


def _construct(path: Path, text: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.YAMLError as error:
        raise InputRefused(_located(path, error)) from error
    except ValueError as error:  # dates such as 2024-13-45
        raise InputRefused(f"{path}: {error}") from error


def _loader() -> Any:
    """Return a safe loader class that reads YAML 1.2 floats and refuses a key given twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for name, _ in node.value:
                if name.value in seen and isinstance(name, yaml.ScalarNode):
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {shown(name.value)} stands twice", name.start_mark
                    )
                seen.add(name.value if isinstance(name, yaml.ScalarNode) else id(name))
            return super().construct_mapping(node, deep=deep)

    float_tag, kept = "tag:yaml.org,2002:float", ("bool", "int", "null")
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] in kept]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(float_tag, _FLOAT, list("-+0123456789.NI"))
    Loader.add_constructor(float_tag, _float)
    return Loader


def _float(loader: Any, node: Any) -> float:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _located(path: Path, error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
    return f"{where}: not readable as YAML: {shown(problem)}"

"""The support table: what the contract finds of every tiny model, kept and shown family by family.

Results lie in a JSON file that is written after each model, so that a run goes on where an earlier
one ended. The table is rendered from that file alone.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from parity.check import Check, Verdict, judge

COLUMNS: Mapping[str, str] = {
    "tensors": "weights",
    "outputs": "logits",
    "gradients": "loss and gradient",
    "padding": "padding",
    "greedy": "greedy",
    "beams": "beams",
    "update": "update",
    "export": "export",
    "transformers 5": "round trip",
    "transformers 4": "transformers 4",
}
"""The table's columns, and the check that each is of."""
ABSENT: Mapping[str, str] = {
    "padding": "no mask",
    "greedy": "no generate",
    "beams": "no generate",
}
"""Why a model was not asked, in a cell's words."""
MINDFUL = "minded there too"
"""What a cell says of padding that the model minds in transformers as well."""
MINDS = 1e-4
"""How much of the largest output torch's own may change by padding and still count as rounding."""
AGREES, DIFFERS, NONE = "agrees", "differs", "none"
DASH = "\N{EN DASH}"
SEED = 0
FOUR = "transformers-4"
MARKS = ("<!-- support -->", "<!-- /support -->")

Record = dict[str, Any]
Told = Callable[[str, Mapping[str, str]], None]


def measure(path: Path, names: Sequence[str], *, told: Told, cache: Path) -> Record:
    """Run the contract over models that have no results yet, and return all results.

    Args:
        path: the file of results; written after every model.
        names: of `parity.tiny.MODELS`.
        told: called with each model's name and cells as they come.
        cache: where transformers 4 is, or is installed.
    """
    import jax

    from parity import reference, tiny
    from parity.four import TransformersFour, install

    reference.run_alone()
    record = read(path)
    record["versions"] = {"jax": version("jax"), "dew": version("dew")} | reference.versions()
    models: dict[str, Any] = record.setdefault("models", {})
    record["models"] = models = {n: models[n] for n in tiny.MODELS if n in models}
    missing = [name for name in names if set(models.get(name, {}).get("cells", ())) < _checks()]
    if not missing:
        return record
    with (
        TransformersFour(install(cache / FOUR)) as four,
        tempfile.TemporaryDirectory() as folder,
    ):
        for name in missing:
            models[name] = {
                "type": tiny.MODELS[name]["model_type"],
                "traced": name not in tiny.NATIVE,
                "cells": _cells(name, Path(folder), four),
            }
            record["models"] = {n: models[n] for n in tiny.MODELS if n in models}
            jax.clear_caches()
            _write(path, record)
            told(name, models[name]["cells"])
    return record


def table(record: Record) -> str:
    """Return the results as a table in markdown, a row for each family and each traced type."""
    rows: dict[tuple[bool, str], list[Mapping[str, str]]] = {}
    for found in record["models"].values():
        rows.setdefault((found["traced"], found["type"]), []).append(found["cells"])
    lines = [_line(["", *COLUMNS]), _line(["---", *["---"] * len(COLUMNS)])]
    for traced in (False, True):
        kinds = [kind for kind in rows if kind[0] is traced]
        if kinds:
            title = "traced" if traced else "native"
            lines.append(_line([f"**{title}**", *[""] * len(COLUMNS)]))
        for kind in kinds:
            parts = rows[kind]
            many = f" ({len(parts)})" if len(parts) > 1 else ""
            cells = (_shown(check, [part[check] for part in parts]) for check in COLUMNS.values())
            lines.append(_line([f"`{kind[1]}`{many}", *cells]))
    return "\n".join(lines)


def section(record: Record) -> str:
    """Return what stands between the marks of a README."""
    count = len(record["models"])
    said = record["versions"]
    return (
        f"{MARKS[0]}\n"
        f"`python -m parity support` asked {count} tiny random models, against transformers "
        f"{said['transformers']} and torch {said['torch']} ([figures](docs/support.json)). In "
        f"brackets is how many models stand for a type; ✓ is where all of them agree, {DASH} where "
        f"there was nothing to ask: *{MINDFUL}* means that padding changes transformers' own "
        "outputs as well, *nor the source* that transformers 4 does not read the source either.\n\n"
        f"{table(record)}\n{MARKS[1]}"
    )


def write_section(path: Path, record: Record) -> None:
    """Put the table between the marks of a file.

    Raises:
        ValueError: the marks are not there, once each and in order.
    """
    text = path.read_text(encoding="utf-8")
    places = [text.find(mark) for mark in MARKS]
    if any(text.count(mark) != 1 for mark in MARKS) or places[0] > places[1]:
        raise ValueError(f"{path}: expected {MARKS[0]} and below it {MARKS[1]}, once each")
    end = places[1] + len(MARKS[1])
    path.write_text(text[: places[0]] + section(record) + text[end:], encoding="utf-8")


def read(path: Path) -> Record:
    """Return the results of a file; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"models": {}}


def forget(path: Path, names: Iterable[str]) -> None:
    """Drop the results of some models from a file."""
    record = read(path)
    record["models"] = {n: v for n, v in record["models"].items() if n not in set(names)}
    _write(path, record)


def failures(record: Record) -> list[str]:
    """Return a line for each cell that differs."""
    return [
        f"{name}, {check}: {cell}"
        for name, found in record["models"].items()
        for check, cell in found["cells"].items()
        if cell.startswith(DIFFERS)
    ]


def _checks() -> set[str]:
    return set(COLUMNS.values())


def _cells(name: str, folder: Path, four: Any) -> dict[str, str]:
    """Return each check's result about one model."""
    from parity import tiny
    from parity.checks.transformers_4 import ReadByFour
    from parity.running import load_check

    try:
        subject = tiny.subject(name, folder, seed=SEED)
    except Exception as error:
        return dict.fromkeys(COLUMNS.values(), f"{DIFFERS}: not loaded, {error}")
    found = {}
    for wanted in COLUMNS.values():
        check: Check = ReadByFour(four) if wanted == ReadByFour.name else load_check(wanted)
        found[wanted] = (
            f"{NONE}: {ABSENT[wanted]}"
            if subject.why_not(wanted)
            else _cell(judge(check, subject, seed=SEED))
        )
    return found


def _cell(verdict: Verdict) -> str:
    """Return a verdict as a cell of the results: its state, and the figures behind it."""
    figures = verdict.figures
    if "absent" in figures:
        return f"{NONE}: {figures['absent']}"
    share = ""
    if isinstance(figures.get("ours"), float) and isinstance(figures.get("allowed"), float):
        share = f"{_number(figures['ours'])} of {_number(figures['allowed'])} allowed"
    if not verdict.passed:
        return f"{DIFFERS}: {share + '; ' if share else ''}{verdict.reason}"
    minds = figures.get("torch_itself", 0.0)
    if isinstance(minds, float) and minds > MINDS:
        return f"{NONE}: {MINDFUL}"
    counts = ", ".join(f"{n} {v}" for n, v in figures.items() if isinstance(v, int))
    return f"{AGREES}: {share or counts}"


def _number(value: Any) -> str:
    return f"{value:.2g}"


def _shown(check: str, cells: Sequence[str]) -> str:
    """Return the cell of several models of one type."""
    wrong = [cell for cell in cells if cell.startswith(DIFFERS)]
    if wrong:
        many = f" {len(wrong)} of {len(cells)}" if len(cells) > 1 else ""
        figure = wrong[0].removeprefix(f"{DIFFERS}: ").split(";")[0]
        return f"✗{many} {figure:.40}".replace("|", "/")
    if any(cell.startswith(AGREES) for cell in cells):
        return "✓"
    return f"{DASH} {cells[0].removeprefix(f'{NONE}: ')}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(aside, path)

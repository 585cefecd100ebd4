"""The support table: what README shows is what the results say, of every family and tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridges.family import FAMILIES
from parity import support, tiny

ROOT = Path(__file__).parents[1]
RESULTS, README = ROOT / "docs" / "support.json", ROOT / "README.md"
GOOD = dict.fromkeys(support.COLUMNS.values(), "agrees: tensors 3")


def record(*cells: dict[str, str]) -> support.Record:
    """Return results of as many models of one type."""
    return {
        "versions": {"transformers": "5", "torch": "2"},
        "models": {
            f"m{n}": {"type": "m", "traced": False, "cells": part} for n, part in enumerate(cells)
        },
    }


def cells_of(table: str) -> dict[str, str]:
    """Return the cells of the table's last row by their columns."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return dict(zip(rows[0], rows[-1], strict=True))


def test_a_cell_tells_what_its_models_did():
    differs = GOOD | {"logits": "differs: 3 of 1 allowed; off", "greedy": "none: no generate"}
    writes_not = GOOD | {"greedy": "none: no generate", "padding": "none: no mask"}
    cells = cells_of(support.table(record(GOOD, differs)))
    assert cells[""] == "`m` (2)"
    assert cells["outputs"] == "✗ 1 of 2 3 of 1 allowed"
    assert cells["greedy"] == "✓"
    cells = cells_of(support.table(record(writes_not)))
    assert cells["greedy"] == f"{support.DASH} no generate"
    assert cells["padding"] == f"{support.DASH} no mask"
    assert cells["tensors"] == "✓"
    assert support.failures(record(GOOD, differs)) == ["m1, logits: differs: 3 of 1 allowed; off"]


def test_the_table_goes_between_the_marks_and_nowhere_else(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{support.MARKS[0]}\nold\n{support.MARKS[1]}\nafter\n")
    support.write_section(path, record(GOOD))
    support.write_section(path, record(GOOD))
    text = path.read_text()
    assert text == f"before\n{support.section(record(GOOD))}\nafter\n"
    path.write_text("no marks")
    with pytest.raises(ValueError, match="once each"):
        support.write_section(path, record(GOOD))


def test_readme_shows_the_results_of_every_family_and_tiny_model():
    results = support.read(RESULTS)
    assert support.section(results) in README.read_text(encoding="utf-8")
    assert set(results["models"]) == set(tiny.MODELS)
    assert set(FAMILIES) <= {found["type"] for found in results["models"].values()}
    for name, found in results["models"].items():
        assert set(found["cells"]) == set(support.COLUMNS.values()), name

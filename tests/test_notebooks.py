"""Every notebook runs from its first cell to its last, on the downloaded checkpoint and plays."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 600
"""What one notebook may take, and so each of its cells."""


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_cell_of_a_notebook_fails(path: Path, smollm2_gguf: Path, plays: Path) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    # A cell that raises ends the run with its traceback as the error's message.
    nbclient.NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert "error" not in kinds

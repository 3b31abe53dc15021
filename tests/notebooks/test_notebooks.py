"""Every notebook runs from its first cell to its last, asks first and answers last."""

from __future__ import annotations

from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_answer(path: Path) -> None:
    notebook = jupytext.read(path)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()
    kinds = [cell.cell_type for cell in notebook.cells]
    assert (kinds[0], kinds[-1]) == ("markdown", "markdown")
    assert "?" in notebook.cells[0].source
    assert "answer" in notebook.cells[-1].source.lower()
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_explains_and_defines_nothing_long(path: Path) -> None:
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= 25
            assert not any(line.startswith(("def ", "class ")) for line in cell.source.splitlines())

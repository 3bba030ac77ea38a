"""docs/notebook.ipynb runs from its first cell to its last, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)  # outputs are not kept
    place = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(book, timeout=900, resources=place).execute()
    told = "".join(output.get("text", "") for c in done.cells for output in c.get("outputs", []))
    assert "train  step" not in told and "\x1b" not in told  # a bar that is redrawn instead
    assert "best at step" in told
    assert "trainer.learning_rate" in told and "'five' is not an integer" in told
    assert (tmp_path / "model" / "score.py").exists()

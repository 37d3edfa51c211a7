"""Runs the notebook from the first cell to the last, in a new kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_name("flights.ipynb")


def test_each_cell_runs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    printed = "".join(
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.get("name") == "stdout"
    )
    assert printed.splitlines() == [
        "[1, 2, 3]",
        "AA 33.0",
        "B6 -18.0",
        "UA 3.0",
        "flights True",
    ]

"""Runs a notebook as Jupyter does, and renders it with its outputs as a page of Markdown."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]


def run_notebook(path: Path, folder: Path) -> list[Cell]:
    """Run a notebook in a folder; return its cells with their outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raises an exception.
    """
    from nbclient import NotebookClient
    from nbformat import reads

    notebook = reads(path.read_text(encoding="utf-8"), as_version=4)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where)
    cells: list[Cell] = client.execute().cells
    return cells


def as_markdown(cells: Sequence[Cell]) -> str:
    """The page: HTML outputs stay HTML, all other outputs are text."""
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: Cell) -> Iterator[str]:
    if cell["cell_type"] == "markdown":
        yield cell["source"]
        return
    yield f"```python\n{cell['source']}\n```"
    for output in cell["outputs"]:
        yield f'<div class="output">{_shown(output)}</div>'


def _shown(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        return str(data["text/html"]).replace("\n\n", "\n")
    return f"<pre>{html.escape(output.get('text') or data['text/plain'])}</pre>"

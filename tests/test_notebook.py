"""The notebook of the docs, run as a reader would run it, and the page that the site makes of it."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
MADE = runpy.run_path(str(ROOT / "docs" / "site" / "executed.py"))


def test_it_is_committed_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert len(cells) > 10
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.skipif(
    (Path(os.environ.get("PIMFLOW_SITE") or "no-site") / "notebook.html").is_file(),
    reason="the site that was built has run it: test_site.py looks at its page",
)
def test_every_cell_runs_and_its_page_shows_the_charts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nbclient", "ipykernel"):
        pytest.importorskip(module, reason="nbclient and ipykernel are in the extra dev")
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    cells = MADE["run_notebook"](NOTEBOOK, tmp_path)
    silent = [cell["source"] for cell in cells if cell["cell_type"] == "code" and not cell["outputs"]]
    assert silent == []
    assert (tmp_path / "report.html").is_file()
    page = MADE["as_markdown"](cells)
    assert page.count("<svg") >= 3
    assert "passed: 1 output of " in page
    assert page.count("```python") == sum(cell["cell_type"] == "code" for cell in cells)


def test_text_of_a_cell_is_not_markup() -> None:
    output = {"output_type": "stream", "name": "stdout", "text": "<b> & </b>"}
    (cell,) = [{"cell_type": "code", "source": "print(1 < 2)", "outputs": [output]}]
    assert MADE["as_markdown"]([cell]) == (
        '```python\nprint(1 < 2)\n```\n\n<div class="output"><pre>&lt;b&gt; &amp; &lt;/b&gt;</pre></div>\n'
    )

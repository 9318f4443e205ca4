"""The HTML report from Python: made from folders and from compiled models, saved, and never over another file."""

from __future__ import annotations

from pathlib import Path

import pytest

import pimflow
from pimflow.errors import ArgumentError, ModelError, OutputError


def test_a_folder_and_a_model_give_the_same_page(tmp_path: Path) -> None:
    compiled = pimflow.compile("zoo:toy", policy="newton++", use_cache=False)
    report = pimflow.html_report(compiled.save(tmp_path / "out"))
    assert report.html == pimflow.html_report(pimflow.load(tmp_path / "out")).html
    assert repr(report).startswith("<HtmlReport zoo:toy on pimflow, policy newton++, ")
    path = report.save(tmp_path / "new" / "page.html")
    assert path.read_text(encoding="utf-8") == report.html
    with pytest.raises(OutputError, match="exists"):
        report.save(path)
    assert "passed" in pimflow.html_report(compiled, verify=True).html
    assert "not checked" in report.html


def test_anything_but_a_compiled_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="'compiled'"):
        pimflow.html_report(5)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="not an output folder"):
        pimflow.html_report(tmp_path)

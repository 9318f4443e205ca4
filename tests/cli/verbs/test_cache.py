"""`pimflow cache`: described, cleared, and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import Capture, document, run


def test_the_cache_is_found_and_cleared(capsys: Capture, tmp_path: Path) -> None:
    assert run("compile", "zoo:toy", "-o", tmp_path / "out") == 0
    assert document(capsys, "cache", "info")["records"] > 0
    assert run("cache", "clear") == 0
    assert document(capsys, "cache", "info")["records"] == 0


def test_a_damaged_file_of_the_cache_is_one_line_of_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    assert run("compile", "zoo:toy", "-o", tmp_path / "out", "--policy", "md-dp") == 0
    assert not capsys.readouterr().err
    tables = sorted((tmp_path / "cache").iterdir())
    assert len(tables) == 6, "prices, plans, mappings, packed streams, runs, stamps of outputs"
    (plans,) = (table for table in tables if b"decisions" in table.read_bytes())
    for number, table in enumerate(tables):
        kept = plans.read_bytes()
        if table != plans:
            plans.unlink()  # otherwise prices are not looked up
        table.write_bytes(b"\x00\xff damaged\n" * 9)
        assert run("compile", "zoo:toy", "-o", tmp_path / f"out{number}", "--policy", "md-dp") == 0
        err = capsys.readouterr().err
        assert err.startswith("pimflow: warning: ")
        assert "9 damaged records" in err
        assert err.count("\n") == 1
        plans.write_bytes(kept)

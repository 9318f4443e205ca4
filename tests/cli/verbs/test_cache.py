"""`pimflow cache`: found, cleared, and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli import Capture, document, run


def test_the_cache_is_found_and_cleared(capsys: Capture, tmp_path: Path) -> None:
    assert run("compile", "zoo:toy", "-o", tmp_path / "out") == 0
    assert document(capsys, "cache", "info")["records"] > 0
    assert run("cache", "clear") == 0
    assert document(capsys, "cache", "info")["records"] == 0


def test_a_damaged_cache_is_one_line_of_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("one", "two"):
        assert run("compile", "zoo:toy", "-o", tmp_path / name, "--policy", "md-dp") == 0
        captured = capsys.readouterr()
        (table,) = (tmp_path / "cache").iterdir()
        table.write_bytes(b"\x00\xff damaged\n" * 9)
    assert captured.err.startswith("pimflow: warning: ")
    assert "damaged" in captured.err
    assert captured.err.count("\n") == 1

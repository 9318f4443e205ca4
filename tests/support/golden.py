"""Results that are kept as text beside the tests, so that a change of them shows as a diff.

    def test_figures(golden: Golden) -> None:
        golden.check("figures.txt", table)

compares with golden/figures.txt in the test's folder. `python -m pytest --update-golden` writes such files anew; what
changed is then for the reader of the diff to judge.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

UPDATE = "--update-golden"


@dataclass(frozen=True)
class Golden:
    """The golden files of one folder of tests.

    Args:
        folder: where they are.
        update: whether a text that differs, or has no file yet, is written; else it fails the test.
    """

    folder: Path
    update: bool

    def check(self, name: str, text: str) -> None:
        """The text is what the file of that name holds."""
        path = self.folder / name
        if self.update:
            self.folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.is_file():
            pytest.fail(f"there is no golden file {path}; write it with {UPDATE}", pytrace=False)
        kept = path.read_text(encoding="utf-8")
        if text != kept:
            lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), str(path), "this run", lineterm="", n=1)
            changes = "\n".join(lines) or "line ends differ"
            pytest.fail(f"{changes}\n\nIf that is as it should be, write it with {UPDATE}.", pytrace=False)


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows of text and numbers, one a line, separated by " | ", so that one longer entry changes its own line only."""
    return "".join(" | ".join(map(_cell, row)) + "\n" for row in (header, *rows))


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""Results stored as text next to the tests, so that a change shows as a diff.

    def test_figures(golden: Golden) -> None:
        golden.check("figures.txt", table)

compares with golden/figures.txt in the test's folder. `python -m pytest --update-golden` rewrites such files; the
reader of the diff then judges the change.
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
        update: whether to write a text that differs or has no file yet; otherwise such a text fails the test.
    """

    folder: Path
    update: bool

    def check(self, name: str, text: str) -> None:
        """Assert that the text equals the content of the file of that name."""
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
            pytest.fail(f"{changes}\n\nIf the change is intended, update the file with {UPDATE}.", pytrace=False)


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows of text and numbers, one per line, separated by " | ", so that a longer entry changes only its own line."""
    return "".join(" | ".join(map(_cell, row)) + "\n" for row in (header, *rows))


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""Progress is for people who look on: it is shown on a terminal, and wiped at the end."""

from __future__ import annotations

import io

import pytest

from pimflow.cli import output
from pimflow.cli.output import Progress


class Screen(io.StringIO):
    """Stderr that is a terminal, or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def shown(monkeypatch: pytest.MonkeyPatch, *texts: str, terminal: bool = True, columns: str = "80") -> str:
    screen = Screen(terminal=terminal)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(output, "_EVERY_S", 0.0)
    monkeypatch.setenv("COLUMNS", columns)
    with Progress() as progress:
        for text in texts:
            progress(text)
    return screen.getvalue()


def test_a_line_is_written_anew_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, "searching", "done") == "\rsearching\rdone     \r    \r"


def test_nothing_is_shown_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, "searching", "done", terminal=False) == ""


def test_a_line_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, "0123456789", columns="8") == "\r0123456\r       \r"


def test_it_is_not_written_more_often_than_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    with Progress() as progress:
        progress("at once")
    assert screen.getvalue() == ""

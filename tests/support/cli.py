"""The command line, run inside the test's process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pimflow.cli import main
from support.schemas import check

Capture = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    """Run `pimflow ARGUMENTS`; return the exit code."""
    return main([str(argument) for argument in arguments])


def document(capsys: Capture, *arguments: object) -> Any:
    """The output of `pimflow ARGUMENTS --json`: one document that matches its schema, with exit code 0."""
    capsys.readouterr()
    assert run(*arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    check(found)
    return found


def assert_one_line(capsys: Capture, *words: str) -> str:
    """Assert that the last verb printed one line on stderr with these words, and nothing on stdout; return the line."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pimflow: error: ")
    assert captured.err.count("\n") == 1, captured.err
    assert all(word in captured.err for word in words), captured.err
    return captured.err

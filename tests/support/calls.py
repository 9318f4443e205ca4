"""Records the calls of a function."""

from __future__ import annotations

from typing import Any

import pytest


def count_calls(monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> list[Any]:
    """Record the first argument of every call of a function, which a module or class has by that name."""
    calls: list[Any] = []
    function = getattr(where, name)

    def counted(*arguments: object) -> object:
        calls.append(arguments[0])
        return function(*arguments)

    monkeypatch.setattr(where, name, counted)
    return calls

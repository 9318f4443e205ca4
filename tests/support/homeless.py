"""A user without a home folder, as in some containers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def leave_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the home folder unknown, both in the environment and to the system."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PIMFLOW_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "home", staticmethod(no_home))

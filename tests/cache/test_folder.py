"""The location of the user's cache folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pimflow.cache import cache_folder
from pimflow.errors import OptionError
from support.homeless import leave_home


def test_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("PIMFLOW_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "pimflow"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/invalid")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "pimflow"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "pimflow" / "cache"


def test_without_a_home_folder_there_is_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_home(monkeypatch)
    with pytest.raises(OptionError, match="home folder"):
        cache_folder()

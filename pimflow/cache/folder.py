"""The user's cache folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pimflow.errors import OptionError

STATISTICS_SUFFIX = ".statistics"
"""The suffix of files that hold statistics of graphs."""


def cache_folder() -> Path:
    """$PIMFLOW_CACHE_DIR if set, otherwise `pimflow` in the user's cache folder of this platform.

    Raises:
        OptionError: it is not set, and the user has no home folder.
    """
    chosen = os.environ.get("PIMFLOW_CACHE_DIR")
    try:
        return Path(chosen).expanduser() if chosen else _platform_folder()
    except RuntimeError:
        raise OptionError("there is no home folder for the price cache", "set PIMFLOW_CACHE_DIR") from None


def _platform_folder() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base) / "pimflow" / "cache" if base else Path.home() / "AppData" / "Local" / "pimflow" / "cache"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "pimflow"

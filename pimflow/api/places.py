"""Checks where results may be written, before long work."""

from __future__ import annotations

from pathlib import Path

from pimflow.bundle.folder import check_output
from pimflow.compiled.stamp_cache import StampCache
from pimflow.options import Options
from pimflow.search.solver import cache_of


def check_place(folder: Path, options: Options) -> None:
    """Refuse an output folder that a compilation with these options could not write, before the compilation starts.

    Raises:
        OutputError: something is in the way; the message says what.
    """
    check_output(folder, StampCache(cache_of(options)).seen)

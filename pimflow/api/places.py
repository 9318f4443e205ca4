"""Where results may be written, asked before long work."""

from __future__ import annotations

from pathlib import Path

from pimflow.bundle.folder import check_output
from pimflow.compiled.kept_stamps import KeptStamps
from pimflow.options import Options
from pimflow.search.solver import cache_of


def check_place(folder: Path, options: Options) -> None:
    """Refuses an output folder that a compilation with these options could not write, before it takes place.

    Raises:
        OutputError: says what is in the way.
    """
    check_output(folder, KeptStamps(cache_of(options)).seen)

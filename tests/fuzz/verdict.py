"""The result of a trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Verdict(NamedTuple):
    """The result of a trial.

    Args:
        outcome: a few words by which trials are counted.
        finding: what is wrong; "" if all is well.
    """

    outcome: str
    finding: str = ""


Case = Callable[[int, Path], Verdict]
"""(seed, an empty folder of its own) -> its result."""

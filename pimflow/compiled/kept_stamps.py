"""What earlier runs wrote to output folders, by which unchanged files are known without being read."""

from __future__ import annotations

from pathlib import Path

from pimflow.search.price_cache import PriceCache

_MOST_BYTES = 128 << 10
"""A hundred outputs, read in a few milliseconds."""


class KeptStamps:
    """Digests of the files that were written to output folders, by their stamps.

    Args:
        cache: the folder that they are kept in; None keeps nothing.
    """

    def __init__(self, cache: Path | None) -> None:
        self._table = PriceCache(cache, "stamps", _MOST_BYTES)
        self.seen = dict(self._table.texts)

    def keep(self) -> None:
        """Keeps what was added to `seen`, and writes it to disk."""
        for stamp, digest in self.seen.items():
            self._table.put_text(stamp, digest)
        self._table.flush()

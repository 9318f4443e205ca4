"""Remembers the models that earlier runs read and the files that they wrote to output folders, so that the digests of
unchanged ones need not be computed again."""

from __future__ import annotations

from pathlib import Path

from pimflow.search.price_cache import PriceCache

_MAX_BYTES = 128 << 10
"""Enough for a hundred outputs, which are read in a few milliseconds."""


class StampCache:
    """Digests of models, and of the files that were written to output folders, by their stamps.

    Args:
        cache: the cache folder; None for no cache.
    """

    def __init__(self, cache: Path | None) -> None:
        self._table = PriceCache(cache, "stamps", _MAX_BYTES)
        self.seen = dict(self._table.texts)

    def save(self) -> None:
        """Adds the entries of `seen` to the cache, and writes it to disk."""
        for stamp, digest in self.seen.items():
            self._table.put_text(stamp, digest)
        self._table.flush()

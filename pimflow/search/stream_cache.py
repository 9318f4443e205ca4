"""A cache of the instruction streams that are written for units, so that streams of an earlier run are not made again.

There is one file for every set of programs, found by everything that determines the streams.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from pathlib import Path

from pimflow.search.price_cache import PriceCache, code_fingerprint, key_of

_KEY = key_of("streams")


class StreamCache:
    """The packed document of one set of programs.

    Args:
        folder: where its file is; None caches nothing.
        content_key: everything that the document depends on besides the code, as text.
    """

    def __init__(self, folder: Path | None, content_key: str) -> None:
        scope = f"streams\n{code_fingerprint()} {zlib.ZLIB_RUNTIME_VERSION}\n{content_key}" if folder else ""
        self._table = PriceCache(folder, scope)

    @property
    def packed(self) -> bytes | None:
        """The cached document; None if there is none."""
        text = self._table.texts.get(_KEY)
        try:
            return None if text is None else base64.b64decode(text, validate=True)
        except binascii.Error:
            return None

    def put(self, packed: bytes) -> None:
        """Cache a document, and write it to disk."""
        if self._table.path is not None:
            self._table.put_text(_KEY, base64.b64encode(packed).decode())
            self._table.flush()

"""The digest of the file with the large weights, without reading data that an earlier run has read.

Weights of the zoo are constants of the package: the model's digest and a weight's name determine every byte. For
weights, or rows of them, that the file contains as they were drawn, the name replaces the bytes; all others count by
their own digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pimflow.bundle.files import sha256_of
from pimflow.bundle.source import ModelSource
from pimflow.ir import Array
from pimflow.onnxio.export import SplitModel
from pimflow.onnxio.save import Stored
from pimflow.search.price_cache import PriceCache, key_of


def data_digest(path: Path, stored: Sequence[Stored], source: ModelSource, cache: Path | None) -> str:
    """SHA-256 of a data file's bytes.

    Args:
        path: the file.
        stored: the tensors in it.
        source: the original model.
        cache: the folder for cached digests; None for no cache.

    Raises:
        OSError: it cannot be read.
    """
    content = source.content if source.zoo is not None else None
    if cache is None or not isinstance(content, SplitModel):
        return sha256_of(path)
    table = PriceCache(cache, f"data digests\n{np.__version__}")
    pieces = (f"{item.offset} {_content(item.array, content)}" for item in stored)
    key = key_of("\n".join([source.sha256, *pieces]))
    known = table.texts.get(key)
    if known is not None:
        return known
    digest = sha256_of(path)
    table.put_text(key, digest)
    table.flush()
    return digest


def _content(array: Array, drawn: SplitModel) -> str:
    """Text that determines all bytes of an array: its position in a drawn weight, or its digest."""
    start = _address(array)
    for name, weight in drawn.constants.items():
        at = start - _address(weight)
        if 0 <= at <= weight.nbytes - array.nbytes and array.flags.c_contiguous and weight.flags.c_contiguous:
            return f"{name!r} from {at}, {array.nbytes} bytes"
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])

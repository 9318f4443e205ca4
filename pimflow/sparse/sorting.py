"""Sorting by small integers with a counting sort: linear in time and memory."""

from __future__ import annotations

import numpy as np

from pimflow.sparse.checks import Ids, Longs


def by_id(ids: Ids, count: int) -> tuple[Longs, Ids]:
    """The start of each id's elements, [count + 1], and the positions of all elements in the order of their ids.

    Elements with the same id keep their order. Ids are below `count`; positions are int32 if they fit.
    """
    from scipy.sparse import csr_matrix

    length = len(ids)
    begins = np.arange(length + 1, dtype=np.int32 if length < 2**31 else np.int64)
    sorted_ids = csr_matrix((np.ones(length, np.int8), ids, begins), shape=(length, count)).tocsc()
    return sorted_ids.indptr.astype(np.int64), sorted_ids.indices


def is_sorted(ids: Ids) -> bool:
    """Whether ids never decrease; checked in chunks, so that no second array of that size is made."""
    piece = 1 << 20
    return all(
        bool((ids[first : first + piece][1:] >= ids[first : first + piece][:-1]).all())
        for first in range(0, len(ids), piece - 1)
    )

"""Small graphs with all edge cases: duplicates, self loops, isolated vertices, rows without edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pimflow.ir import Builder, Graph, Op


@dataclass(frozen=True)
class Rows:
    """Edges in compressed rows."""

    rowptr: npt.NDArray[np.int64]
    col: npt.NDArray[np.int32]

    @property
    def destinations(self) -> npt.NDArray[np.int64]:
        """The destination of every edge."""
        return np.repeat(np.arange(len(self.rowptr) - 1), np.diff(self.rowptr))


def edge_list(vertices: int, edges: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """[2, E]: the last vertex is isolated, and the one before it has no incoming edges; the first edges are self loops,
    one of them twice, and a duplicate."""
    rng = np.random.default_rng(seed)
    pairs = np.stack([rng.integers(0, vertices - 1, edges), rng.integers(0, vertices - 2, edges)])
    pairs[:, :4] = [[0, 0, 1, 1], [0, 0, 1, 2]]
    pairs[:, 4] = pairs[:, 5]
    pairs[0, 6] = vertices - 2
    return pairs[:, rng.permutation(edges)]


def rows_of(pairs: npt.NDArray[np.int64], vertices: int) -> Rows:
    """The same edges in compressed rows."""
    order = np.argsort(pairs[1], kind="stable")
    counts = np.bincount(pairs[1], minlength=vertices)
    return Rows(np.concatenate([[0], np.cumsum(counts)]), pairs[0][order].astype(np.int32))


def single(op: Op, inputs: list[tuple[int, ...] | npt.NDArray[np.generic] | None], opset: int = 18) -> Graph:
    """A graph of one op; inputs are shapes of fed values, arrays of constants, or None for absent operands."""
    build = Builder("one", opset=opset)
    names = []
    for index, item in enumerate(inputs):
        if item is None:
            names.append("")
        elif isinstance(item, tuple):
            names.append(build.input(*item, name=f"x{index}"))
        else:
            names.append(build.constant(item, f"c{index}"))
    return build.graph(build.op(op, *names))

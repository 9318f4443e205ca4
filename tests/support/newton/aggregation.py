"""Random edges, their aggregation by scipy, and their programs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from pimflow.codegen.newton.spmm import Packing, SpmmMapping, SpmmProblem, SpmmProgram, lower_spmm, pack
from pimflow.targets import PimSpec

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges in compressed rows, their weights, and features of their sources."""

    rowptr: npt.NDArray[np.int64]
    col: npt.NDArray[np.int64]
    weight: Floats
    features: Floats

    @property
    def problem(self) -> SpmmProblem:
        sources, width = self.features.shape
        return SpmmProblem("", sources, len(self.rowptr) - 1, len(self.col), width)

    def by_scipy(self, weight: npt.NDArray[np.generic]) -> Floats:
        shape = (len(self.rowptr) - 1, len(self.features))
        matrix = csr_matrix((weight.astype(np.float64), self.col, self.rowptr), shape)
        return np.asarray(matrix @ self.features, np.float32)

    def error(self, found: Floats, weight: npt.NDArray[np.generic]) -> float:
        """The largest error of sums, over the largest sum of their terms' magnitudes, since terms may cancel."""
        terms = Edges(self.rowptr, self.col, self.weight, np.abs(self.features)).by_scipy(np.abs(weight))
        return float(np.abs(found - self.by_scipy(weight)).max() / max(terms.max(), 1e-30))

    def program(self, mapping: SpmmMapping, pim: PimSpec) -> tuple[SpmmProgram, Packing]:
        packing = pack(self.rowptr, self.col, pim)
        program = lower_spmm(self.problem, packing, mapping, pim)
        assert isinstance(program, SpmmProgram), program
        return program, packing


def random_edges(sources: int, destinations: int, edges: int, width: int, seed: int, repeated: int = 0) -> Edges:
    """Edges in random order within rows, `repeated` of them duplicates; some rows are empty."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, sources, edges), rng.integers(0, max(destinations - 1, 1), edges)
    src, dst = np.append(src, src[:repeated]), np.append(dst, dst[:repeated])
    order = np.argsort(dst, kind="stable")
    rowptr = np.searchsorted(dst[order], np.arange(destinations + 1))
    weight, features = rng.standard_normal(len(src)), rng.standard_normal((sources, width))
    return Edges(rowptr, src[order], weight.astype(np.float32), features.astype(np.float32))


def dense_blocks(blocks: int, size: int, density: float, others: int, width: int, seed: int = 0) -> Edges:
    """A stochastic block model, sorted: pairs within a block are edges with a probability, `others` are anywhere."""
    rng, vertices = np.random.default_rng(seed), blocks * size
    of_block = np.arange(vertices) // size
    dst, src = np.nonzero((rng.random((vertices, vertices)) < density) & (of_block[:, None] == of_block))
    dst, src = (np.append(ends, rng.integers(0, vertices, others)) for ends in (dst, src))
    order = np.lexsort((src, dst))
    rowptr = np.searchsorted(dst[order], np.arange(vertices + 1))
    weight, features = rng.standard_normal(len(src)), rng.standard_normal((vertices, width))
    return Edges(rowptr, src[order], weight.astype(np.float32), features.astype(np.float32))


@st.composite
def drawn_edges(draw: st.DrawFn) -> Edges:
    sources = draw(st.sampled_from([1, 15, 17, 200, 513, 1500]))
    edges = draw(st.sampled_from([1, 7, 60, 400]))
    destinations = draw(st.sampled_from([1, 2, 40, 300]))
    width = draw(st.sampled_from([1, 16, 40, 300]))
    return random_edges(sources, destinations, edges, width, draw(st.integers(0, 9999)), draw(st.integers(0, 3)))


@st.composite
def drawn_mappings(draw: st.DrawFn, pim: PimSpec) -> SpmmMapping:
    numbers = [number for number in range(1, pim.buffers + 1) if pim.channels % number == 0]
    return SpmmMapping(draw(st.sampled_from(numbers)), draw(st.booleans()), pim.gwrite_latency)

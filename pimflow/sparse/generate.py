"""Seeded random graphs of any size: like known data sets, R-MAT, block models, road grids.

All are vectorised and linear in the number of edges. Duplicates and self loops occur at random, as the models imply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from pimflow.errors import GraphDataError, choose_one
from pimflow.records import dataclass
from pimflow.sparse.checks import Ints
from pimflow.sparse.forms import check_memory
from pimflow.sparse.graph import Graph

if TYPE_CHECKING:  # numpy imports it lazily
    from numpy.random import Generator as Random

_PIECE = 1 << 22


@dataclass(frozen=True)
class DataSet:
    """The known statistics of a public data set, edges counted in both directions.

    Args:
        vertices, edges: their numbers.
        max_degree: the largest degree.
        communities: number of groups of vertices (classes or species).
        mixing: fraction of the edges that are between communities.
        features: number of input features of a vertex.
        types: number of kinds of edges; 0 if there is only one.
    """

    vertices: int
    edges: int
    max_degree: int
    communities: int
    mixing: float
    features: int
    types: int = 0


DATA_SETS: Mapping[str, DataSet] = {
    # Sizes: Hamilton et al., NeurIPS 2017, in PyTorch Geometric's version; the share of edges within a class is
    # assumed.
    "reddit": DataSet(232_965, 114_615_892, 21_657, 41, 0.25, 602),
    # Sizes: Zeng et al., ICLR 2020, in PyTorch Geometric's version; largest degree and mixing are assumed.
    "amazon-products": DataSet(1_569_960, 264_339_468, 65_000, 107, 0.4, 200),
    # Sizes: Hu et al., NeurIPS 2020 (OGB); edges between the 8 species are by homology only; their share is assumed.
    "ogbn-proteins": DataSet(132_534, 79_122_504, 7_750, 8, 0.1, 8),
    # Sizes: Yang et al., ICML 2016, in PyTorch Geometric's version; its edge homophily is 0.80.
    "pubmed": DataSet(19_717, 88_648, 171, 3, 0.2, 500),
}
"""The data sets that `like` can imitate, by name."""


def like(name: str, share: float = 1.0, seed: int = 0, keep: Literal["degree", "density"] = "degree") -> Graph:
    """A random graph with a data set's numbers of vertices and edges, largest degree and communities.

    Degrees are log-normal, with the data set's mean and maximum. Edges go both ways; vertices are in random order.

    Args:
        name: one of `DATA_SETS`.
        share: fraction of its vertices; above 1 for more.
        seed: seed of the random numbers.
        keep: what is preserved in a smaller graph: edges per vertex, or per pair of vertices.

    Raises:
        GraphDataError: there is no such set, or memory has no room for the graph.
    """
    if name not in DATA_SETS:
        raise GraphDataError(f"no data set is called {name!r}", choose_one(name, DATA_SETS))
    known = DATA_SETS[name]
    vertices = max(round(known.vertices * share), 1)
    edges = round(known.edges * (share if keep == "degree" else share**2))
    largest = min(known.max_degree * (1 if keep == "degree" else share), vertices)
    blocks = min(known.communities, vertices)
    return block_model(vertices, edges, blocks, known.mixing, max_degree=largest, seed=seed)


def block_model(
    vertices: int,
    edges: int,
    blocks: int,
    mixing: float,
    *,
    max_degree: float | None = None,
    in_order: bool = False,
    seed: int = 0,
) -> Graph:
    """A degree-corrected stochastic block model (Karrer and Newman, Physical Review E 83, 2011); edges go both ways.

    Args:
        vertices, edges: their numbers; that of edges is rounded down to an even number.
        blocks: number of communities, as equal in size as possible.
        mixing: fraction of the edges whose other end may be in any community.
        max_degree: degrees are log-normal with about this maximum; if None, all vertices are equivalent.
        in_order: whether the vertices of a block have consecutive ids; otherwise they are in random order.
        seed: seed of the random numbers.

    Raises:
        GraphDataError: memory has no room for the graph.
    """
    check_memory(edges, "the graph")
    random = np.random.default_rng(seed)
    weights = np.ones(vertices) if max_degree is None else _log_normal(vertices, edges / vertices, max_degree, random)
    block_of = np.arange(vertices, dtype=np.int64) * blocks // vertices
    ends = _stubs(weights, edges // 2, random)
    is_inner = random.random(len(ends), np.float32) >= mixing
    inner, outer = ends[is_inner], ends[~is_inner]
    src = np.concatenate((inner, outer))  # vertices ascend in both, so blocks are sorted
    partners = _shuffled(inner, random)
    narrow = np.int16 if blocks < 2**15 else np.int64
    partners = partners[np.argsort(block_of.astype(narrow)[partners], kind="stable")]
    dst = np.concatenate((partners, _shuffled(outer, random)))
    if not in_order:
        ids = random.permutation(vertices).astype(np.int32)
        src, dst = ids[src], ids[dst]
    return _symmetric(src, dst, vertices)


def rmat(
    scale: int, edges: int, seed: int = 0, quadrants: tuple[float, float, float, float] = (0.57, 0.19, 0.19, 0.05)
) -> Graph:
    """R-MAT (Chakrabarti, Zhan and Faloutsos, SDM 2004), by default with the quadrants of Graph500.

    Args:
        scale: there are 2**scale vertices.
        edges: number of edges.
        seed: seed of the random numbers.
        quadrants: probabilities of an edge being in each quadrant of the adjacency matrix, at every level.

    Raises:
        GraphDataError: memory has no room for the graph.
    """
    check_memory(edges, "the graph")
    random = np.random.default_rng(seed)
    upper = quadrants[0] + quadrants[1]
    right_above, right_below = quadrants[1] / upper, quadrants[3] / (1 - upper)
    src, dst = np.zeros(edges, np.int32), np.zeros(edges, np.int32)
    for first in range(0, edges, _PIECE):
        last = min(first + _PIECE, edges)
        for _ in range(scale):
            low = random.random(last - first, np.float32) >= upper
            right = random.random(last - first, np.float32) < np.where(low, right_below, right_above)
            src[first:last] = 2 * src[first:last] + low
            dst[first:last] = 2 * dst[first:last] + right
    return Graph.from_edges(src, dst, 1 << scale, 1 << scale)


def power_law(vertices: int, edges: int, max_degree: float, seed: int = 0) -> Graph:
    """Chung and Lu's model (Annals of Combinatorics 6, 2002) with log-normal degrees, independent for each direction.

    Raises:
        GraphDataError: memory has no room for the graph.
    """
    check_memory(edges, "the graph")
    random = np.random.default_rng(seed)
    src, dst = (
        _stubs(random.permutation(_log_normal(vertices, edges / vertices, max_degree, random)), edges, random)
        for _ in range(2)
    )
    return Graph.from_edges(_shuffled(src, random), dst, vertices, vertices)


def road_grid(rows: int, columns: int, missing: float = 0.1, *, in_order: bool = False, seed: int = 0) -> Graph:
    """A grid of streets: each crossing is linked to its neighbours; edges go both ways.

    Args:
        rows, columns: size of the grid.
        missing: fraction of the streets that are left out.
        in_order: whether ids go row by row; otherwise they are in random order.
        seed: seed of the random numbers.

    Raises:
        GraphDataError: memory has no room for the graph.
    """
    check_memory(4 * rows * columns, "the graph")
    random = np.random.default_rng(seed)
    ids = np.arange(rows * columns, dtype=np.int32)
    if not in_order:
        ids = random.permutation(ids)
    grid = ids.reshape(rows, columns)
    src = np.concatenate((grid[:, :-1].ravel(), grid[:-1].ravel()))
    dst = np.concatenate((grid[:, 1:].ravel(), grid[1:].ravel()))
    present = random.random(len(src), np.float32) >= missing
    return _symmetric(src[present], dst[present], rows * columns)


def uniform(vertices: int, edges: int, seed: int = 0) -> Graph:
    """Uniformly random edges between any two vertices (Erdos and Renyi's G(n, m), with repetition).

    Raises:
        GraphDataError: memory has no room for the graph.
    """
    check_memory(edges, "the graph")
    random = np.random.default_rng(seed)
    src, dst = (random.integers(0, vertices, edges, np.int32) for _ in range(2))
    return Graph.from_edges(src, dst, vertices, vertices)


def _log_normal(vertices: int, mean: float, largest: float, random: Random) -> npt.NDArray[np.float64]:
    """`vertices` degrees with a given mean and a maximum of about `largest`.

    The maximum of n log-normal variables of mean m and width s has a logarithm of about ln m - s^2/2 + s sqrt(2 ln n),
    which is solved for s.
    """
    reach = math.sqrt(2 * math.log(max(vertices, 2)))
    needed = max(math.log(max(largest / max(mean, 1e-9), 1.0)), 0.0)
    width = reach - math.sqrt(max(reach**2 - 2 * needed, 0.0))
    degrees: npt.NDArray[np.float64] = np.exp(random.standard_normal(vertices) * width)
    degrees *= mean / degrees.mean()
    if width:
        degrees[np.argmax(degrees)] = largest
    np.minimum(degrees, largest, out=degrees)
    return degrees


def _stubs(weights: npt.NDArray[np.float64], count: int, random: Random) -> Ints:
    """`count` vertices, ascending, each about as often as its weight implies, by systematic sampling."""
    places = np.cumsum(weights)
    bounds = np.floor(places * (count / places[-1]) + random.random()).astype(np.int64)
    bounds[-1] = count
    stubs: Ints = np.repeat(np.arange(len(weights), dtype=np.int32), np.diff(np.minimum(bounds, count), prepend=0))
    return stubs


def _shuffled(ids: Ints, random: Random) -> Ints:
    shuffled: Ints = ids.copy()
    random.shuffle(shuffled)
    return shuffled


def _symmetric(src: Ints, dst: Ints, vertices: int) -> Graph:
    return Graph.from_edges(np.concatenate((src, dst)), np.concatenate((dst, src)), vertices, vertices)

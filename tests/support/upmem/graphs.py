"""Small graphs of different kinds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pimflow.sparse import Graph


def uniform(vertices: int, edges: int) -> Graph:
    draw = np.random.default_rng(vertices)
    return Graph.from_edge_index(draw.integers(0, vertices, (2, edges)), vertices)


def skewed(vertices: int, edges: int) -> Graph:
    """A few destinations have most of the edges; unsorted."""
    draw = np.random.default_rng(vertices)
    popular = draw.permutation(vertices)
    dst = popular[(draw.random(edges) ** 4 * vertices).astype(np.int64)]
    return Graph.from_edge_index(np.stack([draw.integers(0, vertices, edges), dst]), vertices)


def sorted_by_degree(vertices: int, edges: int) -> Graph:
    draw = np.random.default_rng(vertices)
    ends = (draw.random((2, edges)) ** 3 * vertices).astype(np.int64)
    return Graph.from_edge_index(ends, vertices)


def band(vertices: int, edges: int) -> Graph:
    """Neighbours have close ids, as in a road network."""
    draw = np.random.default_rng(vertices)
    src = draw.integers(0, vertices, edges)
    return Graph.from_edge_index(np.stack([src, (src + draw.integers(-3, 4, edges)) % vertices]), vertices)


def star(vertices: int, edges: int) -> Graph:
    """One destination has half of all edges."""
    draw = np.random.default_rng(vertices)
    ends = draw.integers(0, vertices, (2, edges))
    ends[1, : edges // 2] = vertices // 3
    return Graph.from_edge_index(ends, vertices)


def blocks(vertices: int, edges: int) -> Graph:
    """Communities with only internal edges."""
    draw = np.random.default_rng(vertices)
    ends = draw.integers(0, max(vertices // 8, 1), (2, edges)) + draw.integers(0, 8, edges) * (vertices // 8)
    return Graph.from_edge_index(ends, vertices)


KINDS: dict[str, Callable[[int, int], Graph]] = {
    "uniform": uniform,
    "skewed": skewed,
    "sorted": sorted_by_degree,
    "band": band,
    "star": star,
    "blocks": blocks,
}

"""A random graph of any size that takes no memory: every edge is computed by hashing when it is needed."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pimflow.records import dataclass
from pimflow.sparse.checks import Ints, Longs

Reals = npt.NDArray[np.float64]
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class HashedGraph:
    """Chung and Lu's model (Annals of Combinatorics 6, 2002) with log-normal degrees, the same in both directions.

    The source of an edge is a vertex drawn in proportion to its degree. If a log-normal variable of width s is drawn in
    proportion to its size, the result is log-normal again, shifted by s^2, so no table is needed. An edge is the same
    each time it is computed. There are no communities, and ids carry no locality: neighbourhoods share fewer vertices,
    and are spread further apart, than in graphs that are clustered or have ids with locality.

    Args:
        vertices, edges: number of vertices; expected number of edges.
        max_degree: approximate largest degree.
        seed: seed of all hashes.
    """

    vertices: int
    edges: int
    max_degree: float
    seed: int = 0

    @property
    def num_vertices(self) -> int:
        """The number of vertices requested."""
        return self.vertices

    @cached_property
    def width(self) -> float:
        """The standard deviation s of the log-degrees: of n, the largest is expected at ln m - s^2/2 + s sqrt(2 ln n),
        where m is the mean degree."""
        reach = math.sqrt(2 * math.log(max(self.vertices, 2)))
        needed = math.log(max(self.max_degree * self.vertices / self.edges, 1.0))
        return reach - math.sqrt(max(reach**2 - 2 * needed, 0.0))

    def degrees(self, vertices: Longs) -> Longs:
        """Integer degrees with the distribution's mean: each is rounded up with the probability of its fraction."""
        exact = self._mean * np.exp(self.width * _normal(self._ranks(vertices)) - self.width**2 / 2)
        exact = np.minimum(exact, self.max_degree)
        dice = _unit(_mixed(vertices.astype(np.uint64) ^ self._key(1)))
        found: Longs = np.floor(exact + dice).astype(np.int64)
        return found

    def sources(self, vertices: Longs, positions: Longs) -> Longs:
        """The sources of edges, by a hash of vertex and position."""
        words = _mixed(vertices.astype(np.uint64) ^ self._key(2))
        dice = _unit(_mixed(words + positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)))
        rank = _share(_normal(dice) + self.width)
        return self._of_rank(np.minimum((rank * self.vertices).astype(np.int64), self.vertices - 1))

    def types(self, vertices: Longs, positions: Longs) -> Ints | None:
        """None: edges have no types."""
        return None

    @property
    def _mean(self) -> float:
        return self.edges / self.vertices

    def _key(self, use: int) -> np.uint64:
        key: np.uint64 = np.uint64((self.seed * 0x9E3779B97F4A7C15 + use * 0xD1B54A32D192ED03) % (1 << 64))
        return key

    @cached_property
    def _stride(self) -> int:
        """Ids are ranks times this, modulo the number of vertices; the two are coprime, so each vertex has one rank."""
        stride = int(self.vertices * 0.6180339887) | 1
        while math.gcd(stride, self.vertices) > 1:
            stride += 2
        return stride

    def _ranks(self, vertices: Longs) -> Reals:
        """The relative ranks of vertices in the order of degrees, between 0 and 1."""
        inverse = pow(self._stride, -1, self.vertices)
        return (_product(vertices, inverse, self.vertices) + 0.5) / self.vertices

    def _of_rank(self, ranks: Longs) -> Longs:
        return _product(ranks, self._stride, self.vertices)


def _product(numbers: Longs, factor: int, modulus: int) -> Longs:
    """numbers * factor modulo a modulus below 2^40 in 64-bit arithmetic, by halves of the factor."""
    high, low = divmod(factor, 1 << 20)
    found: Longs = ((numbers * high % modulus << 20) % modulus + numbers * low % modulus) % modulus
    return found


def _mixed(words: _Words) -> _Words:
    """SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: _Words = words ^ (words >> np.uint64(31))
    return found


def _unit(words: _Words) -> Reals:
    """Numbers between 0 and 1, both excluded."""
    found: Reals = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / (1 << 53)
    return found


def _normal(shares: Reals) -> Reals:
    from scipy.special import ndtri

    found: Reals = ndtri(shares)
    return found


def _share(values: Reals) -> Reals:
    from scipy.special import ndtr

    found: Reals = ndtr(values)
    return found

"""Whatever statistics refuse would not have paid: against every division of random graphs, near break-even."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pimflow.data import Table
from pimflow.ir import Builder, Graph, Refusal, Spmm
from pimflow.options import Options
from pimflow.runtime.costs import CostModel
from pimflow.runtime.newton.aggregation import Aggregations
from pimflow.search.solver import solve
from pimflow.sparse.checks import Longs
from pimflow.targets import Target, load_target

PIMFLOW = load_target("pimflow")
VERTICES = 256
Rest = Callable[[np.random.Generator, int], tuple[Longs, Longs]]


def machine(clock_mhz: float, l2_kib: float) -> Target:
    """A machine with this PIM clock and GPU cache."""
    changed = {
        "pim": replace(PIMFLOW.pim, clock_mhz=clock_mhz),
        "gpu": replace(PIMFLOW.gpu, l2_kib=l2_kib),
    }
    return replace(PIMFLOW, units=Table({**PIMFLOW.units, **changed}))


def anywhere(rng: np.random.Generator, edges: int) -> tuple[Longs, Longs]:
    """Rows that are rarely in the cache."""
    return rng.integers(0, VERTICES, edges), rng.integers(0, VERTICES, edges)


def loops(rng: np.random.Generator, edges: int) -> tuple[Longs, Longs]:
    """The same row again and again, always in the cache: the host's part costs less than its share of the total."""
    own = np.repeat(np.arange(VERTICES), edges // VERTICES + 1)
    return own, own


def hubs(rng: np.random.Generator, edges: int) -> tuple[Longs, Longs]:
    """A few rows most of the time."""
    return (rng.random(edges) ** 6 * VERTICES).astype(np.int64), rng.integers(0, VERTICES, edges)


def neighbours(rng: np.random.Generator, edges: int) -> tuple[Longs, Longs]:
    """Nearby rows, one per group."""
    into = rng.integers(0, VERTICES, edges)
    return (into + 16 * rng.integers(0, 2, edges)) % VERTICES, into


def program(size: int, density: float, share: float, rest: Rest, width: int, seed: int) -> Graph:
    """Sums over dense blocks with destinations in random order, and over `rest` times as many other edges."""
    rng = np.random.default_rng(seed)
    dst, src = np.nonzero(np.kron(np.eye(VERTICES // size), rng.random((size, size)) < density))
    others = rest(rng, int(share * len(src)))
    src, dst = np.append(src, others[0]), np.append(rng.permutation(VERTICES)[dst], others[1])
    order = np.lexsort((src, dst))
    build = Builder()
    rowptr = build.constant(np.searchsorted(dst[order], np.arange(VERTICES + 1)), "rowptr")
    col = build.constant(src[order].astype(np.int32), "col")
    return build.graph(build.op(Spmm(), build.input(VERTICES, width, name="x"), rowptr, col, name="sum"))


def refused(graph: Graph, target: Target) -> bool:
    return isinstance(CostModel(target).work(graph, graph.node("sum"), "pim"), Refusal)


def turning_clock_mhz(graph: Graph, l2_kib: float) -> float:
    """The fastest PIM clock, to 1 %, at which it is refused."""
    low, high = 20.0, 20_000.0
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if refused(graph, machine(middle, l2_kib)) else (low, middle)
    return low


@pytest.mark.parametrize(
    ("rest", "size", "density", "share", "width", "l2_kib"),
    [
        (anywhere, 64, 0.8, 0.2, 256, 24),
        (anywhere, 32, 0.95, 1.5, 512, 192),
        (loops, 64, 0.95, 0.6, 256, 24),
        (loops, 32, 0.6, 1.5, 512, 24),
        (loops, 128, 0.8, 0.2, 128, 64),
        (hubs, 32, 0.8, 0.6, 512, 24),
        (neighbours, 64, 0.6, 0.2, 256, 64),
        (neighbours, 128, 0.95, 1.5, 128, 24),
    ],
)
def test_no_division_pays_that_is_refused(
    rest: Rest, size: int, density: float, share: float, width: int, l2_kib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = program(size, density, share, rest, width, seed=size + width)
    clock = turning_clock_mhz(graph, l2_kib)
    target = machine(clock, l2_kib)
    assert 20 < clock < 19_000
    assert refused(graph, target)
    assert not refused(graph, machine(1.02 * clock, l2_kib))
    monkeypatch.setattr(Aggregations, "in_vain", lambda *given: None)
    plan = solve(graph, Options(target=target), costs=CostModel(target))
    assert plan.predicted_us == CostModel(target).host_only().node_cost(graph, graph.node("sum")).time_us

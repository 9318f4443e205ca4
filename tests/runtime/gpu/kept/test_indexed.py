"""Gathers and scatters that stay ONNX operators are priced by the rows that their index touches, against a cache
simulated row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pimflow.ir import Builder, Graph, Node
from pimflow.ir.analysis.content import content_of
from pimflow.runtime.gpu.cost import work_cost
from pimflow.runtime.gpu.kept import indexed
from pimflow.runtime.gpu.work import StreamWork, node_work
from pimflow.runtime.sparse_traffic import Cache, SparseWork
from pimflow.sparse import stack_distance
from pimflow.targets import load_target
from support.lru import misses

GPU = replace(load_target("pimflow").gpu, l2_kib=16.0)
CACHE = Cache(16 * 1024, 32)
WIDTH, ROWS, EDGES = 64, 600, 5000
RNG = np.random.default_rng(0)
INDEX = (RNG.random(EDGES) ** 3 * ROWS).astype(np.int64)
FEATURES = np.broadcast_to(INDEX[:, None], (EDGES, WIDTH))
Ints = npt.NDArray[np.int64]


def gather(kind: str, index: Ints, out: tuple[int, ...], data: tuple[int, ...] = (ROWS, WIDTH), **named: Any) -> Graph:
    build = Builder("one", opset=18)
    x = build.input(*data, name="x")
    return build.graph(build.onnx(kind, x, build.constant(index, "index"), shape=out, **named))


def scatter(kind: str, index: Ints, reduction: str, *, expanded: bool = False) -> Graph:
    build = Builder("one", opset=18)
    x, updates = build.input(ROWS, WIDTH, name="x"), build.input(EDGES, WIDTH, name="updates")
    name = build.constant(index, "index")
    if expanded:
        shape = build.constant(np.array([EDGES, WIDTH]), "shape")
        name = build.onnx("Expand", name, shape, shape=(EDGES, WIDTH))
    return build.graph(build.onnx(kind, x, name, updates, reduction=reduction))


def work_of(graph: Graph) -> SparseWork:
    work = node_work(graph, graph.nodes[-1], 2)
    assert isinstance(work, SparseWork)
    return work


def fetched(ids: Ints, row_bytes: int) -> int:
    return misses(ids.tolist(), int(CACHE.bytes) // row_bytes) * row_bytes


def lines(ids: Ints, element_bytes: int) -> int:
    return fetched(ids * element_bytes // 32, 32)


MIDDLE = (np.arange(3)[:, None] * ROWS + INDEX).reshape(-1)
ELEMENTS = (INDEX[:, None] * WIDTH + np.arange(8)).reshape(-1)
COLUMN_OF = RNG.integers(0, WIDTH, ROWS)
GATHERS = {
    "Gather": (gather("Gather", INDEX, (EDGES, WIDTH)), fetched(INDEX, 128)),
    "of negative rows": (gather("Gather", INDEX - ROWS, (EDGES, WIDTH)), fetched(INDEX, 128)),
    "along a middle axis": (
        gather("Gather", INDEX, (3, EDGES, WIDTH), (3, ROWS, WIDTH), axis=1),
        fetched(MIDDLE, 128),
    ),
    "GatherND": (gather("GatherND", INDEX[:, None], (EDGES, WIDTH)), fetched(INDEX, 128)),
    "GatherND of elements": (
        gather("GatherND", np.stack((INDEX, INDEX % WIDTH), 1), (EDGES,)),
        lines(INDEX * WIDTH + INDEX % WIDTH, 2),
    ),
    "GatherND in batches": (
        gather("GatherND", COLUMN_OF[:, None], (ROWS,), batch_dims=1),
        lines(np.arange(ROWS) * WIDTH + COLUMN_OF, 2),
    ),
    "GatherElements of one pattern": (
        gather("GatherElements", np.broadcast_to(COLUMN_OF % WIDTH, (40, ROWS)), (40, ROWS), (40, WIDTH), axis=1),
        lines((np.arange(40)[:, None] * WIDTH + COLUMN_OF % WIDTH).reshape(-1), 2),
    ),
    "GatherElements": (
        gather("GatherElements", np.repeat(INDEX[:, None], 8, 1), (EDGES, 8)),
        lines(ELEMENTS, 2),
    ),
}


@pytest.mark.parametrize("name", GATHERS)
def test_a_gather_reads_the_cache_misses(name: str) -> None:
    graph, read = GATHERS[name]
    index, out = graph.constants["index"], graph.values[graph.outputs[0]]
    assert work_of(graph).memory_bytes(CACHE) == index.nbytes + 2 * out.elements + read


@pytest.mark.parametrize(("reduction", "times"), [("none", 1), ("add", 2), ("mul", 2)])
@pytest.mark.parametrize("kind", ["ScatterND", "ScatterElements"])
def test_a_scatter_copies_its_base_and_fetches_the_updated_rows(kind: str, reduction: str, times: int) -> None:
    index = INDEX[:, None]
    graph = scatter(kind, index, reduction, expanded=kind == "ScatterElements")
    copied = 2 * 2 * ROWS * WIDTH
    listed = 8 * EDGES * (WIDTH if kind == "ScatterElements" else 1)
    expected = copied + listed + 2 * EDGES * WIDTH + times * fetched(INDEX, 128)
    assert work_of(graph).memory_bytes(CACHE) == expected


def test_an_index_out_of_range_has_a_price_until_it_is_refused() -> None:
    for kind, index in (("Gather", INDEX + 9), ("GatherND", INDEX[:, None] + 9)):
        assert work_of(gather(kind, index, (EDGES, WIDTH))).memory_bytes(CACHE) > 0


def test_equal_shapes_do_not_cost_the_same() -> None:
    spread = RNG.permutation(np.arange(EDGES) % ROWS)
    graphs = [gather("Gather", index, (EDGES, WIDTH)) for index in (np.sort(spread), spread)]
    times = [work_cost(work_of(graph), GPU, GPU.memory_channels).time_us for graph in graphs]
    assert times[0] < times[1]
    keys = [content_of(graph, graph.nodes[-1]) for graph in graphs]
    assert keys[0] != keys[1], "or one would have the other's price"


def test_an_index_that_is_expanded_is_part_of_the_price() -> None:
    graphs = [scatter("ScatterElements", index[:, None], "mul", expanded=True) for index in (INDEX, np.sort(INDEX))]
    assert content_of(graphs[0], graphs[0].nodes[-1]) != content_of(graphs[1], graphs[1].nodes[-1])


def work_without(graph: Graph, node: Node) -> object:
    return node_work(graph.replace(constants={}, inputs=(*graph.inputs, "index")), node, 2)


def test_an_unknown_or_single_row_index_streams() -> None:
    graph = GATHERS["Gather"][0]
    assert isinstance(work_without(graph, graph.nodes[-1]), StreamWork)
    single = gather("Gather", np.array(3), (WIDTH,))
    assert isinstance(node_work(single, single.nodes[-1], 2), StreamWork)
    nothing = gather("GatherND", np.zeros((3, 0), np.int64), (3, ROWS, WIDTH))
    assert isinstance(node_work(nothing, nothing.nodes[-1], 2), StreamWork)


def test_accesses_are_enumerated_in_pieces_and_sampled_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column has its own index. Processing in pieces gives the same as at once; a sample is close."""
    index = (RNG.random((EDGES, WIDTH)) ** 4 * ROWS).astype(np.int64)
    graph = gather("GatherElements", index, (EDGES, WIDTH), (ROWS, WIDTH))
    (whole,) = work_of(graph).accesses
    monkeypatch.setattr(indexed, "PIECE_ACCESSES", 10_000)
    (listed,) = work_of(graph).accesses
    assert whole.ids is not None
    assert listed.ids is not None
    np.testing.assert_array_equal(listed.ids, whole.ids)
    np.testing.assert_array_equal(listed.ids, (index * WIDTH + np.arange(WIDTH)).reshape(-1))
    assert len(listed.ids) > stack_distance.EXACT_ACCESSES
    sampled = [listed.memory_bytes(Cache(kib * 1024, 32)) for kib in (2, 8, 32)]
    monkeypatch.setattr(stack_distance, "EXACT_ACCESSES", len(listed.ids))
    assert sampled == pytest.approx([whole.memory_bytes(Cache(kib * 1024, 32)) for kib in (2, 8, 32)], rel=0.03)

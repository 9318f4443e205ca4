"""Mini-batches: every drawn edge exists, none is drawn twice, and no vertex is left out or read twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.sparse import Graph
from pimflow.sparse.generate import power_law
from pimflow.sparse.hashed import HashedGraph
from pimflow.sparse.sampling import EdgeType, Heterogeneous, InMemory, TypedBatch, sample, sample_typed


@settings(max_examples=60)
@given(
    st.integers(2, 30),
    st.integers(0, 120),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.integers(0, 1000),
)
def test_a_batch_is_a_part_of_the_graph(vertices: int, edges: int, fan_outs: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    graph = Graph.from_edge_index(
        random.integers(0, vertices, (2, edges)), vertices, None, random.integers(0, 3, edges)
    )
    assert graph.edge_type is not None
    seeds = random.permutation(vertices)[: 1 + seed % vertices]
    batch = sample(InMemory(graph), seeds, fan_outs, random)
    assert batch.vertices[: len(seeds)].tolist() == seeds.tolist()
    assert len(set(batch.vertices.tolist())) == len(batch.vertices)
    known = list(zip(graph.destinations().tolist(), graph.col.tolist(), graph.edge_type.tolist(), strict=True))
    reached = set(seeds.tolist())
    for hop, most in zip(reversed(batch.hops), fan_outs, strict=True):
        outer, inner = batch.vertices[: hop.num_src], batch.vertices[: hop.num_dst]
        assert reached == set(inner.tolist())
        assert hop.edge_type is not None
        ends = (inner[hop.destinations()].tolist(), outer[hop.col].tolist(), hop.edge_type.tolist())
        drawn = Counter(zip(*ends, strict=True))
        assert not drawn - Counter(known)  # an edge that the graph has twice may be drawn twice
        degrees = Counter(destination for destination, *_ in known)
        for row, vertex in enumerate(inner.tolist()):
            assert hop.rowptr[row + 1] - hop.rowptr[row] == min(degrees[vertex], most)
        reached |= {source for _, source, _ in drawn}
    assert reached == set(batch.vertices.tolist())


def test_neighbours_are_drawn_evenly() -> None:
    graph = Graph.from_edges(np.arange(1, 11), np.zeros(10, np.int64), 11, 11)
    random, counts = np.random.default_rng(0), Counter[int]()
    for _ in range(3000):
        batch = sample(InMemory(graph), np.zeros(1, np.int64), (4,), random)
        counts.update(batch.vertices[1:].tolist())
    assert set(counts) == set(range(1, 11))
    assert all(abs(count - 1200) < 5 * np.sqrt(1200 * 0.6) for count in counts.values())


def test_a_hashed_graph_is_one_graph_with_the_degrees_it_was_asked_for() -> None:
    graph = HashedGraph(20_000, 400_000, 1500, seed=3)
    everyone = np.arange(graph.num_vertices)
    degrees = graph.degrees(everyone)
    assert degrees.mean() == pytest.approx(20, rel=0.01)
    assert 700 < degrees.max() <= 1500
    owners = np.repeat(everyone, degrees)
    positions = np.arange(len(owners)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    sources = graph.sources(owners, positions)
    assert sources.min() >= 0
    assert sources.max() < graph.num_vertices
    again = graph.sources(owners[::7], positions[::7])
    assert np.array_equal(again, sources[::7])
    assert not np.array_equal(HashedGraph(20_000, 400_000, 1500, seed=4).sources(owners, positions), sources)
    drawn = np.bincount(sources, minlength=graph.num_vertices)
    assert np.corrcoef(drawn, degrees)[0, 1] > 0.97
    assert drawn[degrees >= 200].sum() == pytest.approx(degrees[degrees >= 200].sum(), rel=0.1)


def test_batches_of_a_hashed_graph_are_as_large_as_those_of_the_model_in_memory() -> None:
    """With the same distribution, stored edge by edge, batches have the same number of vertices, up to chance."""
    hashed, listed = HashedGraph(50_000, 1_000_000, 2000), InMemory(power_law(50_000, 1_000_000, 2000))
    random = np.random.default_rng(1)
    sizes = []
    for graph in (hashed, listed):
        batches = [sample(graph, random.permutation(50_000)[:200], (10, 5), random) for _ in range(5)]
        sizes.append(np.mean([len(batch.vertices) for batch in batches]))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.06)


def test_a_hashed_graph_of_any_size_draws_sources_by_their_degree() -> None:
    """Degrees of sources drawn by degree have a median of the mean degree times e^(s^2/2)."""
    graph = HashedGraph(111_059_956, 1_615_685_872, 155_000)
    owners = np.arange(0, graph.vertices, 5003)
    drawn = graph.degrees(graph.sources(owners, owners % 7))
    expected = graph.edges / graph.vertices * np.exp(graph.width**2 / 2)
    assert np.median(drawn) == pytest.approx(expected, rel=0.06)
    assert np.median(graph.degrees(owners)) == pytest.approx(expected * np.exp(-(graph.width**2)), rel=0.2)


def typed_graph(draw: st.DrawFn) -> tuple[Heterogeneous, dict[str, list[tuple[int, int]]]]:
    """Up to three kinds and four relations, some without edges, and the edges of each as pairs."""
    sizes = {kind: draw(st.integers(1, 8)) for kind in "abc"[: draw(st.integers(1, 3))]}
    kinds = st.sampled_from(sorted(sizes))
    relations, pairs = {}, {}
    for number in range(draw(st.integers(1, 4))):
        source, destination = draw(kinds), draw(kinds)
        ends = st.tuples(st.integers(0, sizes[source] - 1), st.integers(0, sizes[destination] - 1))
        edges = draw(st.lists(ends, max_size=20))
        src, dst = np.array(edges, np.int64).reshape(-1, 2).T
        rows = InMemory(Graph.from_edges(src, dst, sizes[source], sizes[destination]))
        relations[f"r{number}"] = EdgeType(source, destination, rows, len(edges))
        pairs[f"r{number}"] = edges
    return Heterogeneous(sizes, relations), pairs


typed_graphs = st.composite(typed_graph)()


def drawn_edges(graph: Heterogeneous, batch: TypedBatch, hop: int, name: str) -> list[tuple[int, int]]:
    """The edges of a hop, counted from the seeds, as pairs of the graph's own ids."""
    relation, edges = graph.relations[name], batch.hops[-1 - hop][name]
    src = batch.vertices[relation.source][edges.col]
    dst = batch.vertices[relation.destination][edges.destinations()]
    return list(zip(src.tolist(), dst.tolist(), strict=True))


@settings(max_examples=60)
@given(typed_graphs, st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_all_neighbours_of_every_relation_match_a_walk(
    given_graph: tuple[Heterogeneous, dict[str, list[tuple[int, int]]]], hops: int, once: bool, seed: int
) -> None:
    """With fan-outs above every degree nothing is random: compared with a walk along all edges, hop by hop."""
    graph, pairs = given_graph
    kind = sorted(graph.vertices)[seed % len(graph.vertices)]
    fan_outs = dict.fromkeys(graph.relations, (32,) * hops)
    seeds = np.arange(1 + seed % graph.vertices[kind])
    batch = sample_typed(graph, kind, seeds, fan_outs, np.random.default_rng(seed), once=once)
    known = {name: set[int]() for name in graph.vertices} | {kind: set(seeds.tolist())}
    walked = {name: set[int]() for name in graph.vertices}
    for hop in range(hops):
        asked = {name: known[name] - walked[name] if once else known[name] for name in known}
        walked = {name: set(vertices) for name, vertices in known.items()}
        for name, relation in graph.relations.items():
            expected = [pair for pair in pairs[name] if pair[1] in asked[relation.destination]]
            assert Counter(drawn_edges(graph, batch, hop, name)) == Counter(expected)
            known[relation.source] = known[relation.source] | {src for src, _ in expected}
    assert {name: set(vertices.tolist()) for name, vertices in batch.vertices.items()} == known
    assert batch.num_vertices == sum(map(len, known.values())), "each is read once"
    assert batch.edges == sum(len(drawn_edges(graph, batch, hop, name)) for hop in range(hops) for name in pairs)


@settings(max_examples=40)
@given(typed_graphs, st.data(), st.booleans(), st.integers(0, 99))
def test_every_relation_has_a_fan_out_of_its_own(
    given_graph: tuple[Heterogeneous, dict[str, list[tuple[int, int]]]], data: st.DataObject, once: bool, seed: int
) -> None:
    graph, pairs = given_graph
    kind = min(graph.vertices)
    fan_outs = {name: data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for name in graph.relations}
    batch = sample_typed(graph, kind, np.arange(1), fan_outs, np.random.default_rng(seed), once=once)
    for name, relation in graph.relations.items():
        degrees = Counter(dst for _, dst in pairs[name])
        for hop, most in enumerate(fan_outs[name]):
            edges = drawn_edges(graph, batch, hop, name)
            assert not Counter(edges) - Counter(pairs[name])
            of_each = Counter(dst for _, dst in edges)
            assert all(count == min(degrees[vertex], most) for vertex, count in of_each.items())
            rows = batch.hops[-1 - hop][name].num_dst
            asked = batch.vertices[relation.destination][:rows].tolist()
            if not once:
                assert sum(of_each.values()) == sum(min(degrees[vertex], most) for vertex in asked)
    if once:
        every = [Counter(dst for _, dst in drawn_edges(graph, batch, hop, name)) for name in pairs for hop in (0, 1)]
        assert all(not first.keys() & second.keys() for first, second in zip(every[::2], every[1::2], strict=True))

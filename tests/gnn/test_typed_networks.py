"""Networks over the relations of a batch, by value: the oracle adds up neighbours one by one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pimflow.gnn.kinds import heterogeneous
from pimflow.gnn.networks import Network
from pimflow.gnn.typed_networks import TYPED_LAYERS, TypedNetwork
from pimflow.options import graph_of
from pimflow.runtime.execute.ort import OrtRunner
from pimflow.sparse.sampling import Heterogeneous, TypedBatch, sample_typed

Floats = npt.NDArray[np.float64]
FEATURES = {"paper": 3, "author": 2, "field": 4}
HIDDEN, CLASSES = 5, 2


def mag(seed: int) -> Heterogeneous:
    """Papers, authors that no edge leads to, and fields; the edges of one relation are not reached by any batch."""
    random = np.random.default_rng(seed)
    sizes = {"paper": 12, "author": 9, "field": 4}
    joins = {"author__writes__paper": 25, "paper__cites__paper": 20, "field__of__paper": 6, "paper__has__field": 0}
    lists = {}
    for name, count in joins.items():
        source, _, destination = name.split("__")
        lists[name] = np.stack([random.integers(0, sizes[kind], count) for kind in (source, destination)])
    return heterogeneous(graph_of(lists), sizes, "graph")


def one_by_one(network: str, graph: Heterogeneous, batch: TypedBatch, tables: dict[str, Floats]) -> Floats:
    """With all weights one, a product is the sum of a row, in every column, and a bias adds one."""
    for number, hop in enumerate(batch.hops, 1):
        columns = CLASSES if number == len(batch.hops) else HIDDEN
        made: dict[str, Floats] = {}
        for kind, rows in tables.items():
            out = np.zeros((len(rows), columns))
            for vertex, own in enumerate(rows):
                terms = []
                for name, edges in hop.items():
                    relation = graph.relations[name]
                    if relation.destination != kind or not edges.num_edges or vertex >= edges.num_dst:
                        continue
                    first, last = edges.rowptr[vertex : vertex + 2]
                    sources = [tables[relation.source][source] for source in edges.col[first:last]]
                    mean = np.mean(sources, axis=0) if sources else np.zeros(tables[relation.source].shape[1])
                    narrow = network == "rgcn" and columns < len(mean)
                    bias = bool(sources) if narrow else True  # before the mean, it adds nothing without neighbours
                    terms.append(mean.sum() + bias + (own.sum() + 1 if network == "sage" else 0))
                if network == "rgcn" or not terms:
                    terms.append(own.sum() + 1)
                out[vertex] = sum(terms)
            made[kind] = out if columns == CLASSES else np.maximum(out, 0)
        tables = made
    return tables["paper"]


@pytest.mark.parametrize("network", ["sage", "rgcn"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_vertex_has_the_sum_over_its_relations(network: str, seed: int) -> None:
    graph, random = mag(seed), np.random.default_rng(seed)
    fan_outs = dict.fromkeys(graph.relations, (3, 2))
    batch = sample_typed(graph, "paper", np.arange(4), fan_outs, random)
    program = TypedNetwork(Network(network, 4, HIDDEN, CLASSES), graph, "paper", FEATURES).over(batch)
    tables = {kind: random.normal(size=(len(vertices), FEATURES[kind])) for kind, vertices in batch.vertices.items()}
    fed = {f"x_{kind}": table.astype(np.float32) for kind, table in tables.items() if len(table)}
    (found,) = OrtRunner(program).run(fed).values()
    expected = one_by_one(network, graph, batch, tables)[:4]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("network", sorted(TYPED_LAYERS))
@pytest.mark.parametrize("hops", [1, 3])
@pytest.mark.parametrize("kind", ["field", "author"])
def test_every_networks_output_has_the_trained_vertices(network: str, hops: int, kind: str) -> None:
    """Even if the relation has no edges to them, or no relation leads to them."""
    graph = mag(5)
    fan_outs = dict.fromkeys(graph.relations, (2,) * hops)
    batch = sample_typed(graph, kind, np.arange(3), fan_outs, np.random.default_rng(0))
    program = TypedNetwork(Network(network, 4, HIDDEN, CLASSES), graph, kind, FEATURES).over(batch)
    assert program.shape(program.outputs[0]) == (3, CLASSES)

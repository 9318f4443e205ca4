"""The graph networks of the zoo: exporters' patterns that ONNX Runtime runs, fully recovered, on a graph like Cora."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import pytest

import pimflow
import pimflow_zoo
from pimflow.sparse import Graph as Adjacency
from pimflow_zoo.builder import Net
from pimflow_zoo.gnn import citations

RECOVERED = {
    "gcn": {"Spmm"},
    "sage": {"Spmm"},
    "gin": {"Spmm"},
    "gat": {"Spmm", "Sddmm", "EdgeSoftmax"},
    "rgcn": {"Spmm", "TypedSpmm"},
    "rgat": {"GatherPairs", "EdgeSoftmax", "TypedLinear", "TypedSpmm"},
    "hgt": {"GatherPairs", "Spmm", "EdgeSoftmax", "TypedLinear"},
}


def test_all_graph_networks_are_tested() -> None:
    assert pimflow_zoo.networks() == tuple(RECOVERED)


@pytest.mark.parametrize("name", RECOVERED)
def test_a_network_compiles_with_the_same_values(name: str) -> None:
    compiled = pimflow.compile(f"zoo:{name}", policy="gpu", use_cache=False)
    assert compiled.network is not None
    assert compiled.network.adjacency.num_edges == 10_556
    assert {node.kind for node in compiled.graph.nodes if node.op.is_sparse} == RECOVERED[name]
    result = compiled.verify(rtol=1e-5)
    assert result.passed
    assert result.output_std > 0.2


@pytest.mark.parametrize("name", RECOVERED)
def test_a_model_is_valid_and_has_its_figures(name: str) -> None:
    model, entry = pimflow_zoo.build(name), pimflow_zoo.entry(name)
    onnx.checker.check_model(model, full_check=True)
    trained = [tensor for tensor in model.graph.initializer if tensor.name.endswith((".weight", ".bias"))]
    assert sum(int(np.prod(tensor.dims)) for tensor in trained) == entry.parameters
    assert model == pimflow_zoo.build(name)
    assert hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest() == pimflow_zoo.SHA256[name]


def test_parameters_and_products_match_the_published_ones() -> None:
    """Those of Kipf and Welling's GCN and of Velickovic et al.'s GAT on Cora."""
    assert pimflow_zoo.entry("gcn").parameters == 1433 * 16 + 16 + 16 * 7 + 7
    assert pimflow_zoo.entry("gcn").macs == 2708 * (1433 * 16 + 16 * 7)
    assert pimflow_zoo.entry("gat").parameters == 1433 * 64 + 3 * 64 + 64 * 7 + 3 * 7


@pytest.mark.parametrize("kind", ["rgcn", "rgat", "hgt"])
def test_a_relational_layer_alone_is_a_valid_model(kind: str) -> None:
    layer = pimflow_zoo.relational_layer(Net(kind, 1), kind, 8, 5, heads=2)
    onnx.checker.check_model(layer, full_check=True)
    rng = np.random.default_rng(0)
    edges = Adjacency.from_edge_index(rng.integers(0, 20, (2, 90)), 20, None, rng.integers(0, 5, 90))
    compiled = pimflow.compile(layer, graph=edges, policy="gpu", use_cache=False)
    assert compiled.verify(rtol=1e-5).passed


def test_the_graph_is_like_coras() -> None:
    edges = citations()
    degrees = np.bincount(edges.index[1], minlength=edges.vertices)
    assert (edges.vertices, edges.index.shape) == (2708, (2, 2 * 5278))
    assert degrees.max() > 15 * degrees.mean(), "skewed"
    assert set(map(tuple, edges.index.T)) == set(map(tuple, edges.index[::-1].T)), "both directions"
    assert pimflow_zoo.graph("toy") is None

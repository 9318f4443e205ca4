"""Graph networks end to end: compiled for a graph, inspected, run, verified, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import scipy.sparse

import pimflow
from pimflow.errors import InputDataError, ModelError, OptionError, ShapeError
from pimflow.sparse import Graph as Adjacency
from pimflow.verify.outputs import compare_outputs
from support.cli import Capture, assert_one_line, document, run
from support.sparse_graphs import edge_list

FOLDER = Path(__file__).parent / "data" / "gnn"
PAIRS = edge_list(120, 900)


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    np.savez(path, edge_index=PAIRS, num_nodes=120)
    return path


def compiled(name: str, graph: Any, **options: Any) -> pimflow.CompiledModel:
    return pimflow.compile(FOLDER / f"{name}.onnx", graph=graph, use_cache=False, **options)


@pytest.mark.parametrize("name", ["gcn-ts", "gat-dynamo"])
def test_a_network_is_compiled_verified_saved_and_loaded(name: str, graph_file: Path, tmp_path: Path) -> None:
    made = compiled(name, graph_file)
    devices = {node.device for node in made.graph.nodes if node.op.is_sparse}
    assert ("pim" in devices) == (name == "gcn-ts"), (
        "a small graph's sums leave the host, but not with computed weights"
    )
    assert any(node.device == "pim" for node in made.graph.nodes), "dense parts leave the host as in any model"
    assert made.verify(rtol=1e-5).passed
    loaded = pimflow.load(made.save(tmp_path / "out"))
    assert loaded.verify(rtol=1e-5, arena=True).passed
    assert loaded.verify(pim="values", operand="fp32").passed
    assert loaded.report.as_json() == made.report.as_json()
    assert loaded.document()["graph"] == made.document()["graph"]
    x = np.random.default_rng(0).standard_normal((120, 12)).astype(np.float32)
    expected = made.run({"x": x})["out"]
    np.testing.assert_array_equal(loaded.run({"x": x, "edge_index": PAIRS})["out"], expected)
    with pytest.raises(InputDataError, match="'edge_index' is not that of the graph that the model was compiled for"):
        loaded.run({"x": x, "edge_index": PAIRS[:, ::-1]})


def test_layers_over_learnt_features_are_computed_in_every_run(graph_file: Path) -> None:
    """A network whose entities have only learnt features has no input but its graph."""
    model, x = onnx.load(FOLDER / "sage-sum-ts.onnx"), np.random.default_rng(0).random((120, 12), np.float32)
    (given,) = (item for item in model.graph.input if item.name == "x")
    model.graph.input.remove(given)
    model.graph.initializer.append(onnx.numpy_helper.from_array(x, "x"))
    made = pimflow.compile(model, graph=graph_file, use_cache=False)
    assert made.verify(rtol=1e-5).passed
    expected = compiled("sage-sum-ts", graph_file)
    np.testing.assert_allclose(made.run({})["out"], expected.run({"x": x})["out"], rtol=1e-5, atol=1e-5)
    sums = [sum(node.op.is_sparse for node in one.graph.nodes) for one in (made, expected)]
    assert sums[0] == sums[1] > 0


def test_a_graph_may_be_an_object() -> None:
    matrix = scipy.sparse.coo_matrix((np.ones(900), (PAIRS[0], PAIRS[1])), shape=(120, 120))
    data = type("Data", (), {"edge_index": PAIRS, "num_nodes": 120})()
    for given in (matrix, data, {"edge_index": PAIRS, "num_nodes": 120}, Adjacency.from_edge_index(PAIRS, 120)):
        network = compiled("sage-sum-dynamo", given, policy="gpu").network
        assert network is not None
        assert network.adjacency.sha256 == Adjacency.from_edge_index(PAIRS, 120).sha256
    with pytest.raises(OptionError, match="'graph' is a list"):
        compiled("sage-sum-dynamo", [1])


def test_sizes_alone_give_a_marked_estimate(tmp_path: Path) -> None:
    sizes = {"num_nodes": 100, "num_edges": 700}
    made = pimflow.compile(FOLDER / "rgcn-fast-mean-ts.onnx", shapes=sizes, use_cache=False, policy="gpu")
    assert "an estimate, on a random graph of this size" in made.summary()
    assert made.document()["graph"]["estimate"] is True
    assert made.verify(rtol=1e-5).passed, "on the random graph"
    assert "estimate" in pimflow.load(made.save(tmp_path / "out")).summary()


def test_a_model_exported_for_another_size_is_refused_with_both() -> None:
    with pytest.raises(ShapeError, match="for 64 vertices and 256 edges, the graph has 120 vertices and 900 edges"):
        compiled("gcn-static-dynamo", Adjacency.from_edge_index(PAIRS, 120))
    with pytest.raises(ShapeError, match="for 100 vertices, the graph has 120 vertices"):
        compiled("gcn-ts", Adjacency.from_edge_index(PAIRS, 120), shapes={"num_nodes": 100})


def test_the_graph_must_have_what_the_model_reads() -> None:
    with pytest.raises(ModelError, match=r"the model reads edge types \(edge_type\), and the graph has none"):
        compiled("rgcn-ts", Adjacency.from_edge_index(PAIRS, 120))
    with pytest.raises(ModelError, match="the model has no edge list among its inputs"):
        pimflow.compile("zoo:toy", graph=Adjacency.from_edge_index(PAIRS, 120))


def test_weights_that_the_graph_lacks_stay_an_input(graph_file: Path) -> None:
    made = compiled("gcn-weighted-dynamo", graph_file, policy="gpu")
    assert made.graph.inputs == ("x", "edge_weight")
    assert made.verify(rtol=1e-5).passed
    assert "edge_weight: the graph has no weights, so it stays an input" in made.notes


def test_edges_may_stay_an_input(graph_file: Path) -> None:
    made = compiled("sage-sum-dynamo", graph_file, graph_as_input=True)
    assert made.graph.inputs == ("x", "edge_index")
    assert made.network is None
    assert {node.device for node in made.graph.nodes if node.kind in ("Gather", "ScatterElements")} == {"gpu"}
    x = np.random.default_rng(0).standard_normal((120, 12)).astype(np.float32)
    one, other = (made.run({"x": x, "edge_index": pairs})["out"] for pairs in (PAIRS, PAIRS[::-1].copy()))
    fixed = compiled("sage-sum-dynamo", graph_file).run({"x": x})["out"]
    assert compare_outputs({"out": fixed}, {"out": one}, 1e-5)[0].passed
    assert not compare_outputs({"out": one}, {"out": other}, 0.01)[0].passed


def test_the_command_line(graph_file: Path, tmp_path: Path, capsys: Capture) -> None:
    model, out = FOLDER / "gat-ts.onnx", tmp_path / "out"
    result = document(capsys, "compile", model, "--graph", graph_file, "-o", out, "--no-cache")
    assert {"Spmm", "EdgeSoftmax", "Sddmm"} <= {node["op"] for node in result["nodes"]}
    assert result["graph"]["edges"] == 900
    assert run("verify", out) == 0
    report = document(capsys, "inspect", model, "--graph", graph_file)
    assert report["graph"]["recovered"]["EdgeSoftmax"] == 2
    assert report["graph"]["statistics"]["largest_in_degree"] == np.bincount(PAIRS[1]).max()
    assert run("inspect", model, "--graph", graph_file) == 0
    shown = capsys.readouterr().out
    assert "recovered: 2 EdgeSoftmax, 2 Sddmm, 2 Spmm" in shown
    assert "120 vertices, 900 edges" in shown
    assert run("compile", model, "--graph", tmp_path / "none.npz", "-o", tmp_path / "no") == 2
    assert_one_line(capsys, "none.npz")
    assert not (tmp_path / "no").exists()


def test_unrecovered_nodes_are_reported_with_a_reason() -> None:
    assert not pimflow.inspect(FOLDER / "gat-ts.onnx", graph=Adjacency.from_edge_index(PAIRS, 120)).notes

"""Heterogeneous networks of PyTorch Geometric (benchmarks/export_hetero_models.py), compiled for graphs with several
edge lists. The oracle is ONNX Runtime on the unmodified export."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import pimflow
from pimflow.compiled import Machine
from pimflow.compiler import clean_up
from pimflow.errors import ModelError, ShapeError
from pimflow.frontend import load_with_graph
from pimflow.options import Options
from pimflow.runtime.execute.original import run_original
from pimflow.runtime.execute.ort import random_inputs
from pimflow.sparse import Graph
from support.cli import Capture, assert_one_line, document, run
from support.values import relative_error

FOLDER = Path(__file__).parents[1] / "data" / "gnn" / "hetero"
ENDS = {"cites": ("paper", "paper"), "writes": ("author", "paper"), "written": ("paper", "author")}


def random_lists(seed: int) -> tuple[dict[str, npt.NDArray[np.int64]], dict[str, int]]:
    """Edge lists with duplicates, one possibly empty, and numbers of vertices, some of which may have no edge."""
    rng = np.random.default_rng(seed)
    sizes = {kind: int(rng.integers(1, 40)) for kind in ("paper", "author")}
    counts = {name: int(rng.integers(0, 90)) for name in ENDS}
    lists = {
        name: np.stack([rng.integers(0, sizes[kind], counts[name]) for kind in kinds]) for name, kinds in ENDS.items()
    }
    return lists, {f"num_{kind}": size for kind, size in sizes.items()}


@pytest.mark.parametrize(
    ("name", "seed"), [("sage-ts", 0), ("sage-ts", 1), ("gat-dynamo", 2), ("hgt-ts", 3), ("hgt-dynamo", 4)]
)
def test_every_relation_is_recovered_with_the_same_values(name: str, seed: int) -> None:
    model, (lists, sizes) = FOLDER / f"{name}.onnx", random_lists(seed)
    made = pimflow.compile(model, graph=lists, shapes=sizes, use_cache=False, policy="gpu")
    kinds = {node.kind for node in made.graph.nodes}
    assert kinds & {"Spmm", "TypedSpmm"}
    assert not kinds & {"ScatterElements", "Gather"}
    assert made.graph.inputs == ("x_paper", "x_author")
    inputs = random_inputs(made.graph, seed)
    expected = run_original(str(model), {**inputs, **lists})
    assert relative_error(expected["out"], made.run(inputs)["out"]) < 1e-5


@pytest.mark.parametrize("name", ["sage-ts", "gat-dynamo", "hgt-ts", "hgt-dynamo"])
def test_heterogeneous_networks_are_trained(name: str) -> None:
    """TorchScript writes HGT's keys, queries and values as elements of a sequence."""
    lists, sizes = random_lists(3)
    step = pimflow.train(FOLDER / f"{name}.onnx", graph=lists, shapes=sizes, activations="keep")
    assert step.parameters > 0
    assert len(step.trace.kernels) > step.trace.turn


def test_a_relation_without_edges() -> None:
    """TorchScript reshapes its indices to [1, 0]."""
    model, (lists, sizes) = FOLDER / "hgt-ts.onnx", random_lists(3)
    lists["writes"] = lists["writes"][:, :0]
    made = pimflow.compile(model, graph=lists, shapes=sizes, use_cache=False, policy="gpu")
    inputs = random_inputs(made.graph, 0)
    expected = run_original(str(model), {**inputs, **lists})
    assert relative_error(expected["out"], made.run(inputs)["out"]) < 1e-5


@pytest.mark.parametrize("name", ["sage-ts", "gat-dynamo"])
def test_a_relation_without_edges_costs_nothing(name: str) -> None:
    model, (lists, sizes) = FOLDER / f"{name}.onnx", random_lists(2)
    times = []
    for given in (lists, {**lists, "cites": lists["cites"][:, :0]}):
        made = pimflow.compile(model, graph=given, shapes=sizes, use_cache=False, policy="gpu", relations="never")
        inputs = random_inputs(made.graph, 0)
        expected = run_original(str(model), {**inputs, **given})
        assert relative_error(expected["out"], made.run(inputs)["out"]) < 1e-5
        assert all(array.size for array in made.graph.constants.values())
        times.append(made.report.result.time_us)
    assert times[1] < times[0]
    machine, options = Machine.of(Options()), Options.of(relations="never")
    loaded = load_with_graph(model, sizes, Graph.from_edge_lists(given)).graph
    trained, compiled = (clean_up(loaded, machine, options, is_trained=kept).graph for kept in (True, False))
    assert len(trained.nodes) > len(compiled.nodes), "a training step multiplies its sums by parameters"


@pytest.mark.parametrize("name", ["hgt-ts", "hgt-dynamo"])
@pytest.mark.parametrize("relations", ["never", "always"])
def test_a_heterogeneous_graph_transformer_has_a_product_by_type(name: str, relations: str) -> None:
    """Keys and values are multiplied per relation and head, with heads concatenated if passes run."""
    model, (lists, sizes) = FOLDER / f"{name}.onnx", random_lists(6)
    made = pimflow.compile(
        model, graph=lists, shapes=sizes, use_cache=False, policy="gpu", relations=relations, target="rtx3090"
    )
    kinds = Counter(node.kind for node in made.graph.nodes)
    products = {"TypedLinear": 2} if relations == "never" else {"TypedLinear": 1, "TypedSpmm": 1}  # keys and values
    assert {kind: kinds[kind] for kind in products} == products
    assert (kinds["EdgeSoftmax"], kinds["MatMul"]) == (1, 0)
    assert kinds["Transpose"] == (4 if relations == "never" else 0)
    ranks = {len(made.graph.shape(node.output)) for node in made.graph.nodes if node.kind in products}
    assert ranks == {2 if relations == "never" else 3}
    inputs = random_inputs(made.graph, 0)
    expected = run_original(str(model), {**inputs, **lists})
    assert relative_error(expected["out"], made.run(inputs)["out"]) < 1e-5


def test_mismatched_relations_are_reported_with_both_sides() -> None:
    lists, sizes = random_lists(3)
    model = FOLDER / "sage-ts.onnx"
    with pytest.raises(ModelError, match="reads the edge lists cites, writes, written, and the graph has no written: "):
        load_with_graph(model, sizes, Graph.from_edge_lists({name: lists[name] for name in ("cites", "writes")}))
    with pytest.raises(ShapeError, match="the model is for 7 edges of cites, the graph has"):
        load_with_graph(model, {**sizes, "num_cites": 7}, Graph.from_edge_lists(lists))
    loaded = load_with_graph(model, sizes, Graph.from_edge_lists({**lists, "more": [[0], [0]]}))
    assert "more: the model does not read this list" in loaded.notes
    with pytest.raises(ModelError, match="no edge list among its inputs"):
        pimflow.compile("zoo:toy", graph=lists)
    with pytest.raises(ModelError, match="the inputs cites, writes, written may all be edge lists"):
        pimflow.compile(model, shapes=sizes)


def with_scored_pairs(name: str) -> onnx.ModelProto:
    """A network that scores pairs of papers, given by an input [2, P], by the product of their rows."""
    model = onnx.load(FOLDER / f"{name}.onnx")
    graph, (rows,) = model.graph, model.graph.output
    graph.input.append(onnx.helper.make_tensor_value_info("edge_label_index", onnx.TensorProto.INT64, [2, "num_pairs"]))
    for side in range(2):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(side), f"side{side}"))
        graph.node.append(onnx.helper.make_node("Gather", ["edge_label_index", f"side{side}"], [f"ids{side}"]))
        graph.node.append(onnx.helper.make_node("Gather", [rows.name, f"ids{side}"], [f"rows{side}"]))
    graph.node.append(onnx.helper.make_node("Mul", ["rows0", "rows1"], ["scores"]))
    del graph.output[:]
    graph.output.append(onnx.helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["num_pairs", 3]))
    return model


@pytest.mark.parametrize("name", ["sage-ts", "gat-dynamo"])
def test_pairs_by_which_nothing_is_aggregated_stay_an_input(name: str) -> None:
    model, (lists, sizes) = with_scored_pairs(name), random_lists(2)
    made = pimflow.compile(model, graph=lists, shapes={**sizes, "num_pairs": 7}, use_cache=False, policy="gpu")
    assert made.graph.inputs == ("x_paper", "x_author", "edge_label_index")
    notes = load_with_graph(model, {**sizes, "num_pairs": 7}, Graph.from_edge_lists(lists)).notes
    assert "edge_label_index: the graph does not have this list, so it stays an input" in notes
    inputs = random_inputs(made.graph, 0)
    assert inputs["edge_label_index"].shape == (2, 7)
    expected = run_original(model, {**inputs, **lists})
    assert relative_error(expected["scores"], made.run(inputs)["scores"]) < 1e-5
    assert made.verify().passed
    pairs = np.zeros((2, 7), np.int64)
    given = pimflow.compile(
        model, graph={**lists, "edge_label_index": pairs}, shapes=sizes, use_cache=False, policy="gpu"
    )
    assert given.graph.inputs == ("x_paper", "x_author"), "the graph may also have the pairs"
    with pytest.raises(ModelError, match="reads the edge lists cites, writes, written, and the graph has no written: "):
        load_with_graph(model, sizes, Graph.from_edge_lists({key: lists[key] for key in ("cites", "writes")}))


def test_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    lists, sizes = random_lists(4)
    stored: Any = lists
    np.savez(tmp_path / "graph.npz", **stored)
    model, out = FOLDER / "sage-ts.onnx", tmp_path / "out"
    shapes = [word for name, size in sizes.items() for word in ("--shape", f"{name}={size}")]
    given = [model, "--graph", tmp_path / "graph.npz", *shapes]
    made = document(capsys, "compile", *given, "-o", out, "--no-cache", "--policy", "gpu")
    assert made["graph"]["lists"] == {name: pairs.shape[1] for name, pairs in lists.items()}
    assert run("verify", out) == 0
    capsys.readouterr()
    report = document(capsys, "inspect", *given)
    assert report["graph"]["recovered"] == {"Spmm": 5}, "three in the first layer, two in the last"
    assert "self_loops" not in report["graph"]["statistics"], "sources and destinations have separate ids"
    assert run("inspect", *given) == 0
    assert "graph: 3 edge lists, " in capsys.readouterr().out
    np.savez(tmp_path / "other.npz", cites=lists["cites"])
    assert run("compile", model, "--graph", tmp_path / "other.npz", *shapes, "-o", tmp_path / "no") == 2
    assert_one_line(capsys, "the graph has no writes, written: it has cites")

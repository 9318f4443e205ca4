"""Epochs of mini-batch training: sums, overlaps, and messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pimflow import gnn
from pimflow.errors import GraphDataError, ModelError, OptionError, PimflowError, TargetError
from pimflow.gnn.networks import LAYERS, Network
from pimflow.gnn.workloads import WORKLOADS, workload
from pimflow.runtime.execute.sparse_values import SPARSE_VALUES
from pimflow.sparse import Graph
from pimflow.sparse.generate import power_law
from pimflow.sparse.host_rows import HostRows
from pimflow.sparse.sampling import InMemory, sample
from pimflow.targets import override

GRAPH = power_law(3000, 40_000, 300)
TIGHT = override("rtx3090", {"memory.gpu.capacity_gib": 0.77})
"""A machine with 20 MiB for a step and for features."""
TINY = override("rtx3090", {"memory.host.capacity_gib": 1, "memory.gpu.capacity_gib": 2})


def small(**changes: object) -> gnn.Epoch:
    keywords: dict[str, object] = {"features": 150, "batch": 64, "fan_outs": (8, 4), "hidden": 32, "batches": 3}
    return gnn.epoch(GRAPH, **(keywords | changes))  # type: ignore[arg-type]


def test_parts_add_up_and_an_epoch_is_all_its_batches() -> None:
    found = small()
    loop = found.loop
    assert (loop.batches, loop.drawn, len(loop.batch_vertices)) == (47, 3, 3)
    for row in found.rows:
        assert sum(row.transfer_parts_us.values()) == pytest.approx(row.transfer_us)
        assert sum(row.power_parts_w.values()) == pytest.approx(row.power_w)
        assert row.epoch_s == pytest.approx(row.batch_us * loop.batches * 1e-6)
    assert found.best.batch_us == min(row.batch_us for row in found.rows)
    assert small(batches=0, batch=700).loop.drawn == 5
    with pytest.raises(OptionError, match="unknown placement 'gpu'"):
        found["gpu"]


def test_batches_follow_the_seed() -> None:
    """Drawn again by the test: the same vertices, edges and requests."""
    random = np.random.default_rng(5)
    order = random.permutation(3000)
    batches = [sample(InMemory(GRAPH), order[first : first + 64], (8, 4), random) for first in (0, 64, 128)]
    found = small(seed=5)
    assert found.loop.batch_vertices == tuple(len(batch.vertices) for batch in batches)
    assert found.loop.batch_edges == tuple(batch.edges for batch in batches)
    requests = [HostRows(600).requests(batch.vertices).requests for batch in batches]
    assert found["zero-copy"].requests == round(np.mean(requests))
    assert found["gather"].requests == 0


@pytest.mark.parametrize("placement", ["resident", "gather", "gather-pageable", "zero-copy"])
def test_overlapping_stages_take_the_maximum(placement: str) -> None:
    """One batch per epoch, so that means are the batch's own."""
    times = {}
    for loader in ("none", "sampling", "all"):
        found = small(loader=loader, batches=1)
        times[loader] = found[placement].batch_us
    loop, row = found.loop, found[placement]
    training = loop.issuing_us + loop.step_us
    moved = loop.structure_us + row.transfer_us
    assert times["none"] == pytest.approx(loop.sampling_us + moved + training)
    assert times["sampling"] == pytest.approx(max(loop.sampling_us, moved + training))
    assert times["all"] <= times["sampling"] <= times["none"]
    assert times["all"] >= max(loop.sampling_us, training)


def test_sampling_can_be_the_bottleneck() -> None:
    slow = small(target=override("rtx3090", {"memory.host.sampled_edges_per_us": 0.01}))
    assert all(row.batch_us == pytest.approx(slow.loop.sampling_us) for row in slow.rows)


def test_features_that_do_not_fit_on_the_gpu_stay_on_the_host() -> None:
    found = small(target=TIGHT, features=2000, batch=16)
    assert "GB of features, room for" in found["resident"].refused
    assert found.best.placement.startswith("zero-copy")
    assert found["resident"].epoch_s == 0
    assert f"resident: {found['resident'].refused}" in found.text()


@pytest.mark.parametrize("model", sorted(LAYERS))
def test_every_network_runs_over_the_hops_of_a_batch(model: str) -> None:
    batch = sample(InMemory(GRAPH), np.arange(20), (6, 3), np.random.default_rng(0))
    program = Network(model, 24, 16, 5).over(batch)
    assert program.shape(program.outputs[0]) == (20, 5)
    assert small(model=model).loop.step_us > 0


def test_graphsage_reads_a_vertex_and_the_mean_of_its_neighbours() -> None:
    batch = sample(InMemory(GRAPH), np.arange(20), (6,), np.random.default_rng(0))
    program = Network("sage", 24, 16, 5).over(batch)
    node = next(node for node in program.nodes if type(node.op).__name__ == "Spmm")
    x = np.random.default_rng(1).normal(size=(len(batch.vertices), 24)).astype(np.float32)
    arrays = [x, *(program.constants[name] if name else None for name in node.inputs[1:])]
    found = SPARSE_VALUES[type(node.op)](node.op, arrays)
    hop = batch.hops[0]
    for row in range(20):
        neighbours = x[hop.col[hop.rowptr[row] : hop.rowptr[row + 1]]]
        expected = neighbours.mean(axis=0) if len(neighbours) else np.zeros(24)
        np.testing.assert_allclose(found[row], expected, atol=1e-6)


def test_models_of_the_zoo_run_over_all_vertices_of_a_batch() -> None:
    found = small(model="zoo:gcn", features=None, batches=1)
    assert found.loop.features == 1433
    assert found.loop.model == "zoo:gcn"
    assert found.loop.forward_us > 0


def test_edges_that_are_drawn_keep_their_types() -> None:
    ends = np.stack([GRAPH.col, GRAPH.destinations()])
    typed = Graph.from_edge_index(ends, GRAPH.num_dst, None, np.arange(GRAPH.num_edges) % 3)
    asked: dict[str, Any] = {"fan_outs": (4, 2), "batch": 16, "batches": 1}
    model = Path(__file__).parents[1] / "data" / "gnn" / "rgcn-fast-mean-ts.onnx"
    assert gnn.epoch(typed, model, **asked).loop.features == 12
    with pytest.raises(ModelError, match="reads edge types"):
        gnn.epoch(GRAPH, model, **asked)


@pytest.mark.parametrize(
    ("op", "name", "kind", "sizes", "message"),
    [
        ("Add", "more", onnx.TensorProto.FLOAT, ["num_nodes", 5], "of different widths: x [12], more [5]; export it"),
        ("Gather", "rows", onnx.TensorProto.INT64, ["asked"], "rows:asked (asked unbound); a batch gives numbers of"),
    ],
)
def test_inputs_that_a_batch_does_not_have_are_reported(
    op: str, name: str, kind: int, sizes: list[Any], message: str, tmp_path: Path
) -> None:
    model = onnx.load(Path(__file__).parents[1] / "data" / "gnn" / "sage-sum-ts.onnx")
    (out,) = model.graph.output
    model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, sizes))
    model.graph.node.append(onnx.helper.make_node(op, [out.name, name], ["made"]))
    out.CopyFrom(onnx.helper.make_tensor_value_info("made", onnx.TensorProto.FLOAT, [sizes[0], 5]))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(PimflowError) as caught:
        gnn.epoch(GRAPH, tmp_path / "model.onnx", fan_outs=(4, 2), batch=16, batches=1)
    assert message in str(caught.value)


def test_published_graphs_have_the_published_sizes() -> None:
    sizes = {name: workload(name).published for name in WORKLOADS}
    gigabytes = {name: 4 * size.vertices * size.features / 1e9 for name, size in sizes.items() if size is not None}
    assert {name: round(size) for name, size in gigabytes.items()} == {
        "reddit": 1,
        "ogbn-products": 1,
        "twitter7": 57,
        "sk-2005": 59,
        "wikipedia": 43,
        "ogbn-papers100m": 57,
    }
    found = gnn.epoch("twitter7", batch=20, batches=1)
    assert found.loop.is_estimate
    assert found.loop.train == 416_522
    assert "GB of features" in found["resident"].refused


def test_a_graph_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    GRAPH.save(path)
    loop = gnn.epoch(path, features=150, batch=64, fan_outs=(8, 4), batches=1).loop
    assert (loop.graph, loop.vertices, loop.edges, loop.is_estimate) == ("graph.npz", 3000, 40_000, False)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"fan_outs": ()}, OptionError, "'fan_outs' is empty"),
        ({"fan_outs": (3, 0)}, OptionError, "'fan_outs[1]' is 0; it must be between 1 and 1024"),
        ({"batch": 0}, OptionError, "'batch' is 0; it must be between 1"),
        ({"hidden": float("nan")}, OptionError, "'hidden' is nan"),
        ({"batches": -1}, OptionError, "'batches' is -1; it must be between 0"),
        ({"train": 4000}, OptionError, "'train' is 4000; the graph has 3,000 vertices"),
        ({"features": None}, OptionError, "give it with --features"),
        ({"loader": "some"}, OptionError, "unknown loader 'some'"),
        ({"model": "zoo:toy"}, PimflowError, ""),
        ({"model": "zoo:gcn"}, OptionError, "zoo:gcn reads 1433 features of a vertex, not 150; leave out --features"),
        ({"target": "pimflow"}, TargetError, "does not describe its memory tiers"),
        (
            {"target": TIGHT, "batch": 3000, "features": 1500},
            TargetError,
            "train smaller batches, or draw fewer",
        ),
        ({"features": 1 << 21}, OptionError, "'features' is 2097152; it must be between 1 and 1048576"),
        ({"target": TINY, "features": 1 << 20}, TargetError, "features fit nowhere"),
    ],
)
def test_invalid_arguments_are_one_line_errors(
    changes: dict[str, object], error: type[PimflowError], message: str
) -> None:
    with pytest.raises(error) as caught:
        small(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("redit", "did you mean 'reddit'?"),
        ("none.npz", "no such file"),
        (3, "graph is an int"),
        (Graph.from_edge_index(np.zeros((2, 0), np.int64), 0), "the graph has no vertices"),
    ],
)
def test_an_invalid_graph_is_reported(graph: object, message: str) -> None:
    with pytest.raises(GraphDataError) as caught:
        gnn.epoch(graph, features=4)
    assert message in str(caught.value)

"""`pimflow.train`: a training step of a model, and the plan for its activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper

import pimflow
import pimflow_zoo
from pimflow.api.training_steps import CLEAN_UP
from pimflow.bundle.source import model_source
from pimflow.compiled.original import read_model
from pimflow.errors import ModelError, OptionError, TargetError
from pimflow.ir import Array, Builder
from pimflow.onnxio.export import to_onnx
from pimflow.options import Options
from pimflow.passes.parameters import parameters as find_parameters
from pimflow.passes.relational import RELATIONAL
from pimflow.report.training import Activations, Training
from pimflow.runtime.offload.channel import Channel
from pimflow.search.relational_form import Form
from pimflow.sparse import Graph
from support.drives import Drives
from support.offload import Clock
from support.onnx_models import model_of, single

RESNET = "zoo:resnet-18"


def trained(activations: Activations = "auto", **options: float) -> Training:
    limit, slower = options.get("limit_gib"), options.get("slower_percent", 0.0)
    return pimflow.train(RESNET, target="a100-ssd", activations=activations, limit_gib=limit, slower_percent=slower)


@pytest.fixture(scope="module")
def kept() -> Training:
    return trained("keep")


def test_keeping_everything_leaves_the_step_unchanged(kept: Training) -> None:
    assert kept.found.run == kept.kept
    assert kept.found.run.time_us == pytest.approx(kept.trace.time_us)
    assert {row["becomes"] for row in kept} == {"kept"}
    assert kept.parameters == 11_689_512
    assert kept.fits


def test_the_peak_includes_all_saved_activations(kept: Training) -> None:
    """It also holds what the last layers work on. The whole step has more, but not at the same time."""
    trace = kept.trace
    assert trace.saved_bytes < kept.kept.peak_bytes < sum(buffer.bytes for buffer in trace.buffers if not buffer.fixed)
    assert 2.5 * trace.forward_us < trace.time_us, "each product has two of its size in the backward pass"


def test_a_plan_that_fits_is_found_in_no_time() -> None:
    """With more time the search finds a faster one, and reports how many plans it has simulated."""
    lines: dict[float | None, list[str]] = {0.0: [], None: []}
    most = pimflow.train("zoo:squeezenet-1.1", target="a100-ssd", activations="keep").kept.peak_bytes // 2
    hasty, thorough = (
        pimflow.train(
            "zoo:squeezenet-1.1",
            target="a100-ssd",
            limit_gib=most / 2**30,
            time_budget_s=budget_s,
            progress=told.append,
        )
        for budget_s, told in lines.items()
    )
    assert hasty.fits
    assert hasty.found.run.peak_bytes <= most
    assert not hasty.complete
    assert hasty.as_json()["plan"]["complete"] is False
    assert "--time-budget none" in hasty.text()
    assert thorough.complete
    assert "--time-budget" not in thorough.text()
    assert thorough.found.run.time_us < 0.95 * hasty.found.run.time_us
    for told in lines.values():
        counts = [int(line.split()[2].replace(",", "")) for line in told if "plans simulated" in line]
        assert counts == sorted(counts)
    assert counts, "the thorough search reports none"


def test_initial_zeros_of_sums_are_not_parameters() -> None:
    """A loop over relations starts from such zeros, which constant folding creates."""
    trained = pimflow.train("zoo:rgcn", activations="keep")
    assert trained.parameters == pimflow_zoo.entry("rgcn").parameters


def test_a_spelled_out_gelu_saves_as_much_as_the_operator() -> None:
    steps = []
    for opset in (17, 20):
        build = Builder(opset=opset)
        x = build.matmul(build.input(64, 32), 128)
        if opset == 20:
            x = build.elementwise("Gelu", x)
        else:
            root, one, half = (build.constant(np.array(value, np.float32)) for value in (math.sqrt(2), 1.0, 0.5))
            shifted = build.add(build.elementwise("Erf", build.elementwise("Div", x, root)), one)
            x = build.mul(build.mul(x, shifted), half)
        steps.append(pimflow.train(to_onnx(build.graph(build.matmul(x, 8))), target="a100-ssd", activations="keep"))
    assert [step.trace.saved_bytes for step in steps] == [2 * 4 * 64 * 128] * 2
    assert steps[0].kept.peak_bytes == steps[1].kept.peak_bytes


TYPED = Graph.from_edge_index(
    np.random.default_rng(0).integers(0, 40, (2, 300)), 40, None, np.random.default_rng(1).integers(0, 3, 300)
)
LISTS = Graph.from_edge_lists(
    {name: np.random.default_rng(2).integers(0, 30, (2, 200)) for name in ("cites", "writes", "written")}
)


@pytest.mark.parametrize(
    ("model", "graph", "parameters"),
    [
        ("tests/data/gnn/rgcn-fast-blocks-ts.onnx", TYPED, 3 * 4 * 3 * 2 + 12 * 8 + 8),
        ("tests/data/gnn/rgcn-ts.onnx", TYPED, 1109),
        ("tests/data/gnn/film-typed-ts.onnx", TYPED, 1200),
        ("tests/data/gnn/hetero/gat-dynamo.onnx", LISTS, 8 * (6 + 6) + 8 * (4 + 6) + 4 * 8 + 8),
        ("zoo:hgt", None, pimflow_zoo.entry("hgt").parameters - 2),
    ],
)
def test_parameters_do_not_depend_on_the_form_of_relations(model: str, graph: Graph | None, parameters: int) -> None:
    """Means over the edges of each type are data, priors of a type are read by many edges, and both tables of pairs are
    trained. Single numbers, of which HGT has two, are never counted."""
    sizes = {"num_paper": 30, "num_author": 30} if graph is LISTS else {}
    loaded = read_model(model_source(model), Options.of(graph=graph, shapes=sizes))
    graphs = Form(RELATIONAL, is_trained=True).variants(CLEAN_UP.run(loaded.graph).graph, RELATIONAL)
    assert len(graphs) > 1
    for form in graphs.values():
        names = find_parameters(form, loaded.graph, loaded.of_graph)
        assert sum(form.value(name).elements for name in names) == parameters


def test_means_over_the_edges_of_each_type_are_not_trained_in_any_form() -> None:
    model = "tests/data/gnn/rgcn-fast-blocks-ts.onnx"
    for relations in ("never", "always", "auto"):
        step = pimflow.train(model, graph=TYPED, activations="keep", relations=relations, use_cache=False)
        assert step.parameters == 176


@pytest.mark.parametrize("export", ["film-typed-ts", "rgat-ts"])
def test_relational_layers_are_trained_in_the_form_whose_step_is_fastest(export: str) -> None:
    model, steps = f"tests/data/gnn/{export}.onnx", {}
    rng = np.random.default_rng(0)
    graph = Graph.from_edge_index(rng.integers(0, 300, (2, 4000)), 300, None, rng.integers(0, 3, 4000))
    for relations in ("never", "always", "auto"):
        steps[relations] = pimflow.train(
            model, graph=graph, target="rtx3090", activations="keep", relations=relations, use_cache=False
        )
    assert len({step.parameters for step in steps.values()}) == 1
    times = {relations: step.trace.time_us for relations, step in steps.items()}
    assert times["auto"] <= min(times.values())
    assert times["auto"] < times["never"]


def test_a_form_that_fits_is_considered_if_the_fastest_does_not() -> None:
    """With a byte less than the fastest form saves, another form fits with all kept; a plan of either is as fast or
    faster."""
    rng = np.random.default_rng(0)
    graph = Graph.from_edge_index(rng.integers(0, 300, (2, 4000)), 300, None, rng.integers(0, 3, 4000))

    def step(activations: Activations, limit_gib: float | None) -> Training:
        return pimflow.train(
            "tests/data/gnn/typed-attention-ts.onnx",
            graph=graph,
            target="rtx3090",
            activations=activations,
            limit_gib=limit_gib,
            use_cache=False,
        )

    fastest = step("keep", None).found.run
    limit_gib = (fastest.peak_bytes - 1) / 2**30
    kept, found = (step(activations, limit_gib).found.run for activations in ("keep", "auto"))
    assert max(kept.peak_bytes, found.peak_bytes) < fastest.peak_bytes
    assert fastest.time_us <= found.time_us <= kept.time_us
    assert fastest.time_us < kept.time_us


def test_the_form_that_lacks_least_is_considered_if_none_fits() -> None:
    """No form of RGAT fits with all kept, but another than the fastest fits with some of it recomputed."""

    def step(activations: Activations, limit_gib: float | None) -> Training:
        return pimflow.train("zoo:rgat", target="a100-ssd", activations=activations, limit_gib=limit_gib)

    fastest = step("keep", None).found.run
    found = step("recompute", 0.65 * fastest.peak_bytes / 2**30)
    assert found.fits
    assert found.available_bytes is not None
    assert found.available_bytes < found.kept.peak_bytes < fastest.peak_bytes


def test_weights_that_are_constant_nodes_are_parameters() -> None:
    """Paddle's exporter writes all weights as such nodes."""
    model = single("Conv", (1, 3, 8, 8), [np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)])
    known = pimflow.train(model, activations="keep").parameters
    for tensor in model.graph.initializer:
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]
    assert pimflow.train(model, activations="keep").parameters == known == 108


def _learnt(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("made", "constants", "parameters"),
    [
        ([("MatMul", "ab")], {"a": _learnt(8, 2), "b": np.zeros((2, 4), np.float32)}, 8 * 2 + 2 * 4),
        ([("MatMul", "ab"), ("Reshape", "ws")], {"a": _learnt(4, 2), "b": _learnt(2, 8), "s": np.array([8, 4])}, 24),
        ([("ReduceL2", "b"), ("Div", "bw"), ("Mul", "aw")], {"a": _learnt(4), "b": _learnt(8, 4)}, 4 + 8 * 4),
        ([("Add", "ab")], {"a": _learnt(4), "b": _learnt(8, 4)}, 4 + 8 * 4),
        ([("Mul", "ab")], {"a": np.tri(8, 4, dtype=np.float32), "b": _learnt(8, 4)}, 8 * 4),
        ([("Mul", "bb"), ("Transpose", "w")], {"b": _learnt(4, 8)}, 4 * 8),
    ],
    ids=["low-rank", "bases", "weight-norm", "sum", "mask", "square"],
)
def test_weights_computed_from_parameters_are_not_parameters(
    made: list[tuple[str, str]], constants: dict[str, npt.NDArray[Any]], parameters: int
) -> None:
    """`w` stands for the result of the previous node."""
    names = [f"w{index}" for index in range(len(made))]
    nodes = [
        helper.make_node(op_type, [names[index - 1] if name == "w" else name for name in read], [names[index]])
        for index, (op_type, read) in enumerate(made)
    ]
    nodes.append(helper.make_node("MatMul", ["x", names[-1]], ["y"]))
    step = pimflow.train(model_of(nodes, {"x": (5, 8)}, constants=constants), activations="keep")
    assert step.parameters == parameters


WORDS, FOUND = np.random.default_rng(1).standard_normal((9, 8)).astype(np.float32), np.array([[1, 0, 2, 1, 8]])


@pytest.mark.parametrize(
    ("made", "constants", "parameters"),
    [
        ([("Gather", "tf"), ("Transpose", "t"), ("MatMul", "01")], {"t": WORDS, "f": FOUND}, 72),
        ([("Gather", "tf"), ("MatMul", "0c")], {"t": WORDS, "c": WORDS.T.copy(), "f": FOUND}, 72),
        ([("Transpose", "w"), ("MatMul", "x0"), ("Transpose", "w"), ("MatMul", "12")], {"w": WORDS[:8]}, 64),
        ([("Gather", "tf"), ("Add", "x0")], {"t": WORDS, "f": FOUND}, 72),
        ([("MatMul", "ow"), ("Add", "x0")], {"o": np.ones((5, 3), np.float32), "w": WORDS[:3]}, 24),
        ([("MatMul", "zw"), ("Sub", "z0")], {"z": np.zeros((1, 8), np.float32), "w": WORDS[:8]}, 64),
        ([("MatMul", "xw"), ("Add", "0m"), ("Softmax", "1")], {"w": WORDS[:8], "m": np.zeros((5, 8), np.float32)}, 64),
    ],
    ids=["tied", "tied-copy", "every-step", "rows", "ones", "initial-state", "open-mask"],
)
def test_each_parameter_is_counted_once_as_the_framework_stores_it(
    made: list[tuple[str, str]], constants: dict[str, npt.NDArray[Any]], parameters: int
) -> None:
    """A digit stands for the result of that node; what none reads is added to the result."""
    nodes = [
        helper.make_node(op_type, [f"n{name}" if name.isdigit() else name for name in read], [f"n{index}"])
        for index, (op_type, read) in enumerate(made)
    ]
    nodes += [
        helper.make_node("MatMul", ["x", "last"], ["seen"]),
        helper.make_node("ReduceSum", [f"n{len(made) - 1}", "axis"], ["sum"]),
        helper.make_node("Add", ["seen", "sum"], ["y"]),
    ]
    constants = {**constants, "last": _learnt(8, 1), "axis": np.array([-1])}
    step = pimflow.train(model_of(nodes, {"x": (5, 8)}, ["y"], constants), target="h200", activations="keep")
    assert step.parameters == parameters + 8
    assert not any("Transpose" in kernel.name and kernel.time_us for kernel in step.trace.kernels[: step.trace.turn])


@pytest.mark.parametrize(("state", "parameters"), [(np.zeros, 0), (_learnt, 4)])
def test_initial_states_are_trained_unless_they_are_zeros(state: Any, parameters: int) -> None:
    constants = {"w": _learnt(1, 12, 3), "r": _learnt(1, 12, 4), "b": _learnt(1, 24)}
    constants["h"] = np.asarray(state((1, 1, 4)) if state is np.zeros else state(1, 1, 4), np.float32)
    node = helper.make_node("GRU", ["x", "w", "r", "b", "", "h"], ["y"], hidden_size=4)
    step = pimflow.train(model_of([node], {"x": (5, 1, 3)}, ["y"], constants), activations="keep")
    assert step.parameters == 12 * 3 + 12 * 4 + 24 + parameters


@pytest.mark.parametrize(("scale", "parameters"), [(1.0, 2 * 4), (0.5, 2 * 4 + 2 * 2)])
def test_a_norm_of_groups_has_one_scale_and_shift_per_channel(scale: float, parameters: int) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "groups"], ["a"]),
        helper.make_node("InstanceNormalization", ["a", "scale", "shift"], ["b"]),
        helper.make_node("Reshape", ["b", "channels"], ["c"]),
        helper.make_node("Mul", ["c", "w"], ["d"]),
        helper.make_node("Add", ["d", "v"], ["y"]),
    ]
    constants = {"groups": np.array([1, 2, 12]), "channels": np.array([1, 4, 6])}
    constants |= {"scale": np.full(2, scale, np.float32), "shift": np.zeros(2, np.float32)}
    constants |= {"w": _learnt(4, 1), "v": _learnt(4, 1)}
    step = pimflow.train(model_of(nodes, {"x": (1, 4, 6)}, ["y"], constants), activations="keep")
    assert step.parameters == parameters


def test_layers_that_read_only_the_graph_are_trained() -> None:
    """The degrees of vertices are data, the weights and the table that they are multiplied with and looked up in are
    not."""
    graph = Graph.from_edge_index(np.random.default_rng(0).integers(0, 12, (2, 40)), 12)
    constants = {
        "one": np.array(1),
        "zeros": np.zeros((12, 1), np.float32),
        "ones": np.ones((40, 1), np.float32),
        "none": np.zeros((12, 8), np.float32),
        "column": np.array([-1, 1]),
        "flat": np.array([-1]),
        "wide": np.array([1, 8]),
        "origin": np.array(0),
        "w": _learnt(1, 8),
        "table": _learnt(50, 8),
    }
    nodes = [
        helper.make_node("Gather", ["edge_index", "origin"], ["sources"]),
        helper.make_node("Gather", ["edge_index", "one"], ["targets"]),
        helper.make_node("Reshape", ["targets", "column"], ["index"]),
        helper.make_node("ScatterElements", ["zeros", "index", "ones"], ["degrees"], reduction="add"),
        helper.make_node("MatMul", ["degrees", "w"], ["layer"]),
        helper.make_node("Reshape", ["degrees", "flat"], ["listed"]),
        helper.make_node("Cast", ["listed"], ["rows"], to=7),
        helper.make_node("Gather", ["table", "rows"], ["looked_up"]),
        helper.make_node("Add", ["layer", "looked_up"], ["features"]),
        helper.make_node("Add", ["features", "x"], ["h"]),
        helper.make_node("Gather", ["h", "sources"], ["messages"]),
        helper.make_node("Expand", ["index", "wide"], ["columns"]),
        helper.make_node("ScatterElements", ["none", "columns", "messages"], ["y"], reduction="add"),
    ]
    model = model_of(nodes, {"x": (12, 8)}, ["y"], constants)
    model.graph.input.append(helper.make_tensor_value_info("edge_index", TensorProto.INT64, (2, "edges")))
    step = pimflow.train(model, graph=graph, activations="keep", use_cache=False)
    assert step.parameters == 8 + 50 * 8


def test_a_step_that_needs_a_newer_opset_is_made_in_one() -> None:
    """Overlapping windows give one element several gradients; only scatters of opset 16 or later add them up."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    weights = np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(np.float32)
    old, new = (pimflow.train(model_of(nodes, {"x": (1, 3, 9, 9)}, ["y"], {"w": weights}, opset=n)) for n in (11, 17))
    assert old.parameters == new.parameters == 12
    assert old.trace.time_us == pytest.approx(new.trace.time_us)


def test_errors_that_no_opset_avoids_name_the_given_model() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Det", ["a"], ["y"], name="det")]
    weights = np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(np.float32)
    with pytest.raises(ModelError) as caught:
        pimflow.train(model_of(nodes, {"x": (1, 3, 17, 17)}, ["y"], {"w": weights}, opset=11))
    assert "'det' has no gradient" in str(caught.value)


def test_a_model_without_parameters() -> None:
    build = Builder()
    x = build.input(2, 3)
    zeros = build.onnx("ConstantOfShape", build.constant(np.array([2, 3], np.int64)), shape=(2, 3), dtype="float32")
    with pytest.raises(ModelError, match="has no parameters to train"):
        pimflow.train(to_onnx(build.graph(build.add(x, zeros))))


def test_a_model_without_nodes() -> None:
    """Its result is its input, which is no constant."""
    build = Builder()
    with pytest.raises(ModelError, match="has no parameters to train"):
        pimflow.train(to_onnx(build.graph(build.input(2, 3))))
    drawn = helper.make_node("RandomNormal", [], ["y"], shape=[2, 3])
    with pytest.raises(ModelError, match="has neither inputs nor parameters"):
        pimflow.train(model_of([drawn], {}, ["y"], {}, opset=17))


def test_quantised_weights_are_named_as_what_cannot_be_trained() -> None:
    nodes = [helper.make_node("DequantizeLinear", ["q", "step"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights: dict[str, Array] = {"q": np.arange(-6, 6, dtype=np.int8).reshape(3, 4), "step": np.array(0.1, np.float32)}
    with pytest.raises(ModelError, match="has no parameters to train") as caught:
        pimflow.train(model_of(nodes, {"x": (2, 3)}, ["y"], weights, opset=17))
    assert "before quantisation" in caught.value.hint


def test_a_model_whose_outputs_depend_on_no_input() -> None:
    nodes = [helper.make_node("Sigmoid", ["a"], ["y"]), helper.make_node("Relu", ["x"], ["unread"])]
    weights = {"a": np.ones((2, 2), np.float32)}
    with pytest.raises(ModelError, match="computes the same for every input"):
        pimflow.train(model_of(nodes, {"x": (2, 2)}, ["y"], weights, opset=17))


def test_a_plan_needs_less_memory_and_no_more_time(kept: Training) -> None:
    planned = trained()
    assert planned.found.run.peak_bytes < 0.9 * kept.kept.peak_bytes
    run = planned.found.run
    assert run.time_us - run.slowed_us <= kept.kept.time_us * (1 + 1e-6)
    assert 0 < run.slowed_us < 0.016 * run.time_us, "24.6 of 1,555 GB/s at most"
    assert kept.kept.slowed_us == 0
    assert planned.endurance is not None
    assert planned.endurance.written_bytes == sum(row["bytes"] for row in planned if row["store_us"] is not None)
    a_day = planned.endurance.written_bytes * 86400e6 / planned.found.run.time_us / 1e12
    assert planned.endurance.tb_a_day == pytest.approx(a_day)
    assert planned.endurance.years == pytest.approx(1_168_000 / a_day / 365)


def test_the_peak_matches_a_simulation() -> None:
    """Replayed tick by tick, to within a tick's error; with SSDs, replayed exactly from transfer to transfer, since
    transfers slow no kernel on that machine."""
    channel = Channel(24_400.0, 24_600.0, 10.0)
    again = pimflow.train("zoo:toy", activations="recompute", slower_percent=10)
    time_us, peak = Clock(again.trace, again.found.plan, channel, tick_us=0.02).run()
    assert again.found.plan.recomputed
    assert again.found.run.time_us == pytest.approx(time_us, rel=0.05)
    assert again.found.run.peak_bytes == pytest.approx(peak, rel=0.05)
    paged = pimflow.train("zoo:toy", target="a100-ssd", slower_percent=10)
    time_us, lower = Drives(paged.trace, paged.found.plan, channel, paged.as_json()["plan"]["limit_bytes"]).run()
    assert paged.found.run.time_us == pytest.approx(time_us, rel=0.01)
    assert paged.found.run.peak_bytes == lower < 0.8 * paged.kept.peak_bytes


@pytest.mark.parametrize("share", [0.99, 1.0])
def test_no_plan_needs_less_than_a_single_kernel(share: float) -> None:
    least = pimflow.train("zoo:toy", target="a100-ssd", activations="keep").as_json()["least_bytes"]
    planned = pimflow.train("zoo:toy", target="a100-ssd", limit_gib=share * least / 2**30)
    told = planned.as_json()
    assert planned.fits == (share == 1)
    assert told["plan"]["peak_bytes"] == told["available_bytes"] + told["missing_bytes"]
    missing = f"do not fit, {told['missing_bytes'] / 1024:.1f} KiB are missing (no plan fits: one kernel alone"
    assert (missing in planned.text()) == (share < 1)
    assert told["plan"]["peak_bytes"] == least


def test_a_step_that_does_not_fit_gets_a_plan_that_does(kept: Training) -> None:
    limit = 0.55 * kept.kept.peak_bytes / 2**30
    planned = trained(limit_gib=limit)
    assert planned.available_bytes == round(limit * 2**30)
    assert planned.fits
    assert planned.found.run.peak_bytes <= planned.available_bytes
    assert not trained("keep", limit_gib=limit).fits


def test_a_longer_step_within_a_limit_writes_less(kept: Training) -> None:
    """Whatever is allowed counts as equally fast, time lost to the traffic of transfers included."""
    limit = 0.5 * kept.kept.peak_bytes / 2**30
    fast, long = (trained(limit_gib=limit, slower_percent=slower) for slower in (0.0, 5.0))
    assert fast.fits
    assert long.fits
    assert kept.kept.time_us < fast.found.run.time_us < long.found.run.time_us <= 1.05 * kept.kept.time_us
    assert fast.endurance is not None
    assert long.endurance is not None
    assert fast.endurance.written_bytes > 0 == long.endurance.written_bytes


def test_what_is_missing_includes_what_weights_and_gradients_lack() -> None:
    """A GPU that is a MiB too small for them, whatever becomes of activations."""
    state = pimflow.train("zoo:resnet-18", activations="keep").state_bytes
    capacity = {"memory.gpu.reserved_gib": 0.0, "memory.gpu.capacity_gib": (state - 2**20) / 2**30}
    small = pimflow.override("a100-ssd", capacity)
    planned = pimflow.train("zoo:resnet-18", target=small, activations="keep")
    told = planned.as_json()
    assert not planned.fits
    assert told["state_missing_bytes"] == 2**20
    assert told["available_bytes"] == 0
    assert told["missing_bytes"] == told["plan"]["peak_bytes"] == planned.kept.peak_bytes
    assert "results alone do not fit, 1.0 MiB are missing, and 29.8 MiB more for activations" in planned.text()
    with pytest.raises(OptionError, match=r"'a100-ssd' lacks 1\.0 MiB for weights, gradients, state"):
        pimflow.train("zoo:resnet-18", target=small, limit_gib=0.01)
    assert trained("keep").as_json()["state_missing_bytes"] == 0


def test_nothing_is_offloaded_if_everything_fits(kept: Training) -> None:
    planned = trained(limit_gib=1.01 * kept.kept.peak_bytes / 2**30)
    assert planned.found.run == kept.found.run


def test_the_rule_is_the_published_one() -> None:
    """No tensor of a ResNet-18 for one image has 8 Mi elements, so all stay in memory."""
    assert {row["becomes"] for row in trained("rule")} == {"kept"}


def test_drives_hold_what_is_offloaded() -> None:
    """On drives of 150 KB, at most two of three large activations of a toy; the rule does not ask, and is refused."""
    small = {"memory.ssd.capacity_gb": 150e-6}
    plans = [
        pimflow.train("zoo:toy", target=target, activations="offload", limit_gib=0.5 * 409_600 / 2**30)
        for target in ("a100-ssd", pimflow.override("a100-ssd", small))
    ]
    taken = [step.as_json()["plan"]["offloaded_bytes"] for step in plans]
    assert taken[0] > 150_000 >= taken[1] > 0
    build = Builder()
    wide = to_onnx(build.graph(build.gemm(build.tanh(build.gemm(build.input(4096, 8), 2048)), 8)))
    fast = {"memory.ssd.write_gb_per_s": 1e4, "memory.ssd.link_gb_per_s": 1e4}
    rule = pimflow.train(wide, target=pimflow.override("a100-ssd", fast), activations="rule").as_json()
    assert rule["plan"]["offloaded_bytes"] >= 32 << 20
    with pytest.raises(OptionError, match=r"the rule offloads .*MiB, more than the SSDs hold \(146\.5 KiB\)"):
        pimflow.train(wide, target=pimflow.override("a100-ssd", fast | small), activations="rule")


def test_without_ssds_nothing_is_offloaded() -> None:
    planned = pimflow.train("zoo:toy", slower_percent=50)
    assert planned.endurance is None
    assert {row["becomes"] for row in planned} == {"kept", "recomputed"}
    with pytest.raises(TargetError, match=r"'pimflow' has no SSDs; choose a target with a table \[memory.ssd\]"):
        pimflow.train("zoo:toy", activations="offload")


def test_mistakes_are_named() -> None:
    with pytest.raises(OptionError, match=r"unknown use of activations 'forget'.*auto, keep"):
        pimflow.train("zoo:toy", activations="forget")  # type: ignore[arg-type]
    for slower, told in ((-1.0, "-1.0; it must be 0 or more"), (math.nan, "nan; it must be finite")):
        with pytest.raises(OptionError, match=f"'slower_percent' is {told}"):
            pimflow.train("zoo:toy", slower_percent=slower)
    for limit, told in ((0.0, "0.0; it must be above 0"), (math.nan, "nan; it must be finite")):
        with pytest.raises(OptionError, match=f"'limit_gib' is {told}"):
            pimflow.train("zoo:toy", limit_gib=limit)
    for limit in (39.25, 1e300):
        with pytest.raises(OptionError, match=r"'a100-ssd' has 39\.2 GiB for activations, less than the limit of"):
            pimflow.train("zoo:toy", target="a100-ssd", limit_gib=limit)
    assert pimflow.train("zoo:toy", limit_gib=1e300).fits
    build = Builder()
    winner = build.onnx("Hardmax", build.matmul(build.input(2, 4), 4), name="winner")
    with pytest.raises(ModelError, match="'winner' has no gradient: Hardmax has no gradient rule"):
        pimflow.train(to_onnx(build.graph(winner)))

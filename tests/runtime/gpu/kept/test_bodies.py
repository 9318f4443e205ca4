"""If, Loop and Scan: the kernels of their bodies, as often as they run; a count unknown until run time is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pimflow
from pimflow.compiled import Machine
from pimflow.frontend import load_model
from pimflow.ir.analysis.content import content_of
from pimflow.runtime.gpu.work import KernelSequence, MatrixWork, StreamWork, node_work
from pimflow.targets import load_target
from support.onnx_models import model_of
from support.opaque_models import kernels_of, normal, work_of

SIZE, TRIPS = 64, 10
PRODUCT = MatrixWork(4, SIZE, SIZE, 1, 2 * (4 * SIZE + SIZE * SIZE + 4 * SIZE))
TANH = StreamWork(6 * 4 * SIZE, 2 * 2 * 4 * SIZE)

Types = Mapping[str, tuple[int, Sequence[int | str]]]


def body(nodes: Sequence[onnx.NodeProto], inputs: Types, outputs: Types) -> onnx.GraphProto:
    def infos(types: Types) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, *kind) for name, kind in types.items()]

    return helper.make_graph(list(nodes), "body", infos(inputs), infos(outputs))


STATE: tuple[int, Sequence[int | str]] = (TensorProto.FLOAT, (4, SIZE))
FLAG: tuple[int, Sequence[int | str]] = (TensorProto.BOOL, ())
COUNT: tuple[int, Sequence[int | str]] = (TensorProto.INT64, ())
CELL = [helper.make_node("MatMul", ["h", "W"], ["m"]), helper.make_node("Tanh", ["m"], ["next"])]


def loop(trips: str, *, stops: str = "", weights: int = SIZE, begins: str = "") -> onnx.ModelProto:
    """h = tanh(h W), repeated as often as the named value says, or until the body stops, by its count or result."""
    state = (TensorProto.FLOAT, (4, weights))
    goes_on = {
        "": [helper.make_node("Identity", ["c"], ["on"])],
        "count": [helper.make_node("Less", ["i", "limit"], ["on"])],
        "data": [
            helper.make_node("ReduceMax", ["next"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "high"], ["on"]),
        ],
    }
    inner = body([*CELL, *goes_on[stops]], {"i": COUNT, "c": FLAG, "h": state}, {"on": FLAG, "next": state})
    nodes = [
        helper.make_node("Cast", ["count"], ["asked"], to=TensorProto.INT64),
        helper.make_node("Loop", [trips, begins, "x"], ["y"], "kept", body=inner),
    ]
    constants = {
        "W": np.float32(0.1) * normal(weights, weights),
        "known": np.array(TRIPS),
        "other": np.array(2 * TRIPS),
        "most32": np.array(2**31 - 1),
        "most64": np.array(2**63 - 1),
        "negative": np.array(-1),
        "never": np.array(False),
        "limit": np.array(3),
        "high": np.array(2, np.float32),
    }
    inputs: dict[str, Sequence[int]] = {"x": (4, weights)}
    inputs |= {"count": ()} if trips == "asked" else {}
    return model_of(nodes if trips == "asked" else nodes[1:], inputs, ["y"], constants)


def scan() -> onnx.ModelProto:
    inner = body(
        [*CELL, helper.make_node("Add", ["next", "e"], ["out"])],
        {"h": STATE, "e": STATE},
        {"next": STATE, "out": STATE},
    )
    node = helper.make_node("Scan", ["h0", "x"], ["h1", "y"], "kept", body=inner, num_scan_inputs=1)
    weights = {"W": normal(SIZE, SIZE), "h0": normal(4, SIZE)}
    return model_of([node], {"x": (TRIPS, 4, SIZE)}, ["y"], weights)


def branches() -> onnx.ModelProto:
    small = body([helper.make_node("Tanh", ["x"], ["s"])], {}, {"s": STATE})
    large = body([helper.make_node("MatMul", ["x", "W"], ["l"])], {}, {"l": STATE})
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], "kept", then_branch=small, else_branch=large),
    ]
    return model_of(nodes, {"x": (4, SIZE)}, ["y"], {"W": normal(SIZE, SIZE), "zero": np.array(0, np.float32)})


def alone(model: onnx.ModelProto, name: str = "kept") -> tuple[list[object], str]:
    """The kernels of a model's only node, and what is unknown about it."""
    graph = load_model(model)
    host = Machine(load_target("pimflow")).costs.host
    work = node_work(graph, graph.node(name), 2)
    assert isinstance(work, KernelSequence)
    assert host.unknown(graph, graph.node(name)) == work.unknown
    return [kernel for kernel, times in work.kernels for _ in range(times)], work.unknown


def test_a_counted_loop_repeats_its_body() -> None:
    assert kernels_of(loop("known")) == [PRODUCT] * TRIPS + [TANH] * TRIPS
    assert work_of(loop("known")).unknown == ""


def test_loops_of_other_counts_do_not_share_a_price() -> None:
    graphs = [load_model(loop(name)) for name in ("known", "other")]
    contents = [content_of(graph, graph.node("kept")) for graph in graphs]
    assert contents[0] != contents[1]
    costs = Machine(load_target("pimflow")).costs
    ten, twenty = (costs.node_cost(graph, graph.node("kept")).time_us for graph in graphs)
    assert twenty == pytest.approx(2 * ten)


def test_a_data_dependent_count_is_reported() -> None:
    kernels, unknown = alone(loop("asked"))
    assert kernels == [PRODUCT, TANH]
    assert unknown == "the number of iterations depends on data: one is counted"


def test_a_body_that_may_stop_is_counted_to_its_limit() -> None:
    kernels, unknown = alone(loop("known", stops="data"))
    assert kernels.count(PRODUCT) == TRIPS
    assert unknown == f"the number of iterations depends on data: {TRIPS} are counted"


@pytest.mark.parametrize("limit", ["most32", "most64"])
def test_the_highest_number_is_no_limit(limit: str) -> None:
    kernels, unknown = alone(loop(limit, stops="data"))
    assert kernels.count(PRODUCT) == kernels.count(TANH) == 1
    assert unknown == "the number of iterations depends on data: one is counted"


@pytest.mark.parametrize(("limit", "begins"), [("negative", ""), ("known", "never"), ("most64", "never")])
def test_a_loop_that_never_begins_takes_no_time(limit: str, begins: str) -> None:
    assert alone(loop(limit, stops="data", begins=begins)) == ([], "")


def test_a_body_that_stops_by_its_count_is_counted_until_then() -> None:
    kernels, unknown = alone(loop("known", stops="count"))
    assert kernels == 4 * [PRODUCT] + 4 * [TANH]
    assert unknown == ""


def test_a_scan_runs_once_for_each_element() -> None:
    kernels = kernels_of(scan())
    assert kernels.count(PRODUCT) == kernels.count(TANH) == TRIPS
    assert len(kernels) == 3 * TRIPS


def test_the_larger_branch_is_counted() -> None:
    kernels, unknown = alone(branches())
    assert kernels == [PRODUCT]
    assert unknown == "which branch runs depends on data: the larger is counted"


def test_a_loop_in_a_loop_multiplies() -> None:
    state = STATE
    inner = body(
        [*CELL, helper.make_node("Identity", ["c"], ["on"])],
        {"i": COUNT, "c": FLAG, "h": state},
        {"on": FLAG, "next": state},
    )
    outer = body(
        [
            helper.make_node("Loop", ["known", "", "g"], ["made"], "inner", body=inner),
            helper.make_node("Identity", ["c2"], ["on2"]),
        ],
        {"i2": COUNT, "c2": FLAG, "g": state},
        {"on2": FLAG, "made": state},
    )
    node = helper.make_node("Loop", ["known", "", "x"], ["y"], "kept", body=outer)
    model = model_of([node], {"x": (4, SIZE)}, ["y"], {"W": normal(SIZE, SIZE), "known": np.array(TRIPS)})
    assert work_of(model).macs == TRIPS * TRIPS * PRODUCT.macs


def test_growing_states_are_reported() -> None:
    wide: tuple[int, Sequence[int | str]] = (TensorProto.FLOAT, ("rows", SIZE))
    inner = body(
        [
            helper.make_node("Concat", ["h", "h"], ["next"], axis=0),
            helper.make_node("Identity", ["c"], ["on"]),
        ],
        {"i": COUNT, "c": FLAG, "h": wide},
        {"on": FLAG, "next": wide},
    )
    node = helper.make_node("Loop", ["known", "", "x"], ["y"], "kept", body=inner)
    _, unknown = alone(model_of([node], {"x": (4, SIZE)}, ["y"], {"known": np.array(3)}))
    assert unknown == "sizes change from one iteration to the next: those of the first are counted"


@pytest.mark.parametrize(
    "model", [loop("known"), loop("known", stops="data"), loop("known", stops="count"), scan(), branches()]
)
def test_values_match_the_model(model: onnx.ModelProto) -> None:
    assert pimflow.compile(model, use_cache=False).verify().passed

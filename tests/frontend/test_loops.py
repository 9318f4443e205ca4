"""Loops with their own end condition: a known trip count if no input decides it, otherwise the body's own condition."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pimflow.errors import ModelError
from pimflow.frontend import load_model, loops
from pimflow.ir import Array, Graph, Node, OnnxOp
from pimflow.onnxio import to_onnx
from pimflow.onnxio.captures import graph_attribute, passes_condition_on
from pimflow.runtime.execute.ort import run_graph
from support.onnx_models import model_of, run_plain, with_ranks

INFO = helper.make_tensor_value_info
MAKE = helper.make_node
INT, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
STEPS, WIDTH = 5, 3


def recurrent(
    condition: list[onnx.NodeProto],
    *,
    limit: str = "",
    goes_on: str = "",
    start: int = 0,
    constants: dict[str, Array] | None = None,
    inputs: dict[str, tuple[int, ...]] | None = None,
) -> onnx.ModelProto:
    """h = tanh(h + x[place]) for place = start, start + 1, ... while a condition named "on" holds; the output is h of
    every step."""
    cell = [
        MAKE("Add", ["place", "one"], ["after"]),
        MAKE("Gather", ["x", "place"], ["row"]),
        MAKE("Add", ["h", "row"], ["sum"]),
        MAKE("Tanh", ["sum"], ["next"]),
        MAKE("Identity", ["next"], ["step"]),
        *condition,
    ]
    body = helper.make_graph(
        cell,
        "body",
        [INFO("run", INT, ()), INFO("go", BOOL, ()), INFO("place", INT, ()), INFO("h", FLOAT, (WIDTH,))],
        [INFO("on", BOOL, ()), INFO("after", INT, ()), INFO("next", FLOAT, (WIDTH,)), INFO("step", FLOAT, (WIDTH,))],
        [numpy_helper.from_array(np.array(1), "one")],
    )
    loop = MAKE("Loop", [limit, goes_on, "start", "first"], ["last", "y", "steps"], "loop", body=body)
    given = {"start": np.array(start), "first": np.zeros(WIDTH, np.float32), **(constants or {})}
    return model_of([loop], {"x": (STEPS, WIDTH), **(inputs or {})}, ["y", "steps"], given)


def loop_of(graph: Graph) -> Node:
    return next(node for node in graph.nodes if node.kind == "Loop")


def assert_of_length(model: onnx.ModelProto, length: int) -> None:
    graph = load_model(model)
    node = loop_of(graph)
    assert isinstance(node.op, OnnxOp)
    assert graph.constants[node.inputs[0]].tolist() == length
    assert node.inputs[1] == ""
    assert passes_condition_on(node.op)
    assert graph.shape("steps") == (length, WIDTH)
    x = np.linspace(-1, 1, STEPS * WIDTH, dtype=np.float32).reshape(STEPS, WIDTH)
    wanted, found = run_plain(model, {"x": x}), run_graph(graph, {"x": x})
    assert wanted["steps"].shape == (length, WIDTH)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    onnx.checker.check_model(to_onnx(graph), full_check=True)
    again = load_model(to_onnx(graph))
    assert again.nodes == graph.nodes


FEW = {"few": np.array(4), "none": np.array(0), "true": np.array(True), "false": np.array(False)}


def test_a_body_that_counts_to_a_constant() -> None:
    model = recurrent([MAKE("Less", ["after", "few"], ["on"])], constants=FEW)
    assert_of_length(model, 4)
    node = loop_of(load_model(model))
    assert isinstance(node.op, OnnxOp)
    kinds = [inner.op_type for inner in graph_attribute(node.op, "body").node]
    assert "Less" not in kinds, "the condition is not computed"
    assert kinds.count("Add") == 2, "values with other readers stay"


@pytest.mark.parametrize(("start", "length"), [(2, 2), (4, 1)])
def test_a_count_with_another_start(start: int, length: int) -> None:
    """The condition is evaluated after the body, which runs at least once."""
    assert_of_length(recurrent([MAKE("Less", ["after", "few"], ["on"])], start=start, constants=FEW), length)


def test_a_limit_below_the_condition_holds() -> None:
    three = {**FEW, "three": np.array(3)}
    assert_of_length(recurrent([MAKE("Less", ["after", "few"], ["on"])], limit="three", constants=three), 3)


def test_a_condition_that_is_false_before_the_first_run() -> None:
    assert_of_length(recurrent([MAKE("Less", ["after", "few"], ["on"])], goes_on="false", constants=FEW), 0)


def test_a_condition_on_this_iteration_and_the_previous_one() -> None:
    condition = [
        MAKE("Mul", ["run", "run"], ["square"]),
        MAKE("Less", ["square", "few"], ["small"]),
        MAKE("And", ["small", "go"], ["on"]),
    ]
    assert_of_length(recurrent(condition, goes_on="true", constants=FEW), 3)


def test_counts_that_start_from_the_same_value() -> None:
    """The LSTM of TensorFlow Lite counts time and iterations, both from one constant."""
    body = helper.make_graph(
        [
            MAKE("Add", ["i", "one"], ["i1"]),
            MAKE("Add", ["j", "one"], ["j1"]),
            MAKE("Less", ["i1", "few"], ["a"]),
            MAKE("Less", ["j1", "more"], ["b"]),
            MAKE("And", ["a", "b"], ["on"]),
            MAKE("Tanh", ["h"], ["next"]),
            MAKE("Identity", ["next"], ["step"]),
        ],
        "body",
        [
            INFO("run", INT, ()),
            INFO("go", BOOL, ()),
            INFO("i", INT, ()),
            INFO("j", INT, ()),
            INFO("h", FLOAT, (WIDTH,)),
        ],
        [
            INFO("on", BOOL, ()),
            *(INFO(name, INT, ()) for name in ("i1", "j1")),
            *(INFO(name, FLOAT, (WIDTH,)) for name in ("next", "step")),
        ],
        [numpy_helper.from_array(np.array(1), "one"), numpy_helper.from_array(np.array(6), "more")],
    )
    nodes = [
        MAKE("ReduceSum", ["x", "rows"], ["h0"], keepdims=0),
        MAKE("Loop", ["far", "true", "zero", "zero", "h0"], ["i2", "j2", "y", "steps"], "loop", body=body),
    ]
    constants = {**FEW, "far": np.array(2**63 - 1), "zero": np.array(0), "rows": np.array([0])}
    assert_of_length(model_of(nodes, {"x": (STEPS, WIDTH)}, ["y", "steps"], constants), 4)


@pytest.mark.parametrize(("most", "length"), [(3, None), (4, 4)])
def test_loops_with_too_many_iterations_stay(most: int, length: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit does not depend on the machine. Endless loops, and limits beyond it, take no longer to reject."""
    monkeypatch.setattr(loops, "MAX_ITERATIONS", most)
    far = {**FEW, "far": np.array(1 << 40)}
    for limit in ("", "far"):
        node = loop_of(load_model(recurrent([MAKE("Less", ["after", "few"], ["on"])], limit=limit, constants=far)))
        assert node.inputs[0] == limit if length is None else node.inputs[0] not in ("", "far")
    endless = recurrent([MAKE("Less", ["none", "run"], ["on"])], start=0, constants=FEW)
    assert loop_of(load_model(endless)).inputs[0] != ""  # 0 < 0 is false: it runs once
    endless = recurrent([MAKE("LessOrEqual", ["none", "run"], ["on"])], constants=FEW)
    assert loop_of(load_model(endless)).inputs[0] == ""


@pytest.mark.parametrize(
    "condition",
    [
        [MAKE("Less", ["after", "asked"], ["on"])],
        [MAKE("ReduceSum", ["next"], ["total"], keepdims=0), MAKE("Less", ["total", "high"], ["on"])],
    ],
    ids=["a limit that is an input", "a sum of what it computes"],
)
def test_a_data_dependent_condition_stays(condition: list[onnx.NodeProto]) -> None:
    model = recurrent(condition, constants={"high": np.array(1.5, np.float32)}, inputs={"asked": ()})
    model.graph.input[1].type.tensor_type.elem_type = INT
    graph = load_model(model)
    node = loop_of(graph)
    assert node.inputs[:2] == ("", "")
    assert graph.value("steps").shape is None
    feeds = {"x": np.full((STEPS, WIDTH), 0.4, np.float32), "asked": np.array(2)}
    wanted, found = run_plain(model, feeds), run_graph(graph, feeds)
    assert 1 < len(wanted["steps"]) < STEPS
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def until_large(cell: list[onnx.NodeProto], carried: dict[str, tuple[str, tuple[str | int, ...]]]) -> onnx.ModelProto:
    """Nodes repeated until the sum of "next" is large; `carried` has, by input of the body, the output that carries it
    on, and its declared shape. All start as x."""
    body = helper.make_graph(
        [*cell, MAKE("ReduceSum", ["next"], ["total"], keepdims=0), MAKE("Less", ["total", "large"], ["on"])],
        "body",
        [INFO("run", INT, ()), INFO("go", BOOL, ()), *(INFO(name, FLOAT, carried[name][1]) for name in carried)],
        [INFO("on", BOOL, ()), *(INFO(new, FLOAT, shape) for new, shape in carried.values())],
        [numpy_helper.from_array(np.float32(50), "large")],
    )
    results = [f"last_{name}" for name in carried]
    loop = MAKE("Loop", ["", "", *["x"] * len(carried)], results, "loop", body=body)
    heads = [MAKE("Tanh", [name], [f"{name}_out"]) for name in results]
    return model_of([loop, *heads], {"x": (STEPS, WIDTH)}, [f"{name}_out" for name in results], {})


GROW = MAKE("Add", ["h", "h"], ["next"])
ANY: tuple[str | int, ...] = ("rows", WIDTH)


def assert_shapes(model: onnx.ModelProto, wanted: dict[str, tuple[int, ...] | None]) -> None:
    graph = load_model(model)
    assert loop_of(graph).inputs[0] == ""
    assert {name: graph.value(name).shape for name in wanted} == wanted
    x = np.linspace(0.1, 1, STEPS * WIDTH, dtype=np.float32).reshape(STEPS, WIDTH)
    for name, array in run_plain(model, {"x": x}).items():
        shape = wanted[name.removesuffix("_out")]
        assert shape is None or array.shape == shape
        np.testing.assert_array_equal(run_graph(graph, {"x": x})[name], array)


def test_what_a_loop_keeps_the_shape_of_has_that_shape_if_data_decide_when_it_ends() -> None:
    assert_shapes(until_large([GROW], {"h": ("next", ANY)}), {"last_h": (STEPS, WIDTH)})


def test_what_grows_from_one_iteration_to_the_next_has_no_static_shape() -> None:
    cell = [GROW, MAKE("Concat", ["kept", "kept"], ["twice"], axis=0)]
    carried = {"h": ("next", ANY), "kept": ("twice", ANY)}
    assert_shapes(until_large(cell, carried), {"last_h": (STEPS, WIDTH), "last_kept": None})


def test_what_takes_the_shape_of_something_that_grows_grows() -> None:
    """One iteration keeps the second shape; only the next one shows that it changes."""
    cell = [GROW, MAKE("Concat", ["kept", "kept"], ["twice"], axis=0), MAKE("Identity", ["kept"], ["behind"])]
    carried = {"h": ("next", ANY), "kept": ("twice", ANY), "late": ("behind", ANY)}
    assert_shapes(until_large(cell, carried), {"last_h": (STEPS, WIDTH), "last_kept": None, "last_late": None})


def test_what_a_loop_carries_has_to_be_given_at_first() -> None:
    cell = [GROW, MAKE("Identity", ["kept"], ["still"])]
    model = with_ranks(until_large(cell, {"h": ("next", ANY), "kept": ("still", ANY)}), 2, 2)
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    loop.input[2] = ""
    with pytest.raises(ModelError, match=r"Loop.*Input 2"):
        load_model(model)

"""Subgraphs: carried opaquely, with the outer values that they read kept alive as inputs of their node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pimflow.errors import ModelError
from pimflow.frontend import inference, load_model
from pimflow.ir import Array, GraphEditor, Node, OnnxOp
from pimflow.ir.verify import verify_graph
from pimflow.onnxio import to_onnx
from pimflow.onnxio.captures import capture_count
from pimflow.runtime.execute.ort import NodeKernels, run_graph
from support.onnx_models import model_of, run_plain, single, with_ranks
from support.passes import folded, kinds

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
INFO = helper.make_tensor_value_info


def branch(
    name: str, nodes: Sequence[onnx.NodeProto], output: str, initializers: Sequence[onnx.TensorProto] = ()
) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [INFO(output, 1, None)], list(initializers))


def if_model(condition_input: bool = True) -> onnx.ModelProto:
    """y = Relu(x) + c if p else (Relu(x) * w), with c from outside and w an initialiser of the branch."""
    w = numpy_helper.from_array(np.full((2, 3), 3, np.float32), "w")
    then = branch("then", [helper.make_node("Add", ["r", "c"], ["a"])], "a")
    other = branch("else", [helper.make_node("Mul", ["r", "w"], ["m"])], "m", [w])
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("If", ["p"], ["v"], then_branch=then, else_branch=other),
        helper.make_node("Neg", ["v"], ["y"]),
    ]
    constants = {"c": np.arange(3, dtype=np.float32)}
    if not condition_input:
        constants["p"] = np.array(False)
    model = model_of(nodes, {"x": (2, 3), **({"p": ()} if condition_input else {})}, ["y"], constants)
    if condition_input:
        model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    return model


@pytest.mark.parametrize("p", [True, False])
def test_if_keeps_what_its_branches_read(p: bool) -> None:
    model = if_model()
    graph = load_model(model)
    node = next(node for node in graph.nodes if node.kind == "If")
    assert node.inputs == ("p", "r", "c")
    assert capture_count(node) == 2
    assert graph.shape("v") == (2, 3)
    inputs = {"x": X, "p": np.array(p)}
    want = run_plain(model, inputs)["y"]
    np.testing.assert_array_equal(run_graph(graph, inputs)["y"], want)
    onnx.checker.check_model(to_onnx(graph), full_check=True)
    np.testing.assert_array_equal(run_plain(to_onnx(graph), inputs)["y"], want)
    again = load_model(to_onnx(graph))
    assert again.nodes == graph.nodes


@pytest.mark.parametrize("p", [True, False])
def test_a_rename_reaches_into_the_branches(p: bool) -> None:
    """As a pass does it: the captured value gets another producer with another name, and dead code is removed."""
    graph = load_model(if_model())
    edit = GraphEditor(graph)
    name = edit.new_value("a", (2, 3), "float32")  # a name that a branch uses for its own value
    relu = next(node for node in graph.nodes if node.kind == "Relu")
    edit.replace_node(relu.name, [replace(relu, outputs=(name,))])
    edit.rename_uses("r", name)
    renamed = edit.finish()
    verify_graph(renamed)
    inputs = {"x": X, "p": np.array(p)}
    assert "r" not in renamed.values
    np.testing.assert_array_equal(run_graph(renamed, inputs)["y"], run_graph(graph, inputs)["y"])
    onnx.checker.check_model(to_onnx(renamed), full_check=True)


def test_if_with_a_constant_condition_is_opened() -> None:
    model = if_model(condition_input=False)
    graph = load_model(model)
    assert [node.kind for node in graph.nodes] == ["Relu", "Mul", "Identity", "Neg"]
    np.testing.assert_array_equal(run_graph(graph, {"x": X})["y"], run_plain(model, {"x": X})["y"])


def loop_model() -> onnx.ModelProto:
    """Nested: a Loop whose body contains an If; both read outer values, the If through two levels."""
    inner_then = branch("t", [helper.make_node("Add", ["carried", "c"], ["t1"])], "t1")
    inner_else = branch("e", [helper.make_node("Sub", ["carried", "r"], ["e1"])], "e1")
    body = helper.make_graph(
        [
            helper.make_node("Greater", ["step", "one"], ["late"]),
            helper.make_node("If", ["late"], ["next"], then_branch=inner_then, else_branch=inner_else),
            helper.make_node("Identity", ["cond"], ["go"]),
            helper.make_node("Mul", ["next", "c"], ["scan"]),
        ],
        "body",
        [INFO("step", 7, ()), INFO("cond", 9, ()), INFO("carried", 1, (2, 3))],
        [INFO("go", 9, ()), INFO("next", 1, (2, 3)), INFO("scan", 1, (2, 3))],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Loop", ["trips", "", "x"], ["y", "all"], body=body),
    ]
    constants: dict[str, Array] = {
        "c": np.arange(3, dtype=np.float32),
        "one": np.array(1, np.int64),
        "trips": np.array(4, np.int64),
    }
    return model_of(nodes, {"x": (2, 3)}, ["y", "all"], constants)


def test_nested_subgraphs() -> None:
    model = loop_model()
    graph = load_model(model)
    node = next(node for node in graph.nodes if node.kind == "Loop")
    assert node.inputs[:3] == ("trips", "", "x")
    assert set(node.inputs[3:]) == {"c", "r", "one"}
    want = run_plain(model, {"x": X})
    got = run_graph(graph, {"x": X})
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
        assert graph.shape(name) == array.shape, "a loop of constant length has static shapes"
    assert np.ptp(want["y"]) > 0
    onnx.checker.check_model(to_onnx(graph), full_check=True)
    assert load_model(to_onnx(graph)).nodes == graph.nodes


def test_kernels_run_nodes_with_subgraphs() -> None:
    graph = load_model(loop_model())
    node = next(node for node in graph.nodes if node.kind == "Loop")
    relu = np.maximum(X, 0)
    arrays = [{"x": X, "r": relu}.get(name) for name in node.inputs]
    want = run_graph(graph, {"x": X})
    for name, array in zip(node.outputs, NodeKernels(graph).run(node, arrays), strict=True):
        np.testing.assert_array_equal(array, want[name])


def test_local_functions_are_inlined() -> None:
    function = helper.make_function(
        "mine",
        "Scaled",
        ["a", "b"],
        ["o"],
        [helper.make_node("Mul", ["a", "b"], ["t"]), helper.make_node("Relu", ["t"], ["o"])],
        [helper.make_opsetid("", 17)],
    )
    nodes = [
        helper.make_node("Scaled", ["x", "c"], ["s"], domain="mine"),
        helper.make_node("Scaled", ["s", "s"], ["y"], domain="mine"),
    ]
    model = model_of(nodes, {"x": (2, 3)}, ["y"], {"c": np.arange(3, dtype=np.float32)}, domains={"mine": 1})
    model.ir_version = 8
    model.functions.append(function)
    graph = load_model(model)
    assert [node.kind for node in graph.nodes] == ["Mul", "Relu", "Mul", "Relu"]
    assert len({node.name for node in graph.nodes}) == 4
    np.testing.assert_array_equal(run_graph(graph, {"x": X})["y"], run_plain(model, {"x": X})["y"])


def test_operators_outside_the_standard() -> None:
    """A contrib operator of ONNX Runtime, which determines both its shape and its values."""
    nodes = [
        helper.make_node("TransposeMatMul", ["x", "w"], ["m"], domain="com.microsoft", alpha=0.5, transB=1),
        helper.make_node("FastGelu", ["m"], ["g"], domain="com.microsoft"),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    w = np.arange(12, dtype=np.float32).reshape(4, 3) - 6
    model = model_of(nodes, {"x": (2, 3)}, ["y"], {"w": w}, domains={"com.microsoft": 1})
    graph = load_model(model)
    assert graph.shape("m") == graph.shape("g") == graph.shape("y") == (2, 4)
    assert isinstance(graph.nodes[0].op, OnnxOp)
    np.testing.assert_array_equal(run_graph(graph, {"x": X})["y"], run_plain(model, {"x": X})["y"])


def test_unnamed_nodes_get_unique_names() -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"], name="n"),
        helper.make_node("Abs", ["x"], ["z"], name="Abs_0"),
    ]
    model = model_of(nodes, {"x": (2, 3)}, ["y", "z"])
    graph = load_model(model)
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == 4
    assert {"n", "Abs_0"} <= set(names)
    onnx.checker.check_model(to_onnx(graph))
    np.testing.assert_array_equal(run_graph(graph, {"x": X})["y"], -np.abs(X))


def test_order_is_restored() -> None:
    nodes = [helper.make_node("Neg", ["b"], ["y"]), helper.make_node("Relu", ["x"], ["b"])]
    model = model_of(nodes, {"x": (2, 3)})
    assert [node.kind for node in load_model(model).nodes] == ["Relu", "Neg"]


def test_odd_graph_outputs() -> None:
    """Outputs that are constants (stored or folded), an input itself, or also read by another node."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Add", ["r", "c"], ["y"]),
    ]
    model = model_of(nodes, {"x": (2, 3)}, ["y", "r", "s", "c", "x"], {"c": np.arange(3, dtype=np.float32)})
    model.graph.output[2].type.tensor_type.elem_type = onnx.TensorProto.INT64
    graph = load_model(model)
    verify_graph(graph)
    want, got = run_plain(model, {"x": X}), run_graph(graph, {"x": X})
    assert list(got) == ["y", "r", "s", "c", "x"]
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
    for name, array in run_plain(to_onnx(graph), {"x": X}).items():
        np.testing.assert_array_equal(array, want[name])


def test_sparse_initialiser_and_constants_of_every_spelling() -> None:
    values = numpy_helper.from_array(np.array([2, 5], np.float32), "w")
    indices = numpy_helper.from_array(np.array([[0, 1], [2, 0]], np.int64), "w_indices")
    nodes = [
        helper.make_node("Constant", [], ["a"], value_float=2.0),
        helper.make_node("Constant", [], ["b"], value_floats=[1.0, 2.0]),
        helper.make_node("Constant", [], ["i"], value_ints=[1, 2]),
        helper.make_node("Reshape", ["b", "i"], ["c"]),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Mul", ["m", "a"], ["n"]),
        helper.make_node("Add", ["n", "c"], ["y"]),
    ]
    model = model_of(nodes, {"x": (2, 3)}, ["y"])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 2]))
    graph = folded(load_model(model))
    np.testing.assert_array_equal(graph.constants["w"], [[0, 2], [0, 0], [5, 0]])
    assert kinds(graph) == ["MatMul", "Mul", "Add"]
    np.testing.assert_array_equal(run_graph(graph, {"x": X})["y"], run_plain(model, {"x": X})["y"])


def test_annotations_travel_only_when_asked_for() -> None:
    graph = load_model(model_of([helper.make_node("Relu", ["x"], ["y"], name="r")], {"x": (2, 3)}))
    (node,) = graph.nodes
    marked = graph.replace(nodes=[node.placed(device="pim", choice="newton++", region=3)])
    model = to_onnx(marked)
    entries = {entry.key: entry.value for entry in model.graph.node[0].metadata_props}
    assert entries == {"pimflow.device": "pim", "pimflow.choice": "newton++", "pimflow.region": "3"}
    assert load_model(model).nodes == (Node(node.op, ("x",), ("y",), "r"),)
    assert load_model(model, annotations=True).nodes == marked.nodes


def beside_relu(kind: str, sizes: Array) -> onnx.ModelProto:
    """y = Relu(x), and a value computed from constants alone."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node(kind, ["sizes"], ["z"])]
    model = model_of(nodes, {"x": (2, 3)}, constants={"sizes": sizes})
    model.graph.output.append(helper.make_empty_tensor_value_info("z"))
    model.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model


@pytest.mark.parametrize(
    "model",
    [
        single("Relu", (1 << 62, 3)),
        single("Conv", (1, 1, 4, 4), [np.ones((1, 1, 3, 3), np.float32)], pads=[1 << 40] * 4),
        beside_relu("ConstantOfShape", np.array([1 << 31, 1 << 31])),
        beside_relu("ConstantOfShape", np.array([1 << 33, 1 << 33])),
        beside_relu("ConstantOfShape", np.array([0, 1 << 62, 1 << 62])),
        beside_relu("ConstantOfShape", np.ones(33, np.int64)),
    ],
    ids=["input", "pads", "constant", "constant beyond 64 bits", "no elements", "dims"],
)
def test_sizes_that_no_machine_holds_are_refused(model: onnx.ModelProto) -> None:
    with pytest.raises(ModelError, match=r"; the limits are 1\.1e\+12 elements and 32 dims"):
        load_model(model)


def test_pads_beyond_64_bits_are_refused() -> None:
    """From version 1.32 on, ONNX Runtime itself refuses them."""
    model = single("Conv", (1, 1, 4, 4), [np.ones((1, 1, 3, 3), np.float32)], pads=[1 << 62] * 4)
    with pytest.raises(ModelError, match=r"; the limits are 1\.1e\+12 elements and 32 dims|Integer overflow"):
        load_model(model)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (np.array([2, -1]), r"ConstantOfShape takes a list of sizes, not int64\[2\] \[2, -1\]"),
        (np.array([[2, 2]]), "takes a list of sizes"),
        (np.array([2.0]), "takes a list of sizes"),
    ],
)
def test_invalid_sizes_are_refused(sizes: Array, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load_model(with_ranks(beside_relu("ConstantOfShape", sizes), 2, 2))


def test_a_fill_of_more_than_one_element_is_refused() -> None:
    model = beside_relu("ConstantOfShape", np.array([2]))
    fill = helper.make_tensor("fill", onnx.TensorProto.FLOAT, (2,), [1, 2])
    model.graph.node[1].attribute.append(helper.make_attribute("value", fill))
    with pytest.raises(ModelError, match="fills with one element, not 2"):
        load_model(with_ranks(model, 2, 1))


def test_a_constant_has_one_attribute() -> None:
    node = helper.make_node("Constant", [], ["c"], value_int=3)
    assert load_model(model_of([node], {}, ["c"], dtype=onnx.TensorProto.INT64)).nodes
    node.attribute.append(helper.make_attribute("value_float", 1.0))
    for count in (2, 0):
        del node.attribute[count:]
        with pytest.raises(ModelError, match=f"a Constant has one attribute, not {count}"):
            load_model(with_ranks(model_of([node], {}, ["c"], dtype=onnx.TensorProto.INT64), 1))


def counted_loop(trips: int) -> onnx.ModelProto:
    """A Loop without a condition, whose body doubles a captured value."""
    info, kinds = helper.make_tensor_value_info, onnx.TensorProto
    nodes = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["x", "x"], ["s"])]
    inputs = [info("i", kinds.INT64, []), info("go", kinds.BOOL, [])]
    body = helper.make_graph(nodes, "body", inputs, [info("on", kinds.BOOL, []), info("s", kinds.FLOAT, [2])])
    loop = helper.make_node("Loop", ["trips", ""], ["y"], "loop", body=body)
    return model_of([loop], {"x": (2,)}, constants={"trips": np.array(trips)})


def test_a_loop_without_a_condition() -> None:
    model, x = counted_loop(3), np.array([1, 2], np.float32)
    graph = load_model(model)
    assert graph.value("y").shape == (3, 2)
    np.testing.assert_array_equal(run_graph(graph, {"x": x})["y"], run_plain(model, {"x": x})["y"])
    assert load_model(to_onnx(graph)).value("y").shape == (3, 2)


def test_a_loop_with_very_many_iterations_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "TRIAL_S", 0.1)
    assert load_model(counted_loop(10**9)).value("y").shape is None


def test_a_node_without_outputs_is_removed() -> None:
    weights = {"w": np.zeros((1, 12, 3), np.float32), "r": np.zeros((1, 12, 4), np.float32)}
    nodes = [helper.make_node("GRU", ["x", "w", "r"], [], hidden_size=4), helper.make_node("Relu", ["x"], ["y"])]
    assert [node.kind for node in load_model(model_of(nodes, {"x": (5, 2, 3)}, constants=weights)).nodes] == ["Relu"]


@pytest.mark.parametrize("attribute", [False, True])
@pytest.mark.parametrize(
    ("values", "dims", "words"),
    [(np.ones(2, np.float32), [10**12], "takes 3.6 TiB"), (np.array(["a", "b"], object), [4], "holds strings")],
    ids=["huge", "texts"],
)
def test_sparse_tensors_that_cannot_be_arrays(values: Array, dims: list[int], words: str, attribute: bool) -> None:
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(np.array([0, 1]), "i"), dims
    )
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": (4,)})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [4]))
    if attribute:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    else:
        model.graph.sparse_initializer.append(sparse)
    with pytest.raises(ModelError, match=words):
        load_model(model)


@pytest.mark.parametrize(
    "model",
    [
        single("Clip", (2, 3), [np.array("a", object)]),
        single("Pad", (2, 3), [np.array(["a"] * 4, object)]),
    ],
    ids=["bound", "widths"],
)
def test_texts_that_no_kernel_accepts(model: onnx.ModelProto) -> None:
    with pytest.raises(ModelError, match=r"Type 'tensor\(string\)' of input parameter"):
        load_model(with_ranks(model, 2))


def test_a_pad_with_an_empty_fill_stays_an_onnx_op() -> None:
    (node,) = load_model(single("Pad", (2, 3), [np.ones(4, np.int64), np.zeros(0, np.float32)])).nodes
    assert isinstance(node.op, OnnxOp)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("results", "inputs"), [((), ()), (("a", "b"), ()), (("a",), (INFO("q", 1, [2]),))])
def test_a_branch_that_does_not_fit_its_if(
    results: tuple[str, ...], inputs: tuple[onnx.ValueInfoProto, ...], known: bool
) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["q" if inputs else "x"], [name]) for name in results],
        "body",
        inputs,
        [INFO(name, 1, [2]) for name in results],
    )
    choice = helper.make_node("If", ["p"], ["y"], "choice", then_branch=body, else_branch=body)
    model = with_ranks(model_of([choice], {"x": (2,)}, constants={"p": np.array(True)}), 1)
    if not known:
        del model.graph.initializer[:]
        model.graph.input.append(INFO("p", onnx.TensorProto.BOOL, []))
    with pytest.raises(ModelError, match=rf"branch has {len(inputs)} inputs? and {len(results)}" if known else "If"):
        load_model(model)


def test_a_value_without_a_producer() -> None:
    """ONNX's checker does not check that a function makes the values that it returns."""
    opsets = [helper.make_opsetid("", 17)]
    made = helper.make_function("d", "f", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["t"])], opsets)
    nodes = [helper.make_node("f", ["x"], ["lost"], domain="d"), helper.make_node("Abs", ["lost"], ["y"], "reader")]
    model = with_ranks(model_of(nodes, {"x": (2,)}, domains={"d": 1}), 1)
    model.ir_version = 10
    model.functions.append(made)
    with pytest.raises(ModelError, match=r"node 'reader' \(Abs\) reads 'lost', but no node makes it"):
        load_model(model)

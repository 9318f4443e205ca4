"""Training steps of whole models: gradients against differences in float64, the set of parameters, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import pimflow_zoo
from pimflow.bundle.source import model_source
from pimflow.compiled.original import read_model
from pimflow.errors import ModelError, OptionError
from pimflow.frontend import load_model
from pimflow.ir import Array, Builder, Gemm, Graph, MatMul, OnnxOp
from pimflow.ir.verify import verify_graph
from pimflow.options import Options
from pimflow.passes import FoldConstants, PassManager, RemoveDeadCode, RemoveIdentity
from pimflow.passes.differentiate import Differentiate, Loss, Optimiser, training_step
from pimflow.passes.parameters import parameters
from pimflow.runtime.execute.ort import random_inputs
from support.gradients import check_gradients, doubled, evaluator, with_inputs
from support.onnx_models import model_of
from support.values import run_in_ort

DATA = Path(__file__).parent.parent / "data"
MODELS = [
    *(f"exported/{name}" for name in ("densenet", "efficientnet", "half", "many-outputs", "regnet")),
    *(f"exported/{name}" for name in ("mobilenet-v3", "series", "shared-weights", "vit")),
    *(f"gnn/{name}" for name in ("gcn-static-ts", "sage-mean-static-dynamo")),
]
TIDY = PassManager((RemoveDeadCode(), FoldConstants(), RemoveIdentity(), RemoveDeadCode()))
STEP = 1e-7


def tidy(source: str) -> Graph:
    loaded = read_model(model_source(source), Options.of(shapes={"N": 2} if "shared" in source else None))
    return TIDY.run(loaded.graph).graph


def check_parameters(graph: Graph, loss: Loss = "sum", frozen: bool = False) -> None:
    """Assert that the gradients of all parameters, along a random direction, equal the loss's difference, in
    float64."""
    graph = doubled(graph)
    step = training_step(graph, Differentiate(loss=loss, frozen_statistics=frozen))
    verify_graph(step.graph)
    inputs = random_inputs(step.graph, 0)
    rng = np.random.default_rng(1)
    directions = {name: np.asarray(rng.standard_normal(graph.shape(name))) for name in step.gradients}
    made = evaluator(step.graph)(inputs)
    actual = sum(float((made[gradient] * directions[name]).sum()) for name, gradient in step.gradients.items())
    forward = RemoveDeadCode().run(step.graph.replace(outputs=(step.loss,))).graph
    sides = []
    for sign in (STEP, -STEP):
        moved: dict[str, Array] = {
            name: np.asarray(graph.constants[name].astype(np.float64) + sign * along)
            for name, along in directions.items()
        }
        sides.append(float(evaluator(forward.replace(constants={**forward.constants, **moved}))(inputs)[step.loss]))
    expected = (sides[0] - sides[1]) / (2 * STEP)
    assert actual == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_exported_models(name: str) -> None:
    check_parameters(tidy(str(DATA / f"{name}.onnx")))


@pytest.mark.parametrize("frozen", [False, True])
def test_statistics_of_the_batch_or_of_the_model(frozen: bool) -> None:
    check_parameters(tidy(str(DATA / "exported" / "densenet.onnx")), frozen=frozen)


@pytest.mark.parametrize("loss", ["sum", "mean-squared", "cross-entropy"])
def test_losses(loss: Loss) -> None:
    check_parameters(classifier(), loss)


def classifier(opset: int = 17) -> Graph:
    build = Builder("classifier", opset=opset)
    x = build.relu(build.gemm(build.input(6, 5), 7, (7,)))
    return build.graph(build.gemm(x, 3, (3,)))


def test_the_cross_entropy_is_that_of_its_definition() -> None:
    graph = classifier()
    step = training_step(graph, Differentiate(loss="cross-entropy")).graph
    logits_name = graph.outputs[0]
    inputs = random_inputs(graph, 0)
    classes = np.array([0, 2, 1, 1, 0, 2])
    logits = run_in_ort(graph, inputs)[logits_name].astype(np.float64)
    expected = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(6), classes])
    made = run_in_ort(step, {**inputs, f"{logits_name}.target": classes})
    assert float(made["loss"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_optimisers_lower_the_loss(optimiser: Optimiser) -> None:
    """Over ten steps, each with the parameters and state of the previous one."""
    graph = classifier()
    step = training_step(graph, Differentiate(loss="cross-entropy", optimiser=optimiser)).graph
    given: dict[str, Array] = {**random_inputs(graph, 0), step.inputs[1]: np.array([0, 2, 1, 1, 0, 2])}
    given |= {name: np.zeros(step.shape(name), np.float32) for name in step.inputs if name not in given}
    losses = []
    for _ in range(10):
        made = run_in_ort(step, given)
        losses.append(float(made["loss"]))
        new = {name.removesuffix(".next"): array for name, array in made.items() if name.endswith(".next")}
        given |= {name: array for name, array in new.items() if name in given}
        step = step.replace(constants={**step.constants, **{name: new[name] for name in parameters(graph)}})
    assert losses == sorted(losses, reverse=True)


def test_the_parameters_of_the_zoo_match_its_counts() -> None:
    """Except for tables of positions, of which the model holds only the part that it reads."""
    for name in ("toy", "squeezenet-1.1", "mobilenet-v3-small", "gat"):
        graph = tidy(f"zoo:{name}")
        counted = sum(graph.value(constant).elements for constant in parameters(graph))
        assert counted == pimflow_zoo.entry(name).parameters


def test_masks_and_scalars_are_not_parameters() -> None:
    build = Builder()
    x = build.matmul(build.input(2, 4), 4)
    mask = build.constant(np.triu(np.full((2, 4), -3.4e38, np.float32)), "mask")
    scale = build.constant(np.float32(0.5).reshape(()), "scale")
    shift = build.weights(4, name="shift")
    graph = build.graph(build.add(build.add(build.mul(x, scale), mask), shift))
    assert parameters(graph) == ("weights", "shift")


def test_weights_slopes_and_biases_of_one_element_are_parameters() -> None:
    """What PyTorch's exporter makes of Linear(4, 1) on vectors and on rows of vectors, PReLU() and BatchNorm2d(1)."""
    graph = load_model(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        heads (float[2, 1, 3, 4] x) => (float[2, 1, 3, 1] y, float[6, 1] z)
        <float[1, 1, 1, 1] kernel = {0.5}, float[1] scale = {1}, float[1] shift = {0}, float[1] mean = {0.3},
         float[1] variance = {2}, float[1, 1, 1] slope = {0.25}, float[4, 1] w = {1, 2, -3, 4}, float[1] b = {0.1},
         float[1, 4] v = {1, -2, 3, 0.4}, float[1] c = {0.2}, float[1] factor = {3}, float[1] tiny = {1e-5},
         int64[2] rows = {6, 4}>
        {
            kept = Conv (x, kernel)
            norm = BatchNormalization (kept, scale, shift, mean, variance)
            bent = PRelu (norm, slope)
            scaled = Mul (bent, factor)
            moved = Add (scaled, tiny)
            product = MatMul (moved, w)
            y = Add (b, product)
            flat = Reshape (moved, rows)
            z = Gemm <transB: int = 1> (flat, v, c)
        }""")
    )
    expected = ("kernel", "scale", "shift", "slope", "w", "b", "v", "c")
    assert parameters(graph) == expected
    check_parameters(graph)


def test_one_element_that_fills_an_operand_is_not_a_parameter() -> None:
    """A constant that an exporter fills with a number is no weight, however it is read."""
    build = Builder("g", opset=18)
    x = build.matmul(build.input(3, 4), 5)
    number, sizes = build.constant(np.full(1, 0.2, np.float32), "number"), build.constant(np.array([5, 2]), "sizes")
    (filled,) = build.node(OnnxOp("Expand"), (number, sizes), [((5, 2), "float32")])
    graph = build.graph(build.op(MatMul(), x, filled))
    assert parameters(graph) == parameters(TIDY.run(graph).graph, graph) == ("weights",)


def test_small_masks_are_not_parameters() -> None:
    """Masks are added to scores (Swin), multiplied (GPT-2), or folded from two. Zeros and identities are trained."""
    build = Builder()
    lower = np.tril(np.ones((3, 3), np.float32))
    x = build.matmul(build.input(2, 3, 3), 3)
    beyond = build.constant(np.broadcast_to(-100 * (1 - lower), (2, 3, 3)), "beyond")
    x = build.add(build.mul(x, build.constant(lower, "causal")), beyond)
    left_out = build.add(build.constant(-100 * lower, "padded"), build.constant(-50 * lower.T, "ahead"))
    shifted = build.add(build.add(x, left_out), build.constant(np.zeros(3, np.float32), "shift"))
    graph = build.graph(build.op(MatMul(), shifted, build.constant(np.eye(3, dtype=np.float32), "identity")))
    assert parameters(TIDY.run(graph).graph, graph) == ("weights", "shift", "identity")


def test_zeros_of_the_size_of_a_result_are_not_a_parameter() -> None:
    """The initial sum of a loop over relations in the second layer: its rows depend on the first layer's result."""
    build = Builder("g", opset=18)
    x = build.matmul(build.input(3, 4), 5)
    (sizes,) = build.node(OnnxOp("Shape"), (x,), [((2,), "int64")])
    (total,) = build.node(OnnxOp("ConstantOfShape"), (sizes,), [((3, 5), "float32")])
    graph = build.graph(build.add(total, x))
    assert parameters(TIDY.run(graph).graph, graph) == ("weights",)


def test_a_weight_that_is_read_twice_has_one_gradient() -> None:
    build = Builder()
    x = build.input(2, 4)
    w = build.weights(4, 4)
    graph = build.graph(build.op(Gemm(), build.tanh(build.op(Gemm(), x, w)), w))
    assert len(training_step(graph, Differentiate()).gradients) == 1
    check_parameters(graph)


def test_gradients_that_are_the_same_value_are_two_outputs() -> None:
    build = Builder()
    x = build.input(2, 4)
    a, b = build.weights(2, 4, name="a"), build.weights(2, 4, name="b")
    graph = build.graph(build.add(build.add(x, a), b))
    step = training_step(graph, Differentiate())
    assert step.graph.outputs == ("loss", "a.gradient", "b.gradient")
    check_parameters(graph)


def test_parameters_without_effect_on_the_loss_have_zero_gradients() -> None:
    build = Builder()
    x = build.input(2, 4)
    build.matmul(x, 3, name="unread")
    graph = build.graph(build.matmul(x, 5))
    made = run_in_ort(
        training_step(graph, Differentiate(wrt=("weights", "weights_1"))).graph,
        {"x": np.ones((2, 4), np.float32), f"{graph.outputs[0]}.gradient": np.ones((2, 5), np.float32)},
    )
    assert not made["weights.gradient"].any()
    assert made["weights_1.gradient"].all()


def test_parameters_of_doubles_are_trained() -> None:
    """No unit multiplies doubles, so products and norms of them stay ONNX's operators."""
    model = load_model(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        doubles (double[3, 4] x) => (double[3, 2] y)
        <double[2, 4] w = {1, 2, -3, 4, 0.5, -0.6, 0.7, 0.8}, double[2] b = {0.1, 0.2},
         double[2, 2] v = {1, -2, 3, 0.4}, double[2] scale = {1, 1}, double[2] shift = {0, 0},
         double[2] mean = {0.3, 0.4}, double[2] variance = {1, 2}>
        {
            first = Gemm <alpha: float = 0.5, beta: float = 2.0, transB: int = 1> (x, w, b)
            norm = BatchNormalization (first, scale, shift, mean, variance)
            y = MatMul (norm, v)
        }""")
    )
    assert all(isinstance(node.op, OnnxOp) for node in model.nodes)
    assert parameters(model) == ("w", "b", "scale", "shift", "v")
    check_gradients(with_inputs(model))
    check_gradients(with_inputs(model), frozen_statistics=True)


def test_an_operator_without_a_gradient_is_named() -> None:
    build = Builder()
    x = build.matmul(build.input(2, 4), 4, name="first")
    graph = build.graph(build.matmul(build.onnx("Hardmax", x, name="winner"), 3))
    with pytest.raises(ModelError, match=r"'winner' has no gradient: Hardmax has no gradient rule"):
        training_step(graph, Differentiate())
    assert training_step(graph, Differentiate(wrt=("weights_1",))).gradients == {"weights_1": "weights_1.gradient"}


def test_axes_that_are_computed_from_constants_have_to_be_folded_first() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Neg", ["one"], ["axes"]),
        helper.make_node("ReduceSum", ["product", "axes"], ["y"], "sum"),
    ]
    constants: dict[str, Array] = {"w": np.eye(4, 3, dtype=np.float32), "one": np.array([1])}
    graph = load_model(model_of(nodes, {"x": (2, 4)}, constants=constants, opset=13))
    with pytest.raises(ModelError, match="its axes are computed; run fold-constants first"):
        training_step(graph, Differentiate())
    folded = PassManager((FoldConstants(),)).run(graph).graph
    assert training_step(folded, Differentiate()).gradients == {"w": "w.gradient"}


def test_weights_read_by_a_body_are_parameters() -> None:
    """A row of a table in every iteration of a Loop, as EmbeddingBag is exported: nothing before it is learnt."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "run"], ["row"]),
            helper.make_node("Mul", ["row", "mask"], ["kept"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("run", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("kept", TensorProto.FLOAT, (4,)),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["runs", ""], ["rows"], "loop", body=body),
        helper.make_node("MatMul", ["rows", "weights"], ["made"]),
        helper.make_node("Add", ["made", "x"], ["y"]),
    ]
    random = np.random.default_rng(0)
    table, weights = (random.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    constants = {"runs": np.array(3), "table": table, "weights": weights, "mask": np.array([1, 0, 1, 1], np.float32)}
    graph = load_model(model_of(nodes, {"x": (3, 4)}, ["y"], constants))
    assert parameters(graph) == ("table", "weights")
    with pytest.raises(ModelError, match="'loop' has no gradient: Loop has no gradient rule"):
        training_step(graph, Differentiate())
    assert set(training_step(graph, Differentiate(wrt=("weights",))).gradients) == {"weights"}


def test_parameters_that_a_loop_carries_unchanged() -> None:
    """Loops of JAX are exported so: weights are states that the body passes on. States that change are none."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["next"]),
            helper.make_node("Identity", ["w"], ["same"]),
            helper.make_node("ReduceMax", ["next"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "high"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("run", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 4)) for name in ("h", "w")),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, (4,)),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 4)) for name in ("next", "same")),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, (4,)),
        ],
        [helper.make_tensor("high", TensorProto.FLOAT, (), [0.9])],
    )
    nodes = [
        helper.make_node("Loop", ["", "", "h0", "weights", "bias"], ["last", "again", "too"], "loop", body=body),
        helper.make_node("Mul", ["last", "x"], ["y"]),
    ]
    random = np.random.default_rng(0)
    constants = {name: random.standard_normal((4, 4)).astype(np.float32) for name in ("h0", "weights")}
    constants["bias"] = random.standard_normal(4).astype(np.float32)
    graph = load_model(model_of(nodes, {"x": (4, 4)}, ["y"], constants))
    assert parameters(graph) == ("weights", "bias")
    with pytest.raises(ModelError, match="'loop' has no gradient: Loop has no gradient rule"):
        training_step(graph, Differentiate())


def test_integers_have_no_gradient() -> None:
    build = Builder()
    x = build.matmul(build.input(2, 4), 4)
    place = build.onnx("ArgMax", x, shape=(2, 1), dtype="int64", axis=1)
    picked = build.onnx("GatherElements", x, place, shape=(2, 1), axis=1)
    check_parameters(build.graph(picked))


def test_a_model_of_integers_has_no_loss() -> None:
    build = Builder()
    x = build.matmul(build.input(2, 4), 4)
    graph = build.graph(build.onnx("ArgMax", x, shape=(2, 1), dtype="int64", axis=1))
    with pytest.raises(ModelError, match="no float output"):
        training_step(graph, Differentiate())


@pytest.mark.parametrize("loss", get_args(Loss))
def test_an_output_of_sizes_that_depend_on_data_has_no_loss(loss: Loss) -> None:
    build = Builder()
    x = build.matmul(build.input(2, 4), 4)
    kept = build.onnx("Compress", x, build.input(2, dtype="bool"), axis=0)
    graph = build.graph(kept)
    unsized = graph.replace(values={**graph.values, kept: replace(graph.value(kept), shape=None)})
    with pytest.raises(ModelError, match=f"the output '{kept}', whose sizes depend on data.*train the part"):
        training_step(unsized, Differentiate(loss=loss))


def test_products_of_sizes_that_depend_on_data_have_no_gradient() -> None:
    """As in RGCN without a graph, whose products read means over edges that a mask selects."""
    build = Builder()
    row = build.onnx("Compress", build.input(1, 4), build.input(4, dtype="bool"), shape=(1, 4), axis=1)
    product = build.matmul(row, 4)
    graph = build.graph(product)
    unsized = graph.replace(values={**graph.values, row: replace(graph.value(row), shape=None)})
    with pytest.raises(ModelError, match="has no gradient: MatMul: the sizes of its operands or results depend"):
        training_step(unsized, Differentiate())


def test_an_unknown_parameter_name() -> None:
    with pytest.raises(OptionError, match=r"'weigths' is not an input or constant of floats.*did you mean 'weights'"):
        training_step(classifier(), Differentiate(wrt=("weigths",)))


def test_a_model_without_parameters() -> None:
    build = Builder()
    graph = build.graph(build.relu(build.input(2, 4)))
    with pytest.raises(ModelError, match="no parameters"):
        training_step(graph, Differentiate())
    assert training_step(graph, Differentiate(inputs=True)).graph.outputs == ("loss", "x.gradient")


def test_constants_without_elements_in_memory() -> None:
    """A model of any size is differentiated by its shapes: its weights are neither copied nor read."""
    shape = (1 << 16, 1 << 16)
    build = Builder()
    x = build.input(4, shape[0], dtype="float16")
    w = build.constant(np.broadcast_to(np.zeros((), np.float16), shape), "w")
    step = training_step(build.graph(build.op(Gemm(), x, w)), Differentiate(inputs=True))
    assert set(step.gradients) == {"w", "x"}
    assert step.graph.shape("w.gradient") == shape
    assert step.graph.constants["w"].strides == (0, 0)


def test_values_are_compared_around_passes_that_keep_them() -> None:
    def differ(before: Graph, after: Graph) -> str:
        return "not the same"

    assert PassManager((Differentiate(),), check=differ).run(classifier()).changed


def test_the_forward_pass_is_unchanged() -> None:
    """Only gradients follow it; its max pools also output the positions of the maxima."""
    build = Builder()
    graph = build.graph(build.relu(build.max_pool(build.conv(build.input(1, 3, 8, 8), 4, 3), 2, 2)))
    step = training_step(graph, Differentiate())
    ahead = [node for node in step.graph.nodes if node.name in step.forward]
    assert [node.kind for node in ahead] == ["Conv", "MaxPool", "Relu", "Mul", "ReduceSum"]
    assert [node.name for node in ahead[:3]] == [node.name for node in graph.nodes]
    assert isinstance(ahead[1].op, OnnxOp)


def test_gradients_are_not_lost_in_sequences() -> None:
    build = Builder()
    x = build.input(2, 3)
    (both,) = build.node(OnnxOp("SequenceConstruct", "", ()), (x, x), [(None, "seq(float32)")])
    joined = build.node(OnnxOp("ConcatFromSequence", "", (("axis", 0),)), (both,), [((4, 3), "float32")])
    with pytest.raises(ModelError, match="ConcatFromSequence has no gradient rule"):
        training_step(build.graph(*joined), Differentiate(inputs=True))

"""An op defined entirely in this file works end to end: imported, searched, executed on PIM by value, verified, saved,
loaded.

The op is ONNX Runtime's `com.microsoft.TransposeMatMul`, alpha * (A @ B). Nothing in pimflow/ names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import pimflow
from pimflow.api.models import inspect
from pimflow.codegen.matrix import PRODUCT_VALUES, Multiply
from pimflow.codegen.work import MATRIX_PROBLEMS, MatmulProblem
from pimflow.frontend import load_model
from pimflow.frontend.convert import Site, converts
from pimflow.ir import (
    Array,
    Builder,
    Graph,
    MatMul,
    Node,
    OnnxOp,
    Refusal,
    RowPart,
    parse_graph,
    print_graph,
    register_op,
)
from pimflow.ir.analysis.rows import Shape, Shapes
from pimflow.ir.gradients import GRADIENTS, Tape
from pimflow.ir.ops.contraction import Contraction, matmul_shape
from pimflow.ir.ops.rules import ROOMS
from pimflow.ir.registry import scratch_registrations
from pimflow.onnxio.export import EXPORT, OnnxWriter
from pimflow.passes.differentiate import Differentiate, training_step
from pimflow.runtime.gpu.profiling_cuda import CUDA_KERNELS
from pimflow.runtime.gpu.work import GPU_WORK, MatrixWork, Operands
from support.onnx_models import model_of
from support.values import assert_close, run_in_ort

DOMAIN = "com.microsoft"
ALPHA = 0.125


@dataclass(frozen=True)
class TransposeMatMul(Contraction):
    """alpha * (A @ B), with numpy.matmul's broadcasting."""

    onnx_names = ("TransposeMatMul",)
    onnx_domain = DOMAIN
    is_matrix_product = True
    least_ranks = (2, 2)

    alpha: float = 1.0

    def shape_rule(self, shapes: Shapes) -> Shape:
        return matmul_shape(shapes[0], shapes[1])

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        return RowPart(self, ((start, stop), None))


def convert(site: Site) -> TransposeMatMul | None:
    transposed = any(site.integer(name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB"))
    ranks = (len(site.shape(0)), len(site.shape(1)))
    return None if transposed or min(ranks) < 2 or not site.is_float() else TransposeMatMul(site.number("alpha", 1.0))


def export(writer: OnnxWriter, node: Node, op: TransposeMatMul) -> None:
    writer.add(node, "TransposeMatMul", {"alpha": op.alpha})


def pim_work(graph: Graph, node: Node, op: TransposeMatMul) -> MatmulProblem | Refusal:
    left, right = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    if len(right) != 2:
        return Refusal("the right-hand side has a batch of its own")
    constant = graph.is_constant(node.inputs[1])
    return MatmulProblem(left[-2], left[-1], right[-1], prod(left[:-2]), constant_rhs=constant)


def gpu_work(op: TransposeMatMul, operands: Operands) -> MatrixWork:
    *batch, m, n = operands.output.shape or ()
    depth = (operands.inputs[0].shape or ())[-1]
    return MatrixWork(m * prod(batch), n, depth, 1, operands.bytes)


def pim_values(op: TransposeMatMul, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    source, weights = inputs
    assert source is not None
    assert weights is not None
    scaled: Array = np.multiply(multiply(source, weights), np.float32(op.alpha))
    return scaled


def forgetful_values(op: TransposeMatMul, inputs: Sequence[Array | None], multiply: Multiply) -> Array:
    return pim_values(TransposeMatMul(alpha=1.0), inputs, multiply)


def gradient(tape: Tape, node: Node, op: TransposeMatMul, gradients: tuple[str, ...]) -> Sequence[str]:
    """The gradient, for operands without batch dimensions to broadcast."""
    (a, b), dy = node.inputs, tape.scaled(gradients[0], op.alpha)
    return (
        tape.product(dy, tape.matrix_transpose(b)) if tape.wants(a) else "",
        tape.product(tape.matrix_transpose(a), dy) if tape.wants(b) else "",
    )


Values = Callable[[TransposeMatMul, Sequence["Array | None"], Multiply], Array]


def register(values: Values = pim_values) -> None:
    register_op(TransposeMatMul)
    converts("TransposeMatMul", domain=DOMAIN)(convert)
    EXPORT.add(TransposeMatMul, export)
    MATRIX_PROBLEMS.add(TransposeMatMul, pim_work)
    GPU_WORK.add(TransposeMatMul, gpu_work)
    PRODUCT_VALUES.add(TransposeMatMul, values)
    GRADIENTS.add(TransposeMatMul, gradient)
    CUDA_KERNELS.leave_out("no GPU is timed here", TransposeMatMul)


@pytest.fixture
def _registered() -> Iterator[None]:
    with scratch_registrations():
        register()
        yield


def model() -> onnx.ModelProto:
    """Two fused products with a Relu between them, and a transposed one, which the op does not support."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((512, 512)).astype(np.float32) for name in ("w0", "w1", "w2")}
    nodes = [
        helper.make_node("TransposeMatMul", ["x", "w0"], ["a"], "first", domain=DOMAIN, alpha=ALPHA),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("TransposeMatMul", ["b", "w1"], ["c"], "second", domain=DOMAIN, alpha=ALPHA),
        helper.make_node("TransposeMatMul", ["c", "w2"], ["y"], "other", domain=DOMAIN, alpha=ALPHA, transB=1),
    ]
    return model_of(nodes, {"x": (16, 512)}, ["y"], weights, domains={DOMAIN: 1})


@pytest.mark.usefixtures("_registered")
def test_it_is_trained() -> None:
    """The gradient is that of its parts: the product and the factor."""
    build = Builder()
    a, b = build.input(3, 4, name="a"), build.input(4, 5, name="b")
    made = build.op(TransposeMatMul(ALPHA), a, b)
    plain = build.op(MatMul(), build.mul(a, build.constant(np.array(ALPHA, np.float32))), b)
    steps = [training_step(build.graph(y), Differentiate(wrt=("a", "b"))) for y in (made, plain)]
    values = {name: np.random.default_rng(0).random(build.shape(name), np.float32) for name in (a, b)}
    given = np.random.default_rng(1).random((3, 5), np.float32)
    own, expected = (
        run_in_ort(step.graph.replace(opset={"": 17, DOMAIN: 1}), {**values, step.graph.inputs[-1]: given})
        for step in steps
    )
    for name in ("a.gradient", "b.gradient"):
        assert_close(own[name], expected[name])


def test_each_room_is_satisfied() -> None:
    with scratch_registrations():
        register_op(TransposeMatMul)
        lacking = {room.what for room in ROOMS.values() if "TransposeMatMul" in room.missing()}
    assert {"ONNX export", "matrix problems", "work on the GPU", "values of products"} <= lacking
    with scratch_registrations():
        register()
        assert not any(room.missing() for room in ROOMS.values())
    assert sum(isinstance(node.op, OnnxOp) for node in load_model(model()).nodes) == 3, "everything is unregistered"


@pytest.mark.usefixtures("_registered")
def test_it_is_imported_and_has_shapes_text_and_a_verdict() -> None:
    graph = load_model(model())
    ops = {node.name: node.op for node in graph.nodes}
    assert ops["first"] == ops["second"] == TransposeMatMul(ALPHA)
    assert isinstance(ops["other"], OnnxOp)
    assert graph.shape("c") == (16, 512)
    text = print_graph(graph)
    assert "%a = TransposeMatMul(%x, %w0) {alpha = 0.125} : float32[16, 512] @first" in text
    assert print_graph(parse_graph(text, graph.constants)) == text
    verdicts = {row.name: row for row in inspect(model()).nodes}
    assert verdicts["first"].leaves_host
    assert verdicts["first"].macs == 16 * 512 * 512
    assert not verdicts["other"].leaves_host


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize(("policy", "mode"), [("pim", "pim"), ("md-dp", "md-dp"), ("auto", "md-dp")])
def test_it_is_compiled_executed_on_pim_verified_saved_and_loaded(policy: str, mode: str, tmp_path: Path) -> None:
    compiled = pimflow.compile(model(), policy=policy, use_cache=False)
    on_pim = [node for node in compiled.graph.nodes if node.device == "pim"]
    assert on_pim
    assert all(isinstance(node.op, TransposeMatMul) for node in on_pim)
    assert {row.mode for row in compiled.report.nodes if row.name in ("first", "second")} == {mode}
    assert set(compiled.streams) == {node.name for node in on_pim}
    assert compiled.plan.predicted_us == pytest.approx(compiled.timeline.makespan_us)
    assert "TransposeMatMul" in compiled.summary()

    assert compiled.verify().passed
    by_value = compiled.verify(pim="values", operand="fp32")
    assert by_value.passed
    assert by_value.output_std > 1

    loaded = pimflow.load(compiled.save(tmp_path / "out"))
    assert [node.op for node in loaded.graph.nodes] == [node.op for node in compiled.graph.nodes]
    assert loaded.verify(pim="values", operand="fp32", arena=True).passed
    assert loaded.report.as_json() == compiled.report.as_json()


def test_a_wrong_rule_is_detected_by_value() -> None:
    """If the rule for units is wrong, verification by value detects it: so this rule was executed above."""
    with scratch_registrations():
        register()
        compiled = pimflow.compile(model(), policy="pim", use_cache=False)
    with scratch_registrations():
        register(forgetful_values)
        assert not compiled.verify(pim="values", operand="fp32").passed

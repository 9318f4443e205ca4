"""ONNX operators with a cost rule, and the messages for others."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

import pimflow
from pimflow.api.models import compare, inspect
from pimflow.frontend import load_model
from pimflow.ir import Graph, MatMul, Node, OnnxOp, Value
from pimflow.ir.expansion import EXPANSIONS, why_whole
from pimflow.ir.ops.opaque import PREPARED
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.calibrate import check_target
from pimflow.runtime.gpu.kept import KEPT
from pimflow.runtime.gpu.measured import MeasuredRow, MeasuredTable, table_text
from pimflow.runtime.gpu.work import KernelSequence, StreamWork, gpu_work
from pimflow.targets import load_target
from support.onnx_models import model_of
from support.opaque_models import CONTRIB, normal, opaque_model

X = Value("x", (2, 8), "float32")


def unknown_of(op_type: str, domain: str, value: Value = X) -> str:
    work = gpu_work(OnnxOp(op_type, domain), [value], [value], 2)
    return work.unknown if isinstance(work, KernelSequence) else ""


@pytest.mark.parametrize(
    ("op_type", "domain"),
    [("SomethingNew", "com.example"), ("NGramRepeatBlock", CONTRIB), ("TreeEnsemble", "ai.onnx.ml"), ("Det", "")],
)
def test_unmodelled_operators_are_reported_and_priced_by_bytes(op_type: str, domain: str) -> None:
    work = gpu_work(OnnxOp(op_type, domain), [X], [X], 2)
    assert work == KernelSequence(((StreamWork(16, 64), 1),), "its arithmetic is not modelled")


@pytest.mark.parametrize(
    ("op_type", "domain"), [("Resize", ""), ("TopK", ""), ("BiasGelu", CONTRIB), ("Scaler", "ai.onnx.ml")]
)
def test_operators_without_products_are_known(op_type: str, domain: str) -> None:
    assert isinstance(gpu_work(OnnxOp(op_type, domain), [X], [X], 2), StreamWork)


def test_data_dependent_sizes_are_reported() -> None:
    assert unknown_of("TopK", "", Value("x", None, "float32")).startswith("the sizes of its operands")


def test_every_rule_is_of_an_operator_that_exists() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    known = {(schema.domain, schema.name) for schema in runtime.get_all_operator_schema()}
    known |= {("" if s.domain == "ai.onnx" else s.domain, s.name) for s in onnx.defs.get_all_schemas()}
    known |= {(PREPARED, name) for domain, name in known if not domain}
    assert set(KEPT) <= known


def test_every_operator_with_products_can_partly_leave_the_host_or_has_a_reason() -> None:
    """This includes the bodies of If, Loop and Scan; typed ops have rules of their own, for ranks and types."""
    typed = {("", "Gemm"), ("", "MatMul")}
    value = Value("x", (2, 2))
    for domain, op_type in sorted(set(KEPT) - set(EXPANSIONS) - typed):
        graph = Graph("g", ("x",), ("y",), (), {"x": value, "y": Value("y", (2, 2))}, {})
        assert why_whole(graph, Node(OnnxOp(op_type, domain), ("x",), ("y",), "n")), op_type


def part_unknown() -> onnx.ModelProto:
    """A product, and one whose number of rows is known only at run time."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "known"),
        helper.make_node("NonZero", ["a"], ["n"], "chosen"),
        helper.make_node("Cast", ["n"], ["f"], "cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("MatMul", ["v", "f"], ["b"], "rows"),
        helper.make_node("ReduceSum", ["b"], ["y"], "sum", keepdims=0),
    ]
    return model_of(nodes, {"x": (16, 512)}, ["y"], {"w": normal(512, 512), "v": normal(8, 2)})


def test_inspect_lists_unmodelled_operators() -> None:
    report = inspect(part_unknown())
    by_name = {node["name"]: node for node in report.as_json()["nodes"]}
    assert by_name["known"]["unknown"] == ""
    assert by_name["rows"]["unknown"] == "the sizes of its operands or results depend on data"
    text = report.text()
    assert "100.0 % of the multiply-accumulates that are known" in text
    assert "  rows (MatMul): the sizes of its operands or results depend on data" in text


def test_summary_and_comparison_show_it_next_to_the_speedup() -> None:
    compiled = pimflow.compile(part_unknown(), use_cache=False)
    assert [row.name for row in compiled.report.unknown] == ["chosen", "cast", "rows", "sum"]
    text = compiled.summary()
    (speedup,) = (line for line in text.splitlines() if line.startswith("speedup"))
    assert speedup.endswith("(without the unknown part of 4 nodes)")
    assert "unknown   chosen (NonZero): the sizes of its operands or results depend on data" in text
    assert {node["name"] for node in compiled.document()["nodes"] if node["unknown"]} == {
        "chosen",
        "cast",
        "rows",
        "sum",
    }


def test_modelled_operators_get_no_note() -> None:
    model = opaque_model(
        "MatMulInteger", {"x": (4, 8)}, {"w": normal(8, 8).astype("int8")}, dtype=onnx.TensorProto.INT8
    )
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    report = inspect(model)
    assert report.nodes[0].macs == 4 * 8 * 8
    assert "0.0 % of the multiply-accumulates\n" in report.text() + "\n"
    assert "known" not in report.text()
    assert "unknown" not in pimflow.compile(model, use_cache=False).summary()


def test_a_comparison_shows_it_and_counts_unmodelled_products() -> None:
    found = compare(part_unknown(), policies=("gpu", "newton++"), use_cache=False)
    results = found.policies
    assert [result.as_json()["unknown_nodes"] for result in results] == [4, 4]
    assert found.text().endswith("speedups are (without the unknown part of 4 nodes); `pimflow inspect` says which")
    assert results[0].mode_share["gpu"] == 1
    assert results[1].mode_share["pim"] == pytest.approx(1 / 2), "the product of unknown size is one too"


def test_opaque_operators_of_a_measured_table_are_read_but_not_fitted(tmp_path: Path) -> None:
    """A table has digests in place of bodies, and arbitrary shapes."""
    odd_shapes = [
        MeasuredRow(OnnxOp(op_type), ((2, 3),), ((2, 3),), "float32", 5.0)
        for _, op_type in KEPT
        if op_type not in ("Conv", "Gemm", "MatMul")
    ]
    products = [MeasuredRow(MatMul(), ((8 * n, 64), (64, 32)), ((8 * n, 32),), "float32", 5.0) for n in range(1, 6)]
    path = tmp_path / "table.csv"
    path.write_text(table_text([*odd_shapes, *products]))
    assert {error.name for error in check_target(load_target("pimflow"), path).errors} >= {"MatMul", "all"}


def test_a_measured_time_leaves_nothing_out() -> None:
    graph = load_model(part_unknown())
    node = graph.node("chosen")
    row = MeasuredRow(node.op, ((16, 512),), ((2, 7),), "float32", 12.5)
    costs = CostModel(load_target("pimflow"), measured=MeasuredTable([row])).host_only()
    assert costs.node_cost(graph, node).time_us == pytest.approx(12.5)
    assert costs.unknown(graph, node) == ""
    assert costs.unknown(graph, graph.node("rows")) != ""

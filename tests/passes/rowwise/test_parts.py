"""Parts of an op with a constant that has no dense rows: each part gets its own constant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from pimflow.ir import Array, Builder, Graph, Node, Pipeline, Plan, Refusal, RowPart, register_op
from pimflow.ir.analysis.rows import Shape, Shapes
from pimflow.ir.ops.base import Op
from pimflow.ir.registry import scratch_registrations
from pimflow.onnxio.export import EXPORT, OnnxWriter
from pimflow.passes import ApplyPlan
from pimflow.passes.apply_plan import why_not
from support.values import assert_same_values

RUN = Pipeline(("lookup", "product"), ("gpu", "pim"), (16, 8), "newton++")


@dataclass(frozen=True)
class Lookup(Op):
    """Rows of a table [k, n] by a list of indices [m]: ONNX's Gather along axis 0."""

    cut_operands = (1,)

    def shape_rule(self, shapes: Shapes) -> Shape:
        table, indices = shapes
        assert table is not None
        assert indices is not None
        return (*indices, *table[1:])

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        def indices(constants: Sequence[Array | None]) -> Array:
            assert constants[1] is not None
            return constants[1][start:stop]

        return RowPart(self, (None, indices))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with scratch_registrations():
        register_op(Lookup)

        @EXPORT.register(Lookup)
        def _export(writer: OnnxWriter, node: Node, op: Lookup) -> None:
            writer.add(node, "Gather", {"axis": 0})

        yield


def lookup_and_product(*, constant: bool) -> Graph:
    build = Builder()
    table = build.input(40, 32)
    indices = build.rng.integers(0, 40, 24)
    listed = build.constant(indices, "rows") if constant else build.input(24, name="rows", dtype="int64")
    return build.graph(build.matmul(build.op(Lookup(), table, listed, name="lookup"), 16, name="product"))


def test_each_part_reads_its_own_constant_and_the_rows_come_out_the_same() -> None:
    graph = lookup_and_product(constant=True)
    assert why_not(graph, RUN) is None
    rewritten = ApplyPlan(Plan("by hand", (RUN,), 0.0, 0.0)).run(graph).graph
    parts = [node for node in rewritten.nodes if isinstance(node.op, Lookup)]
    (whole,) = (array for array in graph.constants.values() if array.ndim == 1)
    cut = [rewritten.constants[node.inputs[1]] for node in parts]
    assert [len(array) for array in cut] == [16, 8]
    np.testing.assert_array_equal(np.concatenate(cut), whole)
    assert_same_values(graph, rewritten)


def test_a_computed_operand_cannot_be_split_this_way() -> None:
    refusal = why_not(lookup_and_product(constant=False), RUN)
    assert refusal is not None
    assert refusal.reason == "lookup: 'rows' is computed, and its parts have to be constants"

"""The intermediate representation: graph, ops, plan, builder, verifier and text form."""

from pimflow.ir.analysis.rows import Shape
from pimflow.ir.builder import Builder
from pimflow.ir.compare import first_difference, graphs_equal
from pimflow.ir.editor import GraphEditor
from pimflow.ir.graph import Array, Graph, Node, Value, topological_order
from pimflow.ir.ops.base import Op, RowPart, register_op
from pimflow.ir.ops.contraction import Conv2d, Gemm, MatMul
from pimflow.ir.ops.elementwise import BatchNorm, Elementwise
from pimflow.ir.ops.movement import Concat, Pad, Reshape, Slice, Transpose
from pimflow.ir.ops.opaque import Attributes, AttributeValue, OnnxOp, OpaqueAttribute
from pimflow.ir.ops.rules import OpRules
from pimflow.ir.ops.sparse import (
    EdgeSoftmax,
    GatherPairs,
    GatherRows,
    Sddmm,
    SegmentReduce,
    Spmm,
    TypedLinear,
    TypedSpmm,
)
from pimflow.ir.ops.window import GlobalPool, Pool2d, window_out
from pimflow.ir.packed import Packed
from pimflow.ir.placement import UNPLACED, MovementVerdict, NarrowOperands, Placement
from pimflow.ir.plan import Decision, OnDevice, Parallel, Pipeline, Plan, SplitColumns, SplitEdges, SplitK, SplitRows
from pimflow.ir.refusal import Refusal
from pimflow.ir.text import parse_graph, print_graph

__all__ = [
    "UNPLACED",
    "Array",
    "AttributeValue",
    "Attributes",
    "BatchNorm",
    "Builder",
    "Concat",
    "Conv2d",
    "Decision",
    "EdgeSoftmax",
    "Elementwise",
    "GatherPairs",
    "GatherRows",
    "Gemm",
    "GlobalPool",
    "Graph",
    "GraphEditor",
    "MatMul",
    "MovementVerdict",
    "NarrowOperands",
    "Node",
    "OnDevice",
    "OnnxOp",
    "Op",
    "OpRules",
    "OpaqueAttribute",
    "Packed",
    "Pad",
    "Parallel",
    "Pipeline",
    "Placement",
    "Plan",
    "Pool2d",
    "Refusal",
    "Reshape",
    "RowPart",
    "Sddmm",
    "SegmentReduce",
    "Shape",
    "Slice",
    "SplitColumns",
    "SplitEdges",
    "SplitK",
    "SplitRows",
    "Spmm",
    "Transpose",
    "TypedLinear",
    "TypedSpmm",
    "Value",
    "first_difference",
    "graphs_equal",
    "parse_graph",
    "print_graph",
    "register_op",
    "topological_order",
    "window_out",
]

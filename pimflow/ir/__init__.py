"""The intermediate representation: graph, ops, plan, builder, verifier and text form."""

from pimflow.ir.builder import Builder
from pimflow.ir.compare import first_difference, graphs_equal
from pimflow.ir.editor import GraphEditor
from pimflow.ir.graph import Array, Graph, Node, Value, topological_order
from pimflow.ir.ops import (
    Attributes,
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    Gemm,
    GlobalPool,
    MatMul,
    OnnxOp,
    Op,
    OpaqueAttribute,
    Pad,
    Pool2d,
    Reshape,
    Slice,
    Transpose,
    op_name,
    window_out,
)
from pimflow.ir.placement import UNPLACED, MovementVerdict, Placement
from pimflow.ir.plan import Decision, OnDevice, Parallel, Pipeline, Plan, SplitRows
from pimflow.ir.refusal import Refusal
from pimflow.ir.text import parse_graph, print_graph

__all__ = [
    "UNPLACED",
    "Array",
    "Attributes",
    "BatchNorm",
    "Builder",
    "Concat",
    "Conv2d",
    "Decision",
    "Elementwise",
    "Gemm",
    "GlobalPool",
    "Graph",
    "GraphEditor",
    "MatMul",
    "MovementVerdict",
    "Node",
    "OnDevice",
    "OnnxOp",
    "Op",
    "OpaqueAttribute",
    "Pad",
    "Parallel",
    "Pipeline",
    "Placement",
    "Plan",
    "Pool2d",
    "Refusal",
    "Reshape",
    "Slice",
    "SplitRows",
    "Transpose",
    "Value",
    "first_difference",
    "graphs_equal",
    "op_name",
    "parse_graph",
    "print_graph",
    "topological_order",
    "window_out",
]

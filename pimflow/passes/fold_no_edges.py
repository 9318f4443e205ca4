"""Reductions of no edges, as of a relation that a graph has none of, are constants."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pimflow.ir import Array, Graph, GraphEditor, Node, SegmentReduce, Spmm
from pimflow.onnxio.folding import FOLD_LIMIT_BYTES
from pimflow.onnxio.tensors import numpy_dtype
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class FoldNoEdges(Pass):
    """Replaces sums and extrema of no edges by constants, so that what only they read is dead.

    A node that makes a graph output stays. Training steps do without this pass: the constants are multiplied by
    parameters, whose products run in every step of a framework.

    Args:
        max_bytes: size of the largest constant to create.
    """

    name: ClassVar[str] = "fold-no-edges"

    max_bytes: int = FOLD_LIMIT_BYTES

    def run(self, graph: Graph) -> PassResult:
        editor = GraphEditor(graph)
        for node in graph.nodes:
            array = None if node.output in graph.outputs else self._result(graph, node)
            if array is not None:
                editor.set_constant(node.output, array)
                editor.replace_node(node.name, ())
        return PassResult(editor.finish(), True) if editor.changed else PassResult(graph, False)

    def _result(self, graph: Graph, node: Node) -> Array | None:
        """One number in all rows, times their scales; None of a reduction that may have edges, and of other nodes."""
        op = node.op
        if not isinstance(op, SegmentReduce | Spmm) or (value := graph.value(node.output)).shape is None:
            return None
        pointers, scale = graph.constants.get(node.inputs[1]), node.inputs[4] if len(node.inputs) > 4 else ""
        dtype = numpy_dtype(value.dtype)
        is_large = value.elements * dtype.itemsize > self.max_bytes
        if pointers is None or pointers[-1] or (scale and not graph.is_constant(scale)) or is_large:
            return None
        result = np.full(value.shape, op.empty, dtype)
        if scale:
            result *= graph.constants[scale].reshape(-1, *(1 for _ in value.shape[1:])).astype(dtype)
        return result

"""Computes what depends on constants alone, so that it is done once and not at every run."""

from __future__ import annotations

from typing import ClassVar

from pimflow.ir import Array, Graph, GraphEditor, Refusal
from pimflow.onnxio.folding import FOLD_LIMIT_BYTES, evaluate, packed_form
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Replaces nodes that read constants alone, and Shape and Size of what has a static shape, by constants.

    Random ops and control flow stay, and so does a node that makes a graph output. What a DequantizeLinear makes
    stays in few bits in the model that is written.

    Args:
        max_bytes: size of the largest constant made, unless what it is made of is nearly as large.
    """

    name: ClassVar[str] = "fold-constants"

    max_bytes: int = FOLD_LIMIT_BYTES

    def run(self, graph: Graph) -> PassResult:
        editor = GraphEditor(graph)
        known: dict[str, Array] = dict(graph.constants)
        notes: list[str] = []
        for node in graph.nodes:
            if any(name in graph.outputs for name in node.outputs):
                continue  # a graph output is made by a node
            arrays = evaluate(node, graph, graph.values, known, self.max_bytes)
            if isinstance(arrays, Refusal):
                notes.append(arrays.reason)
                continue
            if arrays is None:
                continue
            made = {name: array for name, array in zip(node.outputs, arrays, strict=True) if name}
            for name, array in made.items():
                editor.set_constant(name, array, packed_form(node, array, known))
            known |= made
            editor.replace_node(node.name, ())
        if not editor.changed:
            return PassResult(graph, False, tuple(notes))
        return PassResult(editor.finish(), True, tuple(notes))

"""Evaluates nodes that depend only on constants at compile time instead of at every run."""

from __future__ import annotations

from typing import ClassVar

from pimflow.ir import Array, Graph, GraphEditor, Node, Refusal
from pimflow.onnxio.folding import FOLD_LIMIT_BYTES, evaluate, packed_form
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.trainable import combines_learnt, is_trainable, is_unmasked, picks_rows
from pimflow.records import dataclass


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Replaces nodes that read only constants, and Shape and Size of values with static shapes, by constants.

    Random ops and control flow stay, and so does a node that makes a graph output. The result of a DequantizeLinear
    stays quantised in the exported model.

    Args:
        max_bytes: size of the largest constant to create, unless its inputs are nearly as large.
        learnt_apart: whether what training needs stays: products and sums of separately trainable constants, products
            of one with values that are not trained, gathers that repeat its rows or leave some out, and movements of
            one that others read as well (a table of words that is also the last layer's weight).
    """

    name: ClassVar[str] = "fold-constants"

    max_bytes: int = FOLD_LIMIT_BYTES
    learnt_apart: bool = False

    def run(self, graph: Graph) -> PassResult:
        editor = GraphEditor(graph)
        known: dict[str, Array] = dict(graph.constants)
        learnt = _Learnt(graph) if self.learnt_apart else None
        notes: list[str] = []
        for node in graph.nodes:
            if any(name in graph.outputs for name in node.outputs):
                continue  # graph outputs have to be made by nodes
            if learnt is not None and all(name in known for name in node.inputs if name) and learnt.stays(node):
                continue
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


class _Learnt:
    """The trainable constants that folded constants were computed from, updated as nodes are folded in order."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._sources: dict[str, frozenset[str]] = {}

    def stays(self, node: Node) -> bool:
        """Whether a node combines a trainable constant with another one, multiplies it, picks some of its rows or any
        more than once, or moves one that is also read elsewhere; otherwise the sources of its results are recorded."""
        made_of = [self._of(node, name) for name in node.inputs]
        combines = combines_learnt(node.op, made_of) or (node.op.is_contraction and any(made_of[:2]))
        if combines or (any(made_of[:1]) and (self._repeats(node) or self._is_copy(node))):
            return True
        self._sources.update(dict.fromkeys(node.outputs, frozenset().union(*made_of)))
        return False

    def _repeats(self, node: Node) -> bool:
        """Whether a node gathers more elements than its table has: each is one parameter, however often it is read.
        Nor are the rows that it leaves out any less trained, unless the table's readers share it out."""
        if not picks_rows(node.op):
            return False
        table, values = node.inputs[0], self._graph.values
        readers = self._graph.users(table)
        if self._takes_part(node, table):
            return len(readers) == 1 or not all(self._takes_part(reader, table) for reader in readers)
        return values[node.output].elements > values[table].elements

    def _takes_part(self, node: Node, source: str) -> bool:
        """Whether a node reads some of the elements of a constant."""
        is_part = (node.op.is_movement or picks_rows(node.op)) and node.inputs[0] == source
        return is_part and self._graph.value(node.outputs[0]).elements < self._graph.value(source).elements

    def _is_copy(self, node: Node) -> bool:
        """Whether a node moves all elements of a constant that other nodes read, too, so that its result would count as
        other parameters."""
        source, values = node.inputs[0], self._graph.values
        if not self._graph.is_constant(source) or not (node.op.is_movement or node.kind in ("Cast", "Identity")):
            return False
        return values[node.output].elements == values[source].elements and len(self._graph.users(source)) > 1

    def _of(self, node: Node, name: str) -> frozenset[str]:
        if name in self._sources or not self._graph.is_constant(name):
            return self._sources.get(name, frozenset())
        is_learnt = is_trainable if node.op.is_contraction or picks_rows(node.op) else _is_shaped
        return frozenset((name,)) if is_learnt(self._graph, name) else frozenset()


def _is_shaped(graph: Graph, name: str) -> bool:
    """Whether a constant was trained element by element: it is not a mask, and not uniform like the start of a sum."""
    array = graph.constants[name]
    return is_unmasked(graph, name) and bool((array != array.flat[0]).any())

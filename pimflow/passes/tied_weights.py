"""Weights that a model reads in two orientations, such as a table of words that is also the last layer's weight.

They are one parameter, with one gradient. Exporters transpose them at every use, or store the transposed copy as well;
in training, products read the weight itself, whose orientation costs them nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pimflow.ir import Array, Gemm, Graph, Node, Transpose
from pimflow.ir.analysis.tensor_layout import is_float
from pimflow.ir.gradients import Tape, renamed
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.passes.remove_dead_code import RemoveDeadCode
from pimflow.passes.trainable import is_trainable, picks_rows

_SWAPPED = (1, 0)


def with_tied_weights(graph: Graph) -> Graph:
    """The graph with every product by the transpose of a stored matrix as a product by that matrix; itself if it has
    none.

    A matrix that is stored next to a table for lookups, and is its transpose, element by element, is a copy of it.
    """
    sources = _sources(graph)
    if not sources:
        return graph
    tape, nodes, tied = Tape(graph, ()), list[Node](), False
    for node in graph.nodes:
        with tape.recording(node.name) as made:
            result = _product(tape, node, sources)
        tied |= bool(result)
        nodes += [renamed(new, {result: node.output}) for new in made] if result else [node]
    if not tied:
        return graph
    return RemoveDeadCode().run(graph.replace(nodes=nodes, values=tape.values, constants=tape.constants)).graph


def _product(tape: Tape, node: Node, sources: Mapping[str, str]) -> str:
    """The product of a node by the matrix itself instead of by its transpose; "" if it is none."""
    weight = sources.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if weight is None:
        return ""
    x = node.inputs[0]
    if isinstance(node.op, Gemm):
        return tape.op(replace(node.op, trans_b=not node.op.trans_b), x, weight, *node.inputs[2:])
    if node.op != PRODUCT or len(tape.shape(x)) < 2:
        return ""
    rows = tape.op(Gemm(trans_b=True), tape.rows_of(x), weight)
    return tape.reshape(rows, tape.shape(node.output))


def _sources(graph: Graph) -> dict[str, str]:
    """By value that is the transpose of a stored matrix, that matrix."""
    found = {
        node.output: node.inputs[0]
        for node in graph.nodes
        if node.op == Transpose(_SWAPPED) and graph.is_constant(node.inputs[0]) and _is_float_matrix(graph, node.output)
    }
    tables = {
        node.inputs[0]: None for node in graph.nodes if picks_rows(node.op) and _is_float_matrix(graph, node.inputs[0])
    }
    for table in filter(graph.is_constant, tables):
        for name, array in graph.constants.items():
            if name not in tables and _is_copy(graph, graph.constants[table], name, array):
                found[name] = table
    return found


def _is_float_matrix(graph: Graph, name: str) -> bool:
    value = graph.value(name)
    return is_float(value.dtype) and value.shape is not None and len(value.shape) == len(_SWAPPED)


def _is_copy(graph: Graph, table: Array, name: str, array: Array) -> bool:
    """Whether a constant is the transpose of a table whose elements differ."""
    if array.shape != table.shape[::-1] or array.dtype != table.dtype or array.ndim != len(_SWAPPED):
        return False
    if not is_trainable(graph, name) or not (array != array.flat[0]).any():
        return False
    return np.array_equal(array, table.T)

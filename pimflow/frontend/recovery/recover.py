"""Recovery of a whole graph: replaces every scatter and product by type that a rule covers, and removes dead nodes."""

from __future__ import annotations

import numpy as np

from pimflow.errors import ModelError
from pimflow.frontend.inference import Inferred
from pimflow.frontend.recovery.aggregation import Aggregations
from pimflow.frontend.recovery.rewriter import OUT_OF_RANGE, SCATTERS, Ints, Rewriter, fold_known_values
from pimflow.frontend.recovery.typed import match_typed, write_product
from pimflow.frontend.structure import along_rows
from pimflow.ir import GatherRows, Graph, Node, Spmm
from pimflow.records import NamedTuple

SCATTER_OPSET = 16
"""The first opset in which ScatterElements can add; before, it keeps one of several updates."""

_GATHERS = frozenset({"Gather", "GatherND"})


class Recovered(NamedTuple):
    """A graph with sparse ops.

    Args:
        inferred: the graph.
        notes: the reasons for scatters and gathers left in it, each as "node: reason".
        of_graph: names of its constants that depend on the bound graph.
    """

    inferred: Inferred
    notes: tuple[str, ...]
    of_graph: frozenset[str]

    @property
    def never_runs(self) -> bool:
        """Whether a scatter or gather that was left has a known index that is out of range."""
        return any(note.endswith(OUT_OF_RANGE) for note in self.notes)


def recover(inferred: Inferred, bound: frozenset[str]) -> Recovered:
    """The graph with its aggregations as sparse ops, and values that depend only on the bound graph as constants.

    Args:
        inferred: a graph with shapes; `structural` and `known` hold the values that depend on the bound graph.
        bound: the inputs that the bound graph replaces.

    Raises:
        ModelError: in the model's opset, duplicate edges are lost.
    """
    rewriter = Rewriter(inferred.graph, inferred.known, inferred.structural)
    _refuse_lost_duplicates(rewriter)
    rules, refusals = Aggregations(rewriter), {}
    for node in inferred.graph.nodes:
        if rewriter.producer(node.output) is None:
            continue
        if node.kind in SCATTERS:
            refusals[node.name] = rules.recover(node)
        elif node.kind in ("Div", "Mul"):
            _fold_row_scale(rewriter, node)
        elif node.kind in _GATHERS:
            _gather_rows(rewriter, node)
    _products_by_type(rewriter)
    fold_known_values(rewriter)
    for name in bound:
        if name in rewriter.known:
            rewriter.editor.set_constant(name, rewriter.known[name])
    graph = rewriter.editor.finish()
    graph = _without_dead_nodes(graph.replace(inputs=[name for name in graph.inputs if name not in bound]))
    refused = {name: reason.reason for name, reason in refusals.items() if reason is not None}
    notes = [
        refused.get(node.name) or _why_unrecovered(rewriter, node)
        for node in graph.nodes
        if _is_unrecovered(rewriter, node)
    ]
    known = {name: array for name, array in inferred.known.items() if name in graph.values}
    kept = {node.name for node in graph.nodes if inferred.graph.node_by_name.get(node.name) is node}
    forms = {name: form for name, form in inferred.forms.items() if name in kept}
    made = inferred._replace(graph=graph, forms=forms, known=known | dict(graph.constants))
    return Recovered(made, tuple(notes), frozenset(rewriter.of_graph.intersection(graph.constants)))


def _refuse_lost_duplicates(rewriter: Rewriter) -> None:
    opset = rewriter.graph.opset.get("", 0)
    if opset >= SCATTER_OPSET:
        return
    for node in rewriter.graph.nodes:
        if node.kind in (*SCATTERS, "Scatter") and node.inputs[1] in rewriter.structural:
            raise ModelError(
                f"the model is in opset {opset}, where {node.name!r} keeps one of several edges into a vertex",
                f"export it with opset {SCATTER_OPSET} or later",
            )


def _fold_row_scale(rewriter: Rewriter, node: Node) -> None:
    """Folds the division (or multiplication) of a sum by a known number per row, as in a mean, into a row scale."""
    if len(node.inputs) != 2:
        return
    for total, factor in (node.inputs, node.inputs[::-1]) if node.kind == "Mul" else (node.inputs,):
        name = rewriter.peel(total)
        summed, rows = rewriter.written(name), rewriter.array(factor)
        if summed is None or factor not in rewriter.known or not isinstance(summed.op, Spmm) or len(summed.inputs) > 4:
            continue
        shape = rewriter.shape(node.output)
        scale: Ints | None = along_rows(rows) if rows.ndim == len(shape) and rows.shape[0] == shape[0] else None
        if scale is None or summed.op.reduce != "sum" or shape != rewriter.shape(name) or _readers(rewriter, name) > 1:
            continue
        scaled = 1 / scale if node.kind == "Div" else scale
        inputs = (*summed.inputs, *("",) * (4 - len(summed.inputs)))
        vector = rewriter.constant("row_scale", np.asarray(scaled, dtype=rows.dtype))
        rewriter.finish(node, rewriter.write(summed.op, *inputs, vector, like=node.name))
        return


def _gather_rows(rewriter: Rewriter, node: Node) -> None:
    """Replaces a gather of rows by a known index that no aggregation absorbs."""
    rows = rewriter.rows(node.output)
    if rows is None:
        return
    rewriter.finish(node, rewriter.write(GatherRows(), rows.x, rewriter.picks(rows.index), like=node.name))


def _products_by_type(rewriter: Rewriter) -> None:
    """Replaces products with a matrix per row that something other than an aggregation reads."""
    found = {
        node.name: match_typed(rewriter, node)
        for node in rewriter.graph.nodes
        if rewriter.producer(node.output) is not None
    }
    products = {name: product for name, product in found.items() if product is not None}
    if not products:
        return
    rewriter.typed.clear()  # those that aggregations wrote are in the aggregations' places, after these
    live = _without_dead_nodes(rewriter.editor.finish()).node_by_name
    for name, product in products.items():
        if name in live:
            write_product(rewriter, rewriter.graph.node(name), product)


def _is_unrecovered(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node is an original gather or scatter that is executed when the model runs."""
    return node.kind in SCATTERS | _GATHERS | {"GatherElements"} and node.output not in rewriter.known


def _why_unrecovered(rewriter: Rewriter, node: Node) -> str:
    """Why a gather was not recovered; scatters have a refusal from their rule."""
    index, axis = rewriter.known.get(node.inputs[1]), rewriter.node_attributes(node).get("axis", 0)
    if index is None:
        return f"{node.name}: its index is computed when the model runs"
    if node.kind == "GatherElements":
        return f"{node.name}: its index differs between columns"
    if node.kind == "GatherND" and index.shape[1:] != (1,):
        return f"{node.name}: it picks by {index.shape[-1]} indices at a time, not rows"
    if node.kind == "Gather" and axis % max(len(rewriter.shape(node.inputs[0])), 1):
        return f"{node.name}: it picks along axis {axis}, not rows of vertices or edges"
    if node.kind == "Gather" and index.ndim != 1:
        return f"{node.name}: its index has {index.ndim} dims, so it is not a list of rows"
    return f"{node.name}: {OUT_OF_RANGE}"


def _readers(rewriter: Rewriter, name: str) -> int:
    """The number of nodes that read a value when the model runs, plus one if it is a graph output."""
    readers = [user for user in rewriter.graph.users(name) if rewriter.producer(user.output) is not None]
    return len(readers) + (name in rewriter.graph.outputs)


def _without_dead_nodes(graph: Graph) -> Graph:
    live, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if live.intersection(node.outputs):
            kept.append(node)
            live.update(name for name in node.inputs if name)
    live.update(graph.inputs, *(node.outputs for node in kept))
    return graph.replace(
        nodes=reversed(kept),
        values={name: value for name, value in graph.values.items() if name in live},
        constants={name: array for name, array in graph.constants.items() if name in live},
    )

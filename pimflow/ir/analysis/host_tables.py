"""Tables in the host's memory: which nodes read rows of them, and which values the GPU's memory need not hold."""

from __future__ import annotations

import numpy as np

from pimflow.ir.graph import Array, Graph, Node
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.ops.sparse import GatherRows

ZERO_COPY = ("zero-copy", "zero-copy-plain")
"""The accesses made by GPU threads, which read the index themselves."""


def reads_rows(node: Node) -> bool:
    """Whether a node only reads rows of its first input, selected by its second."""
    gathers = isinstance(node.op, OnnxOp) and node.op.op_type == "Gather" and not dict(node.op.attributes).get("axis")
    return gathers or isinstance(node.op, GatherRows)


def fetches(graph: Graph) -> tuple[Node, ...]:
    """The nodes that fetch rows of a table from the host's memory."""
    return tuple(node for node in graph.nodes if node.placement.access is not None)


def is_consecutive(index: Array) -> bool:
    """Whether an index selects consecutive rows."""
    flat = index.reshape(-1)
    return len(flat) > 0 and int(flat[-1]) - int(flat[0]) == len(flat) - 1 and bool((np.diff(flat) == 1).all())


def in_host(graph: Graph) -> frozenset[str]:
    """Inputs and constants that the GPU's memory does not hold: tables of which only rows are fetched.

    GPU memory holds an index only if GPU threads read it; consecutive rows need none.
    """
    found: dict[str, bool] = {}
    for node in fetches(graph):
        table, index, *_ = node.inputs
        array = graph.constants.get(index)
        by_host = array is not None and (node.placement.access not in ZERO_COPY or is_consecutive(array))
        found[table] = found.get(table, True)
        found[index] = found.get(index, True) and by_host
    read = {name for node in graph.nodes if node.placement.access is None for name in node.inputs}
    return frozenset(name for name, out in found.items() if out and name not in read and _is_given(graph, name))


def _is_given(graph: Graph, name: str) -> bool:
    return name not in graph.outputs and (name in graph.inputs or name in graph.constants)

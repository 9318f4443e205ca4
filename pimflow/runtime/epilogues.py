"""The operands that kernels wait for, including those of their epilogues.

A kernel adds a second tensor while it writes its own results, the first of them long before it ends (in cuDNN and
cuBLAS the tensor is an operand of the fused kernel). So the kernel cannot start before that tensor is ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.errors import GraphError
from pimflow.ir import Node

Reads = Mapping[str, Sequence[str]]
"""By kernel, the values that nodes fused into it read and that another kernel among the given nodes computes."""


def epilogue_reads(nodes: Sequence[Node]) -> Reads:
    """The values that each kernel's epilogue reads and that other kernels among the nodes compute."""
    kernels = {name: node.placement.fused_into or node.name for node in nodes for name in node.outputs if name}
    roots = {node.name for node in nodes}
    found: dict[str, list[str]] = {}
    for node in nodes:
        into = node.placement.fused_into
        if into is None or into not in roots:
            continue
        others = [name for name in node.inputs if kernels.get(name, into) != into]
        if others:
            found.setdefault(into, []).extend(others)
    return found


def by_kernel(nodes: Sequence[Node], reads: Reads) -> Sequence[Node]:
    """The nodes reordered so that each comes after everything its kernel waits for; otherwise the order is kept.

    Raises:
        GraphError: a kernel waits for itself, which is possible if more than one of its values is used outside.
    """
    producers = {name: node for node in nodes for name in node.outputs if name}
    place = {node.name: index for index, node in enumerate(nodes)}
    if all(place[producers[name].name] < place[root] for root, names in reads.items() for name in names):
        return nodes
    order: list[Node] = []
    done: dict[str, bool] = {}  # False while the nodes that a node waits for are being placed before it
    for last in nodes:
        stack = [last]
        while stack:
            node = stack[-1]
            first = node.name not in done
            awaited = [producers[name] for name in (*node.inputs, *reads.get(node.name, ())) if name in producers]
            waiting = [producer for producer in awaited if not done.get(producer.name)]
            if waiting and not first:
                raise GraphError(f"node {node.name!r} waits for a node that is fused into it")
            if waiting:
                done[node.name] = False
                stack += waiting[::-1]
                continue
            stack.pop()
            if not done.get(node.name):
                done[node.name] = True
                order.append(node)
    return order

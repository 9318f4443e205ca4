"""What kernels wait for: all that their epilogues read, too.

A kernel adds a second tensor as it writes its own results, the first of them long before its end (cuDNN and cuBLAS take
it as an operand of the fused kernel). So it starts when that is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.errors import GraphError
from pimflow.ir import Node

Reads = Mapping[str, Sequence[str]]
"""By the name of a node, values that are read by what is fused into it and made by another kernel among the nodes."""


def epilogue_reads(nodes: Sequence[Node]) -> Reads:
    """What kernels read for what is fused into them, of what others among the nodes make."""
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
    """The nodes with each behind all that its kernel waits for, else in the order in which they are.

    Raises:
        GraphError: a kernel waits for itself, as more than one value leaves it.
    """
    makers = {name: node for node in nodes for name in node.outputs if name}
    place = {node.name: index for index, node in enumerate(nodes)}
    if all(place[makers[name].name] < place[root] for root, names in reads.items() for name in names):
        return nodes
    order: list[Node] = []
    done: dict[str, bool] = {}  # False while what a node waits for is being put before it
    for last in nodes:
        stack = [last]
        while stack:
            node = stack[-1]
            first = node.name not in done
            awaited = [makers[name] for name in (*node.inputs, *reads.get(node.name, ())) if name in makers]
            waiting = [maker for maker in awaited if not done.get(maker.name)]
            if waiting and not first:
                raise GraphError(f"node {node.name!r} waits for what is fused into it")
            if waiting:
                done[node.name] = False
                stack += waiting[::-1]
                continue
            stack.pop()
            if not done.get(node.name):
                done[node.name] = True
                order.append(node)
    return order

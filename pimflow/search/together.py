"""The parts of joined decisions: those of each decision, and what they read from each other.

Only pipelines pass rows on before a value is complete: a reader of a value made by another decision waits for all its
parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pimflow.ir import Graph, OnDevice
from pimflow.ir.plan import Single
from pimflow.search.part_prices import Part
from pimflow.search.part_steps import Steps


class Item(NamedTuple):
    """A decision within joined decisions.

    Args:
        steps: its parts.
        takes: the values from outside that its parts read, for the parts that read any.
        makes: by value, the parts that make some of it.
        busy_us: how long it keeps every device busy, as known when it is created.
        into: the nodes outside of it that some of its nodes are fused into.
        whole: the node that it leaves whole, if it does.
    """

    steps: Steps
    takes: Sequence[tuple[int, Sequence[str]]]
    makes: Mapping[str, Sequence[int]]
    busy_us: Mapping[str, float]
    into: frozenset[str]
    whole: str | None


def item_of(graph: Graph, decision: Single, steps: Steps) -> Item:
    """The item of a decision over nodes of a graph, from its parts."""
    nodes = [graph.node(name) for name in decision.nodes]
    made = {name for node in nodes for name in node.outputs}
    makes: dict[str, list[int]] = {}
    takes: list[tuple[int, Sequence[str]]] = []
    for at, node, _ in steps.written:
        for name in node.outputs:
            makes.setdefault(name, []).append(at)
        outside = [name for name in graph.activations(node) if name not in made]
        if outside:
            takes.append((at, outside))
    roots = {node.placement.fused_into for node in nodes} - {None, *decision.nodes}
    into = frozenset(name for name in roots if name is not None)
    busy_us: dict[str, float] = {}
    for device, part in zip(steps.devices, steps.parts, strict=True):
        busy_us[device] = busy_us.get(device, 0.0) + part.us - part.avoidable_us
    return Item(steps, takes, makes, busy_us, into, decision.node if isinstance(decision, OnDevice) else None)


def together(items: Sequence[Item]) -> Steps:
    """The parts of decisions along the data flow.

    They determine a schedule if those of each decision do: moving rows from one decision to another is free if it is
    free within them. A node fused into a node of another decision has to be fused into the whole of it.
    """
    devices: list[str] = []
    parts: list[Part] = []
    reads: list[list[int]] = []
    written = []
    roots: list[int] = []
    makers: dict[str, Sequence[int]] = {}
    whole: dict[str, int] = {}
    complete = True
    for item in items:
        steps, first = item.steps, len(parts)
        complete &= steps.complete and item.into <= (whole.keys() if item.whole else set())
        devices += steps.devices
        parts += steps.parts
        reads += [[first + source for source in sources] for sources in steps.reads]
        written += [(first + at, node, stage) for at, node, stage in steps.written]
        for at, names in item.takes:
            reads[first + at] += [maker for name in names for maker in makers.get(name, ())]
        for name, makes in item.makes.items():
            makers[name] = [first + at for at in makes]
        if item.whole is None:
            roots += [first + root for root in steps.roots]
            continue
        whole[item.whole] = first
        roots.append(next((whole[name] for name in item.into if name in whole), first))
    return Steps(devices, parts, reads, written, roots, complete)

"""The parts of joined decisions: those of each decision, and what they read from each other.

Only pipelines pass rows on before a value is complete: a reader of a value made by another decision waits for all its
parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from pimflow.ir import Graph, OnDevice
from pimflow.ir.plan import Single
from pimflow.records import NamedTuple
from pimflow.search.part_prices import Part
from pimflow.search.part_steps import Steps, with_copies


class MadeValue(NamedTuple):
    """A value that a decision within joined decisions makes, with the minimum times until it is complete.

    Args:
        name: its name.
        us: from the start of the decision.
        reads: from each value from outside that it depends on, where that is given.
    """

    name: str
    us: float
    reads: Sequence[tuple[str, float]]


class JoinedItem(NamedTuple):
    """A decision within joined decisions.

    Args:
        parts: its parts.
        steps: these, with the copies around them as parts of their own.
        inputs: the values from outside that those parts read, for the parts that read any.
        outputs: by value, those parts that make some of it.
        busy_us: how long it keeps each of all devices busy, as known when it is created.
        made: the values that it makes, with times as known when it is created.
        fused_into: the nodes outside of it that some of its nodes are fused into.
        whole_node: the node that it leaves whole, if it does: as a single part.
    """

    parts: Sequence[Part]
    steps: Steps
    inputs: Sequence[tuple[int, Sequence[str]]]
    outputs: Mapping[str, Sequence[int]]
    busy_us: Sequence[float]
    made: Sequence[MadeValue]
    fused_into: frozenset[str]
    whole_node: str | None


def joined_item(graph: Graph, decision: Single, steps: Steps, devices: Sequence[str]) -> JoinedItem:
    """The item of a decision over nodes of a graph, from its parts; `devices` are all that there are."""
    nodes = [graph.node(name) for name in decision.nodes]
    own = {name for node in nodes for name in node.outputs}
    read = {name for node in nodes for name in graph.activations(node)} - own
    outputs: dict[str, list[int]] = {}
    inputs: list[tuple[int, Sequence[str]]] = []
    for at, node, _ in steps.written:  # of an operator that is written out, other values have names of its own
        for name in filter(own.__contains__, node.outputs):
            outputs.setdefault(name, []).append(at)
        outside = [name for name in node.inputs if name in read]
        if outside:
            inputs.append((at, outside))
    roots = {node.placement.fused_into for node in nodes} - {None, *decision.nodes}
    fused_into = frozenset(name for name in roots if name is not None)
    busy_us = dict.fromkeys(devices, 0.0)
    for device, part in zip(steps.devices, steps.parts, strict=True):
        busy_us[device] += part.us - part.saved_us
    whole_node = decision.node if isinstance(decision, OnDevice) and len(steps.parts) == 1 else None
    made = _made(steps, inputs, outputs)
    copied = with_copies(steps)
    if copied is not steps:
        first = list(dict.fromkeys(copied.heads))
        last = [start - 1 for start in (*first[1:], len(copied.parts))]
        inputs = [(first[at], names) for at, names in inputs]
        outputs = {name: [last[at] for at in parts] for name, parts in outputs.items()}
    return JoinedItem(steps.parts, copied, inputs, outputs, tuple(busy_us.values()), made, fused_into, whole_node)


def _made(
    steps: Steps, inputs: Sequence[tuple[int, Sequence[str]]], outputs: Mapping[str, Sequence[int]]
) -> list[MadeValue]:
    """The values that parts make, each with the longest chains of parts up to it."""
    read = dict(inputs)
    start = ""
    ends: list[dict[str, float]] = []  # by part, the longest chains from the start and from each value
    for at, (part, sources) in enumerate(zip(steps.parts, steps.reads, strict=True)):
        before = _longest([dict.fromkeys((start, *read.get(at, ())), 0.0), *[ends[source] for source in sources]])
        own_us = part.us - part.avoidable_us + part.copies_us
        ends.append({name: us + own_us for name, us in before.items()})
    found = []
    for name, parts in outputs.items():
        chains = _longest([ends[at] for at in parts])
        found.append(MadeValue(name, chains.pop(start), tuple(chains.items())))
    return found


def _longest(chains: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The longest of several chains from each value."""
    found: dict[str, float] = {}
    for some in chains:
        for name, us in some.items():
            found[name] = max(us, found.get(name, 0.0))
    return found


def busiest_us(items: Sequence[JoinedItem]) -> float:
    """A lower bound on the time of decisions: that of the busiest device."""
    return max(map(sum, zip(*[item.busy_us for item in items], strict=True)))


def longest_chain_us(items: Iterable[JoinedItem]) -> float:
    """A lower bound on the time of decisions along the data flow: the longest chain of parts, where readers wait for
    whole values."""
    ready_us: dict[str, float] = {}
    _follow(items, ready_us)
    return max(ready_us.values(), default=0.0)


def _follow(items: Iterable[JoinedItem], ready_us: dict[str, float]) -> None:
    """Add when the values that items make are ready, at the earliest."""
    for item in items:
        for name, us, reads in item.made:
            end_us = us
            for source, source_us in reads:
                if source in ready_us and ready_us[source] + source_us > end_us:
                    end_us = ready_us[source] + source_us
            ready_us[name] = end_us


class JoinedTimes:
    """The times of joined decisions of which variations are bounded: only what lies behind a replaced one is summed up
    again, in the same order.

    Args:
        items: the decisions, or None for the end of a branch.
    """

    def __init__(self, items: Sequence[JoinedItem | None]) -> None:
        some = next(item for item in items if item is not None)
        end = some._replace(busy_us=[0.0] * len(some.busy_us), made=())
        self._items = [end if item is None else item for item in items]
        self._busy_us = list(zip(*[item.busy_us for item in self._items], strict=True))
        self._busy_before_us = [list(accumulate(busy_us, initial=0.0)) for busy_us in self._busy_us]
        self._ready_us: list[dict[str, float]] = [{}]
        for item in self._items:
            self._ready_us.append(self._ready_us[-1].copy())
            _follow((item,), self._ready_us[-1])

    def least_us(self, changes: Sequence[tuple[int, int, Sequence[JoinedItem]]]) -> float:
        """A lower bound on the time with other items instead of first .. last-1, for each change (first, last, items),
        in order."""
        before = changes[0][0]
        ready_us = self._ready_us[before].copy()
        busiest_us = 0.0
        for device, busy_us in enumerate(self._busy_us):
            us, at = self._busy_before_us[device][before], before
            for first, last, items in changes:
                us = sum(busy_us[at:first], us)
                for item in items:
                    us += item.busy_us[device]
                at = last
            us = sum(busy_us[at:], us)
            busiest_us = max(busiest_us, us)
        at = before
        for first, last, items in changes:
            _follow(self._items[at:first], ready_us)
            _follow(items, ready_us)
            at = last
        _follow(self._items[at:], ready_us)
        return max(busiest_us, max(ready_us.values(), default=0.0))


def join_parts(items: Sequence[JoinedItem]) -> Steps:
    """The parts of decisions along the data flow, with the copies around them.

    They determine a schedule if those of each decision do: moving rows from one decision to another is free if it is
    free within them. A node fused into a node of another decision has to be fused into the whole of it.
    """
    devices: list[str] = []
    parts: list[Part] = []
    reads: list[list[int]] = []
    written = []
    roots: list[int] = []
    producers: dict[str, Sequence[int]] = {}
    whole_parts: dict[str, int] = {}
    heads: list[int] = []
    complete = True
    for item in items:
        steps, first = item.steps, len(parts)
        complete &= steps.complete and item.fused_into <= (whole_parts.keys() if item.whole_node else set())
        heads += [first + head for head in steps.heads or range(len(steps.parts))]
        devices += steps.devices
        parts += steps.parts
        reads += [[first + source for source in sources] for sources in steps.reads]
        written += [(first + at, node, stage) for at, node, stage in steps.written]
        for at, names in item.inputs:
            reads[first + at] += [producer for name in names for producer in producers.get(name, ())]
        for name, outputs in item.outputs.items():
            producers[name] = [first + at for at in outputs]
        if item.whole_node is None:
            roots += [first + root for root in steps.roots]
            continue
        whole_parts[item.whole_node] = first
        root = next((whole_parts[name] for name in item.fused_into if name in whole_parts), first)
        roots += [root] * len(steps.parts)
    return Steps(devices, parts, reads, written, roots, complete, heads)

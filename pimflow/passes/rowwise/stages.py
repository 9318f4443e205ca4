"""Which rows of its nodes the stages of a pipeline make, computed from the last node backwards.

Stage k of a node makes the rows that stages 0 to k of its readers in the run need and earlier stages of the node have
not made. So the rows of a run's nodes do not depend on what comes before them: a longer run with the same end has the
same rows, plus those of its additional nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from pimflow.ir import Graph, Node, Refusal
from pimflow.ir.analysis.regions import node_rows, readings, row_parts

Spans = list[tuple[int, int]]
"""By stage, rows of one node."""


class StageRows:
    """The rows of the nodes of a run, which starts as its last node and is extended at its front.

    Args:
        graph: the graph of the nodes.
        last: the run's last node.
        stage_rows: how many of its rows each stage makes, in the order in which stages run.
        bottom_first: whether the first stage is the bottom (highest rows) of the map.
    """

    def __init__(self, graph: Graph, last: Node, stage_rows: Sequence[int], bottom_first: bool) -> None:
        self._graph = graph
        self._parts = row_parts(graph)
        self._readings = readings(graph)
        self._bottom_first = bottom_first
        self._done: dict[str, Spans] = {}
        """By node, the rows made by the end of every stage."""
        total = sum(stage_rows)
        ends = accumulate(stage_rows)
        spans = [(total - end, total) if bottom_first else (0, end) for end in ends]
        reading = self._readings[last.name]
        self._enter(last, spans, leaves=reading.is_output or bool(reading.readers))

    def extend(self, node: Node) -> Refusal | None:
        """Add a node before the others, one of which reads it; return why its rows cannot be made stage by stage, if
        so."""
        reading = self._readings[node.name]
        leaves = reading.is_output
        needed: Spans = []
        for name, places in reading.readers.items():
            spans = self._done.get(name)
            if spans is None:
                leaves = True
                continue
            refusal = self._ask(name, spans, node, places, needed)
            if refusal is not None:
                return refusal
        if not needed:
            return Refusal(f"{node.name}: is not read within the run")
        self._enter(node, needed, leaves=leaves)
        return None

    def fresh(self, name: str) -> Spans:
        """The rows of a node that every stage adds to those of earlier stages; start is stop if there are none."""
        spans = self._done[name]
        if self._bottom_first:
            return [spans[0], *[(start, before) for (before, _), (start, _) in pairwise(spans)]]
        return [spans[0], *[(before, stop) for (_, before), (_, stop) in pairwise(spans)]]

    def _ask(self, reader: str, spans: Spans, node: Node, places: Sequence[int], needed: Spans) -> Refusal | None:
        """Widen `needed` by the rows of a node that a reader in the run needs for its own rows, stage by stage."""
        for stage, (start, stop) in enumerate(spans):
            part = self._parts[reader, start, stop]
            if isinstance(part, Refusal):
                return part
            for place in places:
                span = part.spans[place]
                if not isinstance(span, tuple):
                    return Refusal(f"{reader}: reads {node.name} whole, not row by row")
                if stage < len(needed):
                    needed[stage] = (min(span[0], needed[stage][0]), max(span[1], needed[stage][1]))
                else:
                    needed.append(span)
        return None

    def _enter(self, node: Node, spans: Spans, *, leaves: bool) -> None:
        """Add a node; `leaves` is whether something other than the later nodes of the run reads its output."""
        if leaves:
            self._widen_to_all(spans, node_rows(self._graph, node))
        self._done[node.name] = spans

    def _widen_to_all(self, spans: Spans, rows: int) -> None:
        """Make all rows of a value that leaves the run: unread rows at the borders belong to the nearest stage."""
        if self._bottom_first:
            spans[:] = [(start, rows) for start, _ in spans[:-1]] + [(0, rows)]
        else:
            spans[:] = [(0, stop) for _, stop in spans[:-1]] + [(0, rows)]


def rows_made(
    graph: Graph, run: Sequence[str], stage_rows: Sequence[int], bottom_first: bool
) -> dict[str, Spans] | Refusal:
    """By node of a run, the rows that every stage makes of it; or why they cannot be made stage by stage."""
    nodes = [graph.node(name) for name in run]
    rows_of = StageRows(graph, nodes[-1], stage_rows, bottom_first)
    for node in reversed(nodes[:-1]):
        refusal = rows_of.extend(node)
        if refusal is not None:
            return refusal
    return {name: rows_of.fresh(name) for name in run}

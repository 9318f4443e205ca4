"""Pipelining: a run of nodes is cut into stages along its rows, so that neighbours on two devices work at once.

z = b(a(x))   becomes   y0 = a(x[rows of stage 0])
                        z0 = b(y0)                     while   y1 = a(x[rows of stage 1])
                        z1 = b(y0 and y1)              over the rows that it needs of both
                        z  = concat(z0, z1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

from pimflow.ir import Graph, Node
from pimflow.ir.analysis.regions import leaving_values, node_rows, part_finder, run_refusal
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import Site, device_refusal
from pimflow.passes.rowwise.base import RowwisePass
from pimflow.passes.rowwise.parts import Layout, PartJob
from pimflow.passes.rowwise.writer import PartWriter

Spans = list[tuple[int, int]]
"""By stage: the rows of one node that are made by the end of the stage."""


@dataclass(frozen=True)
class Pipelining(RowwisePass):
    """Cuts a run of nodes into stages: stage k of one node runs beside stage k+1 of the node before it.

    Stage k of a node makes the rows that stages 0 to k of its readers in the run need and earlier stages of the node
    have not made: nothing is computed twice. A node has no part in a stage that finds all its rows made already, and
    rows that nobody reads are not made.

    Args:
        nodes: the run, in order: each node but the last is read by a later one. It may begin with several nodes that
            read values from outside, and have branches.
        devices: the device of each node.
        stage_rows: output rows of the last node that each stage makes, in the order in which stages are run; all of
            its rows together.
        choice: what the backends of other devices are asked for (a mapping policy, a strategy); "" is their default.
        bottom_first: whether the first stage run is the bottom (highest rows) of the map.
        host: the device that can run any node, and runs all movements.
    """

    name: ClassVar[str] = "pipelining"

    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    stage_rows: tuple[int, ...]
    choice: str = ""
    bottom_first: bool = False
    host: str = "gpu"

    @property
    def covers(self) -> tuple[str, ...]:
        """The run."""
        return self.nodes

    def writer(self, site: Site) -> PartWriter:
        """Movements on the host."""
        return PartWriter(site, self.host, self.choice)

    def layout(self, graph: Graph) -> Layout | Refusal:
        """The stages, one after the other."""
        nodes = [graph.node(name) for name in self.nodes]
        refusal = self._run_refusal(graph, nodes)
        if refusal is not None:
            return refusal
        leaving = leaving_values(graph, nodes)
        progress = self._progress(graph, nodes, frozenset(leaving))
        if isinstance(progress, Refusal):
            return progress
        fresh = [self._fresh_rows(progress[node.name]) for node in nodes]
        jobs: list[PartJob] = []
        part_of = part_finder(graph)
        for stage in range(len(self.stage_rows)):
            suffix = f"s{stage}"
            for node, device, rows in zip(nodes, self.devices, fresh, strict=True):
                start, stop = rows[stage]
                if start == stop:
                    continue
                part = part_of(node, start, stop)
                if isinstance(part, Refusal):
                    return part
                jobs.append(PartJob(node, start, stop, part, device, suffix, stage))
        return Layout(tuple(jobs), leaving)

    def _run_refusal(self, graph: Graph, nodes: Sequence[Node]) -> Refusal | None:
        if len(nodes) < 2 or len(self.stage_rows) < 2:
            return Refusal("a pipeline needs at least two nodes and two stages")
        if len(self.devices) != len(nodes):
            return Refusal(f"{len(self.devices)} devices for {len(nodes)} nodes")
        rows = node_rows(graph, nodes[-1])
        if min(self.stage_rows) < 1 or sum(self.stage_rows) != rows:
            return Refusal(f"stages of {self.stage_rows} rows do not make up the {rows} rows of {nodes[-1].name}")
        for node, device in zip(nodes, self.devices, strict=True):
            refusal = device_refusal(node, device, self.host)
            if refusal is not None:
                return refusal
        return run_refusal(graph, nodes)

    def _progress(self, graph: Graph, nodes: Sequence[Node], leaving: frozenset[str]) -> Mapping[str, Spans] | Refusal:
        """What is made of every node by the end of every stage, by node name; found from the last node backwards."""
        total = sum(self.stage_rows)
        ends = list(accumulate(self.stage_rows))
        last = [(total - end, total) if self.bottom_first else (0, end) for end in ends]
        done: dict[str, Spans] = {nodes[-1].name: last}
        producers = {output: node for node in nodes for output in node.outputs}
        for node in reversed(nodes):
            if node.output in leaving:
                self._widen_to_all(done[node.name], node_rows(graph, node))
            refusal = _ask_producers(graph, node, done, producers)
            if refusal is not None:
                return refusal
        return done

    def _widen_to_all(self, spans: Spans, rows: int) -> None:
        """All rows of a value that leaves the run are made: the unread ones at the edges with the nearest stage."""
        if self.bottom_first:
            spans[:] = [(start, rows) for start, _ in spans[:-1]] + [(0, rows)]
        else:
            spans[:] = [(0, stop) for _, stop in spans[:-1]] + [(0, rows)]

    def _fresh_rows(self, spans: Spans) -> Spans:
        """The rows that every stage adds to what stages before it have made."""
        if self.bottom_first:
            return [spans[0], *((start, before) for (before, _), (start, _) in pairwise(spans))]
        return [spans[0], *((before, stop) for (_, before), (_, stop) in pairwise(spans))]


def _ask_producers(graph: Graph, node: Node, done: dict[str, Spans], producers: Mapping[str, Node]) -> Refusal | None:
    """Adds what `node` needs to have made its rows, stage by stage, to what its producers in the run have to make."""
    wanted = [(index, producers[name]) for index, name in enumerate(node.inputs) if name in producers]
    if not wanted:
        return None
    part_of = part_finder(graph)
    for stage, (start, stop) in enumerate(done[node.name]):
        part = part_of(node, start, stop)
        if isinstance(part, Refusal):
            return part
        for index, producer in wanted:
            span = part.spans[index]
            if not isinstance(span, tuple):
                return Refusal(f"{node.name}: reads {producer.name} whole, not row by row")
            spans = done.setdefault(producer.name, [])
            if stage < len(spans):
                span = (min(span[0], spans[stage][0]), max(span[1], spans[stage][1]))
                spans[stage] = span
            else:
                spans.append(span)
    return None

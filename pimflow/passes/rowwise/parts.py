"""Which rows of every node of a region are computed in which part, and from which rows of its inputs.

The layout is arithmetic only; `part_writer` turns it into nodes. A decision that cannot be carried out is found here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pimflow.ir import Graph, Node, Pipeline, RowPart, SplitRows
from pimflow.ir.analysis.regions import leaving_values, node_part, node_rows, run_refusal
from pimflow.ir.refusal import Refusal


@dataclass(frozen=True, slots=True)
class PartJob:
    """Rows [start, stop) of one node, computed on one device.

    `stage` is the pipeline's stage, None in a split; `suffix` tells the parts of a node apart in names.
    """

    node: Node
    start: int
    stop: int
    part: RowPart
    device: str
    suffix: str
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a region in an order in which they can be computed, and the values that leave it."""

    jobs: tuple[PartJob, ...]
    leaving: tuple[str, ...]


def split_layout(graph: Graph, decision: SplitRows, host: str) -> Layout | Refusal:
    """The two halves of an MD-DP split, followers included; `host` computes the first half and all followers."""
    nodes = [graph.node(name) for name in decision.nodes]
    rows = node_rows(graph, nodes[0])
    refusal = _split_refusal(graph, nodes, decision.gpu_rows)
    if refusal is not None:
        return refusal
    jobs: list[PartJob] = []
    for half, start, stop in ((host, 0, decision.gpu_rows), (decision.device, decision.gpu_rows, rows)):
        for node in nodes:
            part = node_part(graph, node, start, stop)
            if isinstance(part, Refusal):
                return part
            jobs.append(PartJob(node, start, stop, part, half if node is nodes[0] else host, half))
    return Layout(tuple(jobs), leaving_values(graph, nodes))


def _split_refusal(graph: Graph, nodes: Sequence[Node], gpu_rows: int) -> Refusal | None:
    first = nodes[0]
    if not first.op.is_contraction:
        return Refusal(f"{first.name}: {first.kind} is no convolution or matrix product")
    rows = node_rows(graph, first)
    if not 0 < gpu_rows < rows:
        return Refusal(f"{first.name}: {gpu_rows} of {rows} rows on the GPU leave a part empty")
    made = {first.output}
    for node in nodes[1:]:
        if not node.op.is_elementwise:
            return Refusal(f"{node.name}: {node.kind} is not elementwise and cannot follow the halves")
        if made.isdisjoint(node.inputs):
            return Refusal(f"{node.name}: does not read what the halves make")
        made.add(node.output)
        if node_rows(graph, node) != rows:
            return Refusal(f"{node.name}: makes {node_rows(graph, node)} rows of {rows}")
    return None


def pipeline_layout(graph: Graph, decision: Pipeline, host: str) -> Layout | Refusal:
    """The stages of a pipeline.

    Stage k of a node makes the rows that stages 0 to k of its readers in the run need and earlier stages of the node
    have not made: nothing is computed twice. A node has no part in a stage that finds all its rows made already, and
    rows that nobody reads are not made.
    """
    nodes = [graph.node(name) for name in decision.run]
    refusal = _pipeline_refusal(graph, nodes, decision, host)
    if refusal is not None:
        return refusal
    leaving = leaving_values(graph, nodes)
    progress = _progress(graph, nodes, decision, frozenset(leaving))
    if isinstance(progress, Refusal):
        return progress
    jobs: list[PartJob] = []
    for stage in range(len(decision.stage_rows)):
        for node, device in zip(nodes, decision.devices, strict=True):
            start, stop = _fresh_rows(progress[node.name], stage, decision.bottom_first)
            if start == stop:
                continue
            part = node_part(graph, node, start, stop)
            if isinstance(part, Refusal):
                return part
            jobs.append(PartJob(node, start, stop, part, device, f"s{stage}", stage))
    return Layout(tuple(jobs), leaving)


def _pipeline_refusal(graph: Graph, nodes: Sequence[Node], decision: Pipeline, host: str) -> Refusal | None:
    if len(nodes) < 2 or len(decision.stage_rows) < 2:
        return Refusal("a pipeline has two nodes and two stages at least")
    if len(decision.devices) != len(nodes):
        return Refusal(f"{len(decision.devices)} devices for {len(nodes)} nodes")
    rows = node_rows(graph, nodes[-1])
    if min(decision.stage_rows) < 1 or sum(decision.stage_rows) != rows:
        return Refusal(f"stages of {decision.stage_rows} rows do not make up the {rows} rows of {nodes[-1].name}")
    for node, device in zip(nodes, decision.devices, strict=True):
        if device != host and not node.op.is_contraction:
            return Refusal(f"{node.name}: {node.kind} cannot run on {device.upper()}")
    return run_refusal(graph, nodes)


Progress = Mapping[str, Sequence[tuple[int, int]]]
"""By node name and stage: the rows made by the end of that stage."""


def _progress(graph: Graph, nodes: Sequence[Node], decision: Pipeline, leaving: frozenset[str]) -> Progress | Refusal:
    total = sum(decision.stage_rows)
    ends = list(accumulate(decision.stage_rows))
    last = [(total - end, total) if decision.bottom_first else (0, end) for end in ends]
    done: dict[str, list[tuple[int, int]]] = {nodes[-1].name: last}
    producers = {output: node for node in nodes for output in node.outputs}
    for node in reversed(nodes):
        if node.output in leaving:
            _widen_to_all(done[node.name], node_rows(graph, node), decision.bottom_first)
        refusal = _ask_producers(graph, node, done, producers)
        if refusal is not None:
            return refusal
    return done


def _widen_to_all(spans: list[tuple[int, int]], rows: int, bottom_first: bool) -> None:
    """All rows of a value that leaves the run are made: the unread ones at the edges with the nearest stage."""
    if bottom_first:
        spans[:] = [(start, rows) for start, _ in spans[:-1]] + [(0, rows)]
    else:
        spans[:] = [(0, stop) for _, stop in spans[:-1]] + [(0, rows)]


def _ask_producers(
    graph: Graph, node: Node, done: dict[str, list[tuple[int, int]]], producers: Mapping[str, Node]
) -> Refusal | None:
    """Adds what `node` needs to have made its rows, stage by stage, to what its producers in the run have to make."""
    wanted = [(index, producers[name]) for index, name in enumerate(node.inputs) if name in producers]
    if not wanted:
        return None
    for stage, (start, stop) in enumerate(done[node.name]):
        part = node_part(graph, node, start, stop)
        if isinstance(part, Refusal):
            return part
        for index, producer in wanted:
            span = part.spans[index]
            if span is None:
                return Refusal(f"{node.name}: reads {producer.name} whole, not row by row")
            spans = done.setdefault(producer.name, [])
            if stage < len(spans):
                span = (min(span[0], spans[stage][0]), max(span[1], spans[stage][1]))
                spans[stage] = span
            else:
                spans.append(span)
    return None


def _fresh_rows(spans: Sequence[tuple[int, int]], stage: int, bottom_first: bool) -> tuple[int, int]:
    start, stop = spans[stage]
    if stage == 0:
        return start, stop
    before_start, before_stop = spans[stage - 1]
    return (start, before_start) if bottom_first else (before_stop, stop)

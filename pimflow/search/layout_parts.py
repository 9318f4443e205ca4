"""Layouts as the search sees them: parts, what each of them reads, and whether only the parts take time.

Around the parts, `PartWriter` writes Slices, which are free, and Concats of rows from several parts. The Concats are
free too if every part has its place among the rows of its value: if the nodes of the layout move no data themselves, or
concatenate values along other axes as was decided for the whole graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from pimflow.ir import Concat, Graph, Node, RowPart
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.passes.rowwise.parts import PartJob
from pimflow.records import NamedTuple


class LayoutPart(NamedTuple):
    """Some rows of a node among the parts of a layout.

    Args:
        device: the device that the layout gives it.
        reads: the earlier parts that it reads.
        root: the part of the same rows that it is fused into; None if there is none.
        fused_outside: whether it is fused into a node outside the layout.
    """

    node: Node
    start: int
    stop: int
    part: RowPart
    device: str
    stage: int | None
    reads: Sequence[int]
    root: int | None
    fused_outside: bool


class LayoutParts(NamedTuple):
    """The parts of a layout; `complete` is whether nothing else takes time."""

    parts: Sequence[LayoutPart]
    complete: bool


def layout_parts(graph: Graph, jobs: Sequence[PartJob]) -> LayoutParts:
    """The parts of a layout of nodes of a graph, each with the parts that it reads."""
    made: dict[str, list[tuple[int, int, int]]] = {}
    at = {(job.node.name, job.suffix): index for index, job in enumerate(jobs)}
    names = {job.node.name for job in jobs}
    parts = []
    for index, job in enumerate(jobs):
        node, start, stop = job.node, job.start, job.stop
        reads = [
            producer
            for name, span in zip(node.inputs, job.part.spans, strict=True)
            if name in made and isinstance(span, tuple)
            for first, last, producer in made[name]
            if first < span[1] and span[0] < last
        ]
        made.setdefault(node.outputs[0], []).append((start, stop, index))
        into = node.placement.fused_into
        root = None if into is None else at.get((into, job.suffix))
        if root is not None and (jobs[root].start, jobs[root].stop) != (start, stop):
            root = None
        fused_outside = into is not None and into not in names
        parts.append(LayoutPart(node, start, stop, job.part, job.device, job.stage, reads, root, fused_outside))
    return LayoutParts(parts, _follows_from_rows(graph, jobs))


def _follows_from_rows(graph: Graph, jobs: Sequence[PartJob]) -> bool:
    """Whether the rows of the parts determine what is moved between them (nothing), and what stays fused."""
    nodes = {job.node.output: job.node for job in jobs}
    if not all(keeps_places(graph, node) for node in nodes.values()):
        return False
    rows = {(job.node.name, job.suffix): (job.start, job.stop) for job in jobs}
    kernels = {name: node.placement.fused_into or node.name for name, node in nodes.items()}
    return all(
        rows.get((nodes[name].name, job.suffix)) == span
        for job in jobs
        if job.node.placement.fused_into is not None
        for name, span in zip(job.node.inputs, job.part.spans, strict=True)
        if kernels.get(name) == job.node.placement.fused_into
    )


def keeps_places(graph: Graph, node: Node) -> bool:
    """Whether a node's output has a place of its own, or the place that was chosen for the whole graph."""
    if any(element_bytes(graph.value(name).dtype) is None for name in (*node.inputs, *node.outputs) if name):
        return False
    if not node.op.is_movement:
        return True
    beside = isinstance(node.op, Concat) and node.op.axis != len(graph.shape(node.output)) - 2
    return beside and node.placement.movement is not None

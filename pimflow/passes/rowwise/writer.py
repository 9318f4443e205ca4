"""Turns the layout of a region into nodes: the parts, and the Slices and Concats that bring rows to them.

Movements are few and contiguous. A part reads rows of a value from outside the region through one Slice, which it
shares with every part of the plan that reads the same rows. It reads rows made inside the region from the one part that
holds them; if they are in several parts, from a Concat of only these, so that it does not wait for later parts. A value
that leaves the region is the Concat of all its parts, under its old name, so nothing outside the region changes.
"""

from __future__ import annotations

from pimflow.ir import Concat, Node, Op, Placement, Slice
from pimflow.ir.analysis.padding import uneven_padding
from pimflow.ir.analysis.rows import Shape, Span, row_count
from pimflow.ir.ops.base import ConstantCut
from pimflow.passes.decision import Site
from pimflow.passes.rowwise.parts import Layout, PartJob
from pimflow.records import dataclass


@dataclass(frozen=True, slots=True)
class _RowRange:
    """A value that holds the rows [start, stop) of another one."""

    start: int
    stop: int
    value: str


class PartWriter:
    """Writes the nodes of one region.

    Args:
        site: where they are written.
        host: the device that runs the movements.
        choice: the choice to request from the backends of the other devices; "" is their default.
    """

    def __init__(self, site: Site, host: str, choice: str) -> None:
        self._site = site
        self._editor = site.editor
        self._host = host
        self._choice = choice or None
        self._nodes: list[Node] = []
        self._parts: dict[str, list[_RowRange]] = {}
        self._moved: dict[tuple[str, int, int], _RowRange] = {}
        self._jobs: dict[tuple[str, str], tuple[PartJob, str]] = {}  # by node and suffix, with the part's name
        self._divided: set[str] = set()

    def write(self, layout: Layout) -> list[Node]:
        """The region's nodes, in the order of the layout."""
        self._parts = {job.node.output: [] for job in layout.jobs}
        last = {job.node.output: index for index, job in enumerate(layout.jobs)}
        closing: dict[int, list[str]] = {}
        for value in layout.leaving:
            closing.setdefault(last[value], []).append(value)
        for index, job in enumerate(layout.jobs):
            self._write_part(job)
            for value in closing.get(index, ()):
                self._bring(value, (0, row_count(self._shape(value))), job)
        return self._nodes

    def _write_part(self, job: PartJob) -> None:
        node = job.node
        sources = tuple(self._source(name, span, job) for name, span in zip(node.inputs, job.part.spans, strict=True))
        output = self._name_rows(node.output, job.start, job.stop, job.suffix)
        name = self._editor.new_node_name(f"{node.name}_{job.suffix}")
        placement = Placement(  # not with replace, which would take most of the time of writing a part
            device=job.device,
            region=self._site.region,
            stage=job.stage,
            choice=self._choice if job.device != self._host else None,
            origin=node.name,
            fused_into=self._fused_into(job),
            movement=node.placement.movement,
            padding=node.placement.padding if any(uneven_padding(job.part.op)) else None,
            narrow=node.placement.narrow,
        )
        self._nodes.append(Node(job.part.op, sources, (output,), name, placement, node.tags))
        self._jobs[node.name, job.suffix] = (job, name)
        self._divided.add(node.name)
        self._site.first_parts.setdefault(node.name, name)
        self._parts[node.output].append(_RowRange(job.start, job.stop, output))

    def _source(self, name: str, span: Span | ConstantCut | None, job: PartJob) -> str:
        """The name of the value that a part reads for an input."""
        if span is None:
            return name
        if isinstance(span, tuple):
            return self._bring(name, span, job)
        arrays = [self._editor.graph.constants.get(item) for item in job.node.inputs]
        return self._editor.new_constant(f"{name}_{job.suffix}", span(arrays))

    def _fused_into(self, job: PartJob) -> str | None:
        """The part of the producer with the same rows, which a part is fused into; None if there is no such part."""
        into = job.node.placement.fused_into
        if into is None:
            return None
        other, name = self._jobs.get((into, job.suffix), (None, self._site.first_parts.get(into, into)))
        rows_differ = other is None or (other.start, other.stop) != (job.start, job.stop)
        return None if into in self._divided and rows_differ else name

    def _bring(self, value: str, span: Span, job: PartJob) -> str:
        """The name of a value that holds exactly these rows."""
        parts = self._parts.get(value)
        if parts is None:
            return self._cut_from_outside(value, span, job)
        held = [part for part in parts if part.start < span[1] and span[0] < part.stop]
        held.sort(key=lambda part: part.start)
        return self._cut(self._join(held, value, job), value, span, job)

    def _cut_from_outside(self, value: str, span: Span, job: PartJob) -> str:
        """Rows of a value that the region does not make, cut once for all decisions of a plan."""
        cuts, key = self._site.cuts, (value, *span)
        if key not in cuts:
            cuts[key] = self._cut(_RowRange(0, row_count(self._shape(value)), value), value, span, job)
        return cuts[key]

    def _join(self, parts: list[_RowRange], value: str, job: PartJob) -> _RowRange:
        """Adjacent parts as one value."""
        if len(parts) == 1:
            return parts[0]
        start, stop = parts[0].start, parts[-1].stop
        if (value, start, stop) not in self._moved:
            name = self._name_rows(value, start, stop, f"rows{start}_{stop}")
            op = Concat(len(self._shape(value)) - 2)
            self._move(op, tuple(part.value for part in parts), name, job)
            self._moved[value, start, stop] = _RowRange(start, stop, name)
        return self._moved[value, start, stop]

    def _cut(self, rows: _RowRange, value: str, span: Span, job: PartJob) -> str:
        """The rows `span` from a value that holds them and maybe more."""
        start, stop = span
        if (rows.start, rows.stop) == span:
            return rows.value
        if (value, start, stop) not in self._moved:
            self._moved[value, start, stop] = _RowRange(start, stop, self._slice(rows, value, span, job))
        return self._moved[value, start, stop].value

    def _slice(self, rows: _RowRange, value: str, span: Span, job: PartJob) -> str:
        start, stop = span[0] - rows.start, span[1] - rows.start
        array = self._editor.graph.constants.get(value)
        if array is not None:  # a view: nothing is copied or moved
            return self._editor.new_constant(f"{value}_rows{span[0]}_{span[1]}", array[..., start:stop, :])
        name = self._name_rows(value, span[0], span[1], f"rows{span[0]}_{span[1]}")
        self._move(Slice(len(self._shape(value)) - 2, start, stop), (rows.value,), name, job)
        return name

    def _move(self, op: Op, sources: tuple[str, ...], output: str, job: PartJob) -> None:
        name = self._editor.new_node_name(f"{type(op).__name__.lower()}_{output}")
        placement = Placement(self._host, self._site.region, job.stage, origin=job.node.name)
        self._nodes.append(Node(op, sources, (output,), name, placement))

    def _shape(self, value: str) -> Shape:
        shape = self._editor.value(value).shape
        assert shape is not None, f"the rows of {value!r} are known"
        return shape

    def _name_rows(self, value: str, start: int, stop: int, suffix: str) -> str:
        """A name for some rows of a value: its own name for all rows of a value made in the region."""
        shape = self._shape(value)
        if value in self._parts and stop - start == shape[-2]:
            return value
        return self._editor.new_value(f"{value}_{suffix}", (*shape[:-2], stop - start, shape[-1]), self._dtype(value))

    def _dtype(self, value: str) -> str:
        return self._editor.value(value).dtype

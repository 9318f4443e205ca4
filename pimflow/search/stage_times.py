"""What pipelines take at least by the rows of their stages alone, told before they are laid out.

Every device makes its parts one after the other. Which rows these are follows from the end of a run
(`passes/rowwise/stages.py`), so that thousands of runs share what is found out for a few hundred ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pimflow.ir import Graph, Node, Pipeline, Refusal
from pimflow.ir.analysis.regions import part_finder
from pimflow.passes.rowwise.stages import StageRows
from pimflow.search.laid_out import LaidPart


class Part(Protocol):
    """What some rows of a node take at least on a device, and how much of that a plan need not wait for."""

    us: float
    avoidable_us: float


class Parts(Protocol):
    """Prices parts, each once."""

    def part(self, laid: LaidPart, device: str, choice: str) -> Part:
        """Some rows of a node by themselves on a device, under a choice of its backend."""

    def has_kernel(self, node: Node, root: str, device: str) -> bool:
        """Whether a node that is fused into another has a kernel of its own where that runs on a device."""


class StageTimes:
    """What the stages of pipelines over one graph keep devices busy for at least."""

    def __init__(self, graph: Graph, parts: Parts) -> None:
        self._graph = graph
        self._parts = parts
        self._ends: dict[tuple[str, tuple[int, ...], bool], _End] = {}

    def least_us(self, pipeline: Pipeline) -> float:
        """The longest that a device is busy; 0 where the rows of the stages cannot be told."""
        key = (pipeline.run[-1], pipeline.stage_rows, pipeline.bottom_first)
        end = self._ends.get(key)
        if end is None:
            end = self._ends[key] = _End(self._graph, *key)
        if not end.reaches(pipeline.run):
            return 0.0
        at = dict(zip(pipeline.run, pipeline.devices, strict=True))
        busy = dict.fromkeys(pipeline.devices, 0.0)
        for name, device in at.items():
            free = self._free_stages(end, name, at)
            if free is None:
                continue
            for stage, part in enumerate(self._parts_of(end, name, device, pipeline.choice)):
                if part is not None and stage not in free:
                    busy[device] += part.us - part.avoidable_us
        return max(busy.values())

    def _free_stages(self, end: _End, name: str, at: dict[str, str]) -> Sequence[int] | None:
        """The stages in which a node is part of another's kernel; None if it is in all."""
        node = self._graph.node(name)
        root = node.placement.fused_into
        if root is None:
            return ()
        if root not in at:
            return None
        return () if self._parts.has_kernel(node, root, at[root]) else end.stages_alike(name, root)

    def _parts_of(self, end: _End, name: str, device: str, choice: str) -> Sequence[Part | None]:
        """By stage, those of a node; None for stages in which it makes nothing."""
        key = (name, device, choice)
        if key not in end.parts:
            node, part_of = self._graph.node(name), part_finder(self._graph)
            found: list[Part | None] = []
            for start, stop in end.rows.fresh(name):
                part = None if start == stop else part_of(node, start, stop)
                if part is None or isinstance(part, Refusal):
                    found.append(None)
                    continue
                laid = LaidPart(node, start, stop, part, device, None, (), None, False)
                found.append(self._parts.part(laid, device, choice))
            end.parts[key] = found
        return end.parts[key]


class _End:
    """The rows of runs that end with a node in some stages, as far to the front as has been asked for."""

    def __init__(self, graph: Graph, last: str, stage_rows: tuple[int, ...], bottom_first: bool) -> None:
        self.rows = StageRows(graph, graph.node(last), stage_rows, bottom_first)
        self.parts: dict[tuple[str, str, str], Sequence[Part | None]] = {}
        self._graph = graph
        self._names = [last]
        """From the last one on to the front."""
        self._alike: dict[str, Sequence[int]] = {}

    def reaches(self, run: Sequence[str]) -> bool:
        """Whether the rows of all nodes of a run are known."""
        backwards = run[::-1]
        for name in backwards[len(self._names) :]:
            if tuple(self._names) != tuple(backwards[: len(self._names)]):
                return False
            if self.rows.extend(self._graph.node(name)) is not None:
                return False
            self._names.append(name)
        return tuple(self._names[: len(run)]) == tuple(backwards)

    def stages_alike(self, name: str, root: str) -> Sequence[int]:
        """The stages in which two nodes make the same rows."""
        if name not in self._alike:
            both = zip(self.rows.fresh(name), self.rows.fresh(root), strict=True)
            self._alike[name] = [stage for stage, (own, other) in enumerate(both) if own == other]
        return self._alike[name]

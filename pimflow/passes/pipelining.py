"""Pipelining: a run of nodes is cut into stages along its rows, so that neighbours on two devices run concurrently.

z = b(a(x))   becomes   y0 = a(x[rows of stage 0])
                        z0 = b(y0)                     while   y1 = a(x[rows of stage 1])
                        z1 = b(y0 and y1)              over the rows that it needs of both
                        z  = concat(z0, z1)

Within a stage the rows of a node may be divided between the host and the node's device, as MD-DP divides those of a
whole node. So neighbours that are both divided need no synchronisation between them: each part waits only for the rows
that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from pimflow.ir import Graph, Node
from pimflow.ir.analysis.regions import leaving_values, node_rows, row_parts, run_refusal
from pimflow.ir.refusal import Refusal
from pimflow.passes.decision import Site, device_refusal
from pimflow.passes.rowwise.base import RowwisePass
from pimflow.passes.rowwise.parts import Layout, PartJob
from pimflow.passes.rowwise.stages import Spans, rows_made
from pimflow.passes.rowwise.writer import PartWriter
from pimflow.records import NamedTuple, dataclass


class _Share(NamedTuple):
    """Rows start .. stop-1 of a node in a stage, on a device; the suffix distinguishes the names of the parts."""

    start: int
    stop: int
    device: str
    suffix: str


@dataclass(frozen=True)
class Pipelining(RowwisePass):
    """Cuts a run of nodes into stages: stage k of one node runs concurrently with stage k+1 of the node before it.

    Stage k of a node makes the rows that stages 0 to k of its readers in the run need and earlier stages of the node
    have not made: nothing is computed twice. A node has no part in a stage whose rows all exist already, and rows that
    nobody reads are not computed.

    Args:
        nodes: the run, in order: each node but the last is read by a later one. It may begin with several nodes that
            read values from outside, and have branches.
        devices: the device of each node.
        stage_rows: output rows of the last node that each stage makes, in the order in which stages run; together they
            are all of its rows.
        choice: the choice to request from the backends of other devices (a mapping policy, a strategy); "" is their
            default.
        bottom_first: whether the first stage is the bottom (highest rows) of the map.
        host_rows: by node, how many of its rows the host makes in each stage, the top ones; empty for a node that runs
            only on its device. A node that is fused into a divided one is divided in the same place. Empty if no node
            is divided.
        host: the device that can run any node, and runs all movements.
    """

    name: ClassVar[str] = "pipelining"

    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    stage_rows: tuple[int, ...]
    choice: str = ""
    bottom_first: bool = False
    host_rows: tuple[tuple[int, ...], ...] = ()
    host: str = "gpu"

    @property
    def covers(self) -> tuple[str, ...]:
        """The run."""
        return self.nodes

    def writer(self, site: Site) -> PartWriter:
        """A writer that puts movements on the host."""
        return PartWriter(site, self.host, self.choice)

    def layout(self, graph: Graph) -> Layout | Refusal:
        """The stages, one after the other."""
        nodes = [graph.node(name) for name in self.nodes]
        refusal = self._run_refusal(graph, nodes)
        if refusal is not None:
            return refusal
        made = rows_made(graph, self.nodes, self.stage_rows, self.bottom_first)
        if isinstance(made, Refusal):
            return made
        refusal = self._share_refusal(made)
        if refusal is not None:
            return refusal
        jobs: list[PartJob] = []
        parts = row_parts(graph)
        for stage in range(len(self.stage_rows)):
            for node, device in zip(nodes, self.devices, strict=True):
                for start, stop, where, suffix in self._shares(node, device, stage, made):
                    part = parts[node.name, start, stop]
                    if isinstance(part, Refusal):
                        return part
                    jobs.append(PartJob(node, start, stop, part, where, suffix, stage))
        return Layout(tuple(jobs), leaving_values(graph, nodes))

    def _shares(self, node: Node, device: str, stage: int, made: Mapping[str, Spans]) -> Iterator[_Share]:
        """The parts of a node in a stage.

        A node that is fused into a divided node is divided with it, and stays on the same device, if it makes the same
        rows.
        """
        start, stop = made[node.name][stage]
        root = node.placement.fused_into or ""
        follows = root in self._divided and made[root][stage] == (start, stop)
        on_host = device if follows else self.host
        counts = self._divided.get(root if follows else node.name)
        middle = start + counts[stage] if counts else start
        if start < middle < stop:
            beside = self.devices[self.nodes.index(root if follows else node.name)]
            yield _Share(start, middle, on_host, f"s{stage}_{self.host}")
            yield _Share(middle, stop, device, f"s{stage}_{beside}")
        elif start < stop:
            yield _Share(start, stop, device if middle == start else on_host, f"s{stage}")

    @cached_property
    def _divided(self) -> Mapping[str, tuple[int, ...]]:
        """By divided node, the rows on the host by stage."""
        return {name: counts for name, counts in zip(self.nodes, self.host_rows, strict=False) if counts}

    def _share_refusal(self, made: Mapping[str, Spans]) -> Refusal | None:
        for name, counts in self._divided.items():
            for stage, (on_host, (start, stop)) in enumerate(zip(counts, made[name], strict=True)):
                if not 0 <= on_host <= stop - start:
                    return Refusal(f"{name}: {on_host} rows on the host of the {stop - start} that stage {stage} makes")
        return None

    def _run_refusal(self, graph: Graph, nodes: Sequence[Node]) -> Refusal | None:
        if len(nodes) < 2 or len(self.stage_rows) < (1 if self._divided else 2):
            return Refusal("a pipeline needs at least two nodes, and two stages or rows that are divided within one")
        if len(self.devices) != len(nodes):
            return Refusal(f"{len(self.devices)} devices for {len(nodes)} nodes")
        if self.host_rows and len(self.host_rows) != len(nodes):
            return Refusal(f"host_rows has {len(self.host_rows)} entries for {len(nodes)} nodes")
        for name, device, counts in zip(self.nodes, self.devices, self.host_rows, strict=False):
            if counts and device == self.host:
                return Refusal(f"{name}: its rows are divided, but it only runs on the host")
            if counts and len(counts) != len(self.stage_rows):
                return Refusal(f"{name}: host_rows has {len(counts)} entries for {len(self.stage_rows)} stages")
        rows = node_rows(graph, nodes[-1])
        if min(self.stage_rows) < 1 or sum(self.stage_rows) != rows:
            return Refusal(f"stages of {self.stage_rows} rows do not add up to the {rows} rows of {nodes[-1].name}")
        for node, device in zip(nodes, self.devices, strict=True):
            refusal = device_refusal(node, device, self.host)
            if refusal is not None:
                return refusal
        return run_refusal(graph, nodes)

"""An epoch of mini-batch training by placement of the features, for readers and programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from statistics import mean
from typing import Any

from pimflow.errors import choice, counted
from pimflow.records import dataclass
from pimflow.report.tables import number, render_table

_BASELINE = "gather-pageable"


@dataclass(frozen=True)
class Kind:
    """The vertices of one kind in a heterogeneous graph.

    Args:
        name, vertices, features: of the kind.
        is_trained: whether batches start from these vertices.
        drawn: mean number of vertices per batch.
    """

    name: str
    vertices: int
    features: int
    is_trained: bool
    drawn: float


@dataclass(frozen=True)
class Relation:
    """An edge list of a heterogeneous graph.

    Args:
        name, source, destination, edges: of the list.
        fan_outs: neighbours that are sampled along it, by hop.
        drawn: mean number of edges per batch.
    """

    name: str
    source: str
    destination: str
    edges: int
    fan_outs: tuple[int, ...]
    drawn: float


@dataclass(frozen=True)
class Loop:
    """A training loop, and everything about it that does not depend on the placement; times are means per batch.

    Args:
        graph, model, loader: names.
        is_estimate: whether the graph is a random one of a published size.
        vertices, edges, features, feature_bytes: of the graph; `features` is None if its kinds differ in it.
        kinds, relations: of a graph with several edge lists; otherwise empty.
        fan_outs, batch, train: of the loop; `fan_outs` is None if relations differ in it.
        batches, drawn: steps of an epoch, and how many of them were sampled and counted.
        batch_vertices, batch_edges: of every batch that was sampled.
        sampling_us: sampling a batch on the host.
        structure_us: copying its edges to the GPU.
        forward_us, backward_us, update_us: the step on the GPU.
        issuing_us: the time of a step outside all kernels.
        step_bytes: peak GPU memory of a step, including features of the batch.
    """

    graph: str
    is_estimate: bool
    vertices: int
    edges: int
    model: str
    features: int | None
    feature_bytes: int
    fan_outs: tuple[int, ...] | None
    kinds: tuple[Kind, ...]
    relations: tuple[Relation, ...]
    batch: int
    train: int
    loader: str
    batches: int
    drawn: int
    batch_vertices: tuple[int, ...]
    batch_edges: tuple[int, ...]
    sampling_us: float
    structure_us: float
    forward_us: float
    backward_us: float
    update_us: float
    issuing_us: float
    step_bytes: int

    @property
    def step_us(self) -> float:
        """Forward, backward and update."""
        return self.forward_us + self.backward_us + self.update_us


@dataclass(frozen=True)
class PlacementRow:
    """A placement of the features and its cost; means per batch.

    Args:
        placement: one of `pimflow.runtime.features.PLACEMENTS`.
        refused: why it is impossible; "" if it is possible. If it is impossible, everything else is 0.
        transfer_us, transfer_parts_us: moving a batch's features to the GPU's kernels, by step.
        requests: of the GPU's threads over the link.
        batch_us: from one batch to the next.
        epoch_s: seconds per epoch.
        power_w, power_parts_w: mean power of the system, by part.
    """

    placement: str
    refused: str
    transfer_us: float = 0.0
    transfer_parts_us: Mapping[str, float] = field(default_factory=dict)
    requests: int = 0
    batch_us: float = 0.0
    epoch_s: float = 0.0
    power_w: float = 0.0
    power_parts_w: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Epoch:
    """The cost of an epoch under every placement of the features."""

    target: str
    loop: Loop
    rows: tuple[PlacementRow, ...]

    def __repr__(self) -> str:
        return f"Epoch({self.loop.graph}, {self.loop.model}, {self.target}: {self.best.placement})"

    def __getitem__(self, placement: str) -> PlacementRow:
        """The row of a placement.

        Raises:
            OptionError: there is no placement of that name.
        """
        rows = {row.placement: row for row in self.rows}
        return rows[choice("placement", placement, rows)]

    @property
    def best(self) -> PlacementRow:
        """The placement with the shortest epoch; ties are broken by lower power."""
        return min((row for row in self.rows if not row.refused), key=lambda row: (row.batch_us, row.power_w))

    def against(self, placement: str, baseline: str = _BASELINE) -> tuple[float, float, float]:
        """A placement compared with a baseline: (transfer time in %, speedup of the epoch, power in %)."""
        row, other = self[placement], self[baseline]
        return (
            100 * (row.transfer_us / other.transfer_us - 1),
            other.batch_us / row.batch_us,
            100 * (row.power_w / other.power_w - 1),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "target": self.target,
            **asdict(self.loop),
            "best": self.best.placement,
            "placements": [asdict(row) for row in self.rows],
        }

    def text(self) -> str:
        """A table of the placements, and a description of the loop."""
        loop = self.loop
        known = " (random, of this size)" if loop.is_estimate else ""
        columns = "" if loop.features is None else f", {counted(loop.features, 'feature')}"
        size = f"{counted(loop.vertices, 'vertex', 'vertices')}, {counted(loop.edges, 'edge')}{columns}"
        fan_outs = "" if loop.fan_outs is None else f" with fan-outs {_hops(loop.fan_outs)}"
        read = f"{mean(loop.batch_vertices):,.0f} vertices and {mean(loop.batch_edges):,.0f} edges each"
        passes = f"{_ms(loop.forward_us)} forward, {_ms(loop.backward_us)} backward, {_ms(loop.update_us)} update"
        before = f"{_ms(loop.sampling_us)} sampling, {_ms(loop.structure_us)} copying edges"
        lines = [
            f"{loop.graph}{known}: {size}: {number(loop.feature_bytes / 1e9, 2)} GB, on {self.target}",
            f"{loop.model}, batches of {loop.batch:,}{fan_outs}: {read}",
            f"an epoch has {counted(loop.batches, 'batch', 'batches')}, {loop.drawn} of them sampled",
            f"a batch: {before}, {_ms(loop.step_us)} training ({passes}), {_ms(loop.issuing_us)} outside kernels",
            *self._typed(),
            "",
            self._table(),
            "",
            *(f"{row.placement}: {row.refused}" for row in self.rows if row.refused),
            f"best: {self.best.placement}{self._gain()}",
        ]
        return "\n".join(lines)

    def _typed(self) -> Iterator[str]:
        """Tables of the kinds and relations of a heterogeneous graph."""
        if not self.loop.kinds:
            return
        kinds = [
            (kind.name, f"{kind.vertices:,}", str(kind.features), f"{kind.drawn:,.0f}", "trained" * kind.is_trained)
            for kind in self.loop.kinds
        ]
        yield ""
        yield render_table(("vertices", "total", "features", "per batch", ""), kinds, right=(1, 2, 3))
        relations = [
            (one.name, f"{one.edges:,}", _hops(one.fan_outs), f"{one.drawn:,.0f}") for one in self.loop.relations
        ]
        yield ""
        yield render_table(("edges", "total", "fan-outs", "per batch"), relations, right=(1, 3))

    def _table(self) -> str:
        header = ("features", "transfer ms", "batch ms", "epoch s", "power W", "mostly")
        cells = [
            (
                row.placement,
                number(row.transfer_us / 1e3, 2),
                number(row.batch_us / 1e3, 2),
                number(row.epoch_s, 2),
                number(row.power_w, 1),
                ", ".join(f"{part} {_ms(time)}" for part, time in row.transfer_parts_us.items()),
            )
            for row in self.rows
            if not row.refused
        ]
        return render_table(header, cells, right=(1, 2, 3, 4))

    def _gain(self) -> str:
        if self[_BASELINE].refused or self.best.placement == _BASELINE:
            return ""
        transfer, speedup, power = self.against(self.best.placement)
        return f": transfers {transfer:+.1f} %, epoch {speedup:.2f}x, power {power:+.1f} % against {_BASELINE}"


def _hops(fan_outs: tuple[int, ...]) -> str:
    return ", ".join(map(str, fan_outs))


def _ms(time_us: float) -> str:
    return f"{number(time_us / 1e3, 2)} ms"

"""A partly sampled epoch, and its cost on machines that differ in their memory tiers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Literal, TypeVar, get_args

from pimflow.errors import TargetError
from pimflow.gnn.training import EDGE_BYTES, StepCost
from pimflow.gnn.workloads import Workload
from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.report.epoch import Epoch, Kind, Loop, PlacementRow, Relation
from pimflow.runtime.costs import CostModel
from pimflow.runtime.features import PLACEMENTS, Access, FeatureAccess, Placement, TableRead
from pimflow.sparse.sampling import Heterogeneous, TypedBatch
from pimflow.targets import Target

T = TypeVar("T")

Loader = Literal["none", "sampling", "all"]
LOADERS: tuple[Loader, ...] = get_args(Loader)
"""What overlaps with the previous step: nothing, the sampling of the next batch, or that and its transfer."""

ELEMENT_BYTES = 4
_READERS_SHARE = 0.1  # of the GPU, for the threads that read the next batch: PyTorch-Direct's MPS setting, 10,90


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """One drawn batch: its vertices and edges, the rows read from each kind's table, and the cost of its step."""

    batch: TypedBatch
    reads: tuple[TableRead, ...]
    step: StepCost

    @property
    def structure_bytes(self) -> int:
        """The size of its edges, which are copied to the GPU."""
        return self.batch.edges * EDGE_BYTES

    @property
    def bytes(self) -> int:
        """The peak use of the GPU's memory."""
        return self.step.bytes + self.structure_bytes


@dataclass(frozen=True, eq=False)
class SampledEpoch:
    """The drawn batches of an epoch, with everything that does not depend on memory tiers.

    Args:
        workload: the graph.
        model, features: what is trained, and columns of a vertex by kind.
        fan_outs: number of neighbours drawn for a vertex, by relation and hop.
        kind, batch, train, loader: as for `pimflow.gnn.epoch`.
        drawn: the batches.
    """

    workload: Workload
    model: str
    features: Mapping[str, int]
    fan_outs: Mapping[str, tuple[int, ...]]
    kind: str
    batch: int
    train: int
    loader: Loader
    drawn: tuple[SampledBatch, ...]

    @property
    def table_bytes(self) -> int:
        """The size of all features."""
        return table_bytes(self.workload.graph, self.features)

    @property
    def step_bytes(self) -> int:
        """The peak GPU memory of a step."""
        return max(one.bytes for one in self.drawn)

    def on(self, machine: Target) -> Epoch:
        """The epoch on a machine: steps as they were priced, everything else from its memory tiers and its static
        power.

        Raises:
            TargetError: the machine does not describe its tiers, or the features or a step do not fit anywhere.
        """
        access = FeatureAccess(machine, CostModel(machine).host_only().host)
        usable = access.memory.gpu.usable_bytes
        if self.step_bytes > usable:
            raise TargetError(
                f"a step takes {self.step_bytes / 1e9:,.2f} GB of the GPU's memory, which has {usable / 1e9:,.2f} GB "
                "for it",
                "train smaller batches, or draw fewer neighbours",
            )
        where = access.placements(self.table_bytes, self.step_bytes, self.workload.bytes)
        priced = [_Batch(one, self.loader, access, machine) for one in self.drawn]
        rows = tuple(self._row(placement, where[placement], priced) for placement in PLACEMENTS)
        return Epoch(machine.name, self._loop(priced), rows)

    @property
    def batches(self) -> int:
        """The number of batches of the epoch."""
        return -(-self.train // self.batch)

    def _loop(self, priced: Sequence[_Batch]) -> Loop:
        steps = [one.step for one in self.drawn]
        return Loop(
            graph=self.workload.name,
            is_estimate=self.workload.is_estimate,
            vertices=sum(self.workload.graph.vertices.values()),
            edges=self.workload.graph.num_edges,
            model=self.model,
            features=_common_value(self.features.values()),
            feature_bytes=self.table_bytes,
            fan_outs=_common_value(self.fan_outs.values()),
            kinds=tuple(self._kinds()),
            relations=tuple(self._relations()),
            batch=self.batch,
            train=self.train,
            loader=self.loader,
            batches=self.batches,
            drawn=len(self.drawn),
            batch_vertices=tuple(one.batch.num_vertices for one in self.drawn),
            batch_edges=tuple(one.batch.edges for one in self.drawn),
            sampling_us=mean(one.sampling_us for one in priced),
            structure_us=mean(one.structure_us for one in priced),
            forward_us=mean(step.forward_us for step in steps),
            backward_us=mean(step.backward_us for step in steps),
            update_us=mean(step.update_us for step in steps),
            issuing_us=priced[0].issuing_us,
            step_bytes=self.step_bytes,
        )

    def _kinds(self) -> Iterator[Kind]:
        """The facts about each kind, if the graph came as several edge lists."""
        for kind, count in self.workload.graph.vertices.items() if self.workload.is_typed else ():
            drawn = mean(len(one.batch.vertices[kind]) for one in self.drawn)
            yield Kind(kind, count, self.features[kind], kind == self.kind, drawn)

    def _relations(self) -> Iterator[Relation]:
        for name, relation in self.workload.graph.relations.items() if self.workload.is_typed else ():
            drawn = mean(sum(hop[name].num_edges for hop in one.batch.hops) for one in self.drawn)
            yield Relation(name, relation.source, relation.destination, relation.num_edges, self.fan_outs[name], drawn)

    def _row(self, placement: Placement, refusal: Refusal | None, priced: Sequence[_Batch]) -> PlacementRow:
        if refusal is not None:
            return PlacementRow(placement, refusal.reason)
        accesses = [one.access(placement) for one in priced]
        parts = {part: mean(one.time_parts_us[part] for one in accesses) for part in accesses[0].time_parts_us}
        batch_us = mean(one.period_us(access) for one, access in zip(priced, accesses, strict=True))
        energy = _mean_by_part([dict(one.energy_mj(access)) for one, access in zip(priced, accesses, strict=True)])
        return PlacementRow(
            placement,
            "",
            transfer_us=sum(parts.values()),
            transfer_parts_us=parts,
            requests=round(mean(one.requests for one in accesses)),
            batch_us=batch_us,
            epoch_s=batch_us * self.batches * 1e-6,
            power_w=sum(energy.values()) / batch_us * 1e3,
            power_parts_w={part: spent / batch_us * 1e3 for part, spent in energy.items()},
        )


def table_bytes(graph: Heterogeneous, features: Mapping[str, int]) -> int:
    """The size of the features of all vertices."""
    return sum(count * features[kind] * ELEMENT_BYTES for kind, count in graph.vertices.items())


def _common_value(values: Iterable[T]) -> T | None:
    """The value that all items have in common; None if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _mean_by_part(amounts: Sequence[dict[str, float]]) -> dict[str, float]:
    return {part: mean(one[part] for one in amounts) for part in amounts[0]}


class _Batch:
    """A drawn batch, priced on a machine."""

    def __init__(self, drawn: SampledBatch, loader: Loader, access: FeatureAccess, machine: Target) -> None:
        tier, link = access.tier, access.link
        self._drawn, self._loader, self._access, self._machine = drawn, loader, access, machine
        self.sampling_us = drawn.batch.edges / tier.sampled_edges_per_us
        copied_us = drawn.structure_bytes / (link.copy_gb_per_s * 1e3)
        copies = sum(edges.num_edges > 0 for hop in drawn.batch.hops for edges in hop.values())
        self.structure_us = copies * link.copy_us + copied_us
        self.issuing_us = tier.step_us

    def access(self, placement: Placement) -> Access:
        """The cost of bringing its features to the GPU's kernels."""
        return self._access.cost_of_all(placement, self._drawn.reads)

    def period_us(self, access: Access) -> float:
        """The time from one batch to the next: the sum of sequential stages, the maximum of overlapping ones."""
        times, step_us = access.time_parts_us, self._drawn.step.time_us
        moving, training = self.structure_us + access.time_us, self.issuing_us + step_us
        if self._loader == "none":
            return self.sampling_us + moving + training
        if self._loader == "sampling":
            return max(self.sampling_us, moving + training)
        if access.placement == "resident":
            return max(self.sampling_us, self.structure_us, access.time_us + training)
        if "copy" in times:  # gathered by the CPU, which also samples
            return max(self.sampling_us + times["gather"], self.structure_us + times["copy"], training)
        return max(self.sampling_us, moving, self.issuing_us + step_us / (1 - _READERS_SHARE))

    def energy_mj(self, access: Access) -> Iterator[tuple[str, float]]:
        """Energy by part; each part appears once."""
        tier, batch_us, spent = self._access.tier, self.period_us(access), access.energy_parts_mj
        yield "idle", (tier.idle_w + self._machine.any_gpu.energy.static_w) * batch_us * 1e-3
        yield "sampling", tier.sampling_w * self.sampling_us * 1e-3
        yield "issuing", tier.issuing_w * batch_us * 1e-3
        waiting_us = batch_us - access.time_parts_us["gather"] if "CPU" in spent else 0.0
        yield "gather", spent.get("CPU", 0.0) + tier.waiting_w * min(tier.spin_us, waiting_us) * 1e-3
        yield "training", self._drawn.step.energy_mj
        yield "GPU reads", spent.get("GPU", 0.0)
        structure = self._drawn.structure_bytes
        yield "host DRAM", spent.get("host DRAM", 0.0) + structure * tier.dram_pj_per_byte * 1e-9
        yield "link", spent.get("link", 0.0) + structure * self._access.link.pj_per_byte * 1e-9

"""An epoch of training a graph network on mini-batches, by where the features lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Literal, get_args

import numpy as np

from pimflow.bundle.source import model_source
from pimflow.compiled import Machine
from pimflow.compiler import clean_up, read_model
from pimflow.errors import OptionError, TargetError, choice
from pimflow.gnn.networks import LAYERS, Network
from pimflow.gnn.training import StepCost, step_cost
from pimflow.gnn.workloads import Workload, workload
from pimflow.ir import Refusal
from pimflow.options import Options
from pimflow.report.epoch import Epoch, Loop, PlacementRow
from pimflow.runtime.costs import CostModel
from pimflow.runtime.features import PLACEMENTS, Access, FeatureAccess, Placement
from pimflow.sparse import Graph
from pimflow.sparse.checks import Longs
from pimflow.sparse.sampling import Batch, sample
from pimflow.targets import Target, load_target

Loader = Literal["none", "sampling", "all"]
LOADERS: tuple[Loader, ...] = get_args(Loader)
"""What overlaps with the step before: nothing, the sampling of the next batch, or that and its transfer."""

_ELEMENT_BYTES = 4
_EDGE_BYTES = 8  # of a batch's hops: a source and a destination of 4 bytes each, copied to the GPU
_READERS_SHARE = 0.1  # of the GPU, for the threads that read the next batch: PyTorch-Direct's setting of MPS, 10,90
_MOST_FAN_OUT, _MOST_BATCH, _MOST_FEATURES = 1 << 10, 1 << 24, 1 << 20


@dataclass(frozen=True)
class _Measured:
    """One batch: what it read, what the step takes, what the accesses cost."""

    batch: Batch
    step: StepCost
    accesses: Mapping[Placement, Access]
    sampling_us: float
    structure_us: float


def epoch(
    graph: str | Path | Graph,
    model: str | Path = "sage",
    *,
    fan_outs: Sequence[int] = (25, 10),
    batch: int = 1000,
    features: int | None = None,
    hidden: int = 256,
    classes: int | None = None,
    train: int | None = None,
    target: str | Target = "rtx3090",
    loader: Loader = "sampling",
    batches: int = 8,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Epoch:
    """What an epoch of mini-batch training takes, with the features in the GPU's memory or in the host's.

    Batches are really drawn, without replacement, and their vertices and requests counted exactly; an epoch is as many
    times the mean of those that were drawn.

    Args:
        graph: a file, a graph, or the name of one of PyTorch-Direct's, of which a random one of that size is used.
        model: `sage`, `gcn` or `gat`, of a layer a hop; or an ONNX model or "zoo:NAME" of a graph network, which runs
            over all vertices of a batch.
        fan_outs: neighbours that are drawn of every vertex, by hop, beginning with the vertices that are trained.
        batch: vertices that a step trains.
        features: columns of a vertex, of 4 bytes; the named graph's, or the ONNX model's, where None.
        hidden, classes: columns between layers and of the result, of `sage`, `gcn` and `gat`.
        train: vertices that an epoch trains; the named graph's, or all, where None.
        target: a machine that says its memory tiers.
        loader: what overlaps with the step before: "none", "sampling" (as loaders of DGL and PyTorch Geometric do),
            or "all", transfers included.
        batches: how many are drawn; 0 for all of the epoch.
        seed: of the graph, the batches and what is drawn of them.

    Raises:
        OptionError: a value is out of range.
        GraphDataError: the graph is unknown or cannot be read.
        TargetError: the target does not say its memory tiers, or features or a step fit nowhere.
        PimflowError: the ONNX model cannot be read for the batch.
    """
    machine = load_target(target)
    costs = CostModel(machine)
    access = FeatureAccess(machine, costs.host_only().host)
    loader = choice("loader", loader, LOADERS)
    say = progress or (lambda line: None)
    found = workload(graph, seed)
    trained = _trained(found, train)
    random = np.random.default_rng(seed)
    order = _distinct(found.graph.num_vertices, trained, random)
    _check(fan_outs, batch, features, hidden, batches)
    stepper = _Stepper(model, machine, costs, features, hidden, classes, found)
    access.placements(found.graph.num_vertices * stepper.features * _ELEMENT_BYTES, 0, found.bytes)
    count = -(-trained // batch)
    measured = []
    for number in range(min(batches or count, count)):
        say(f"batch {number + 1} of {min(batches or count, count)}")
        drawn = sample(found.graph, order[number * batch : (number + 1) * batch], fan_outs, random)
        measured.append(_measure(drawn, stepper, access))
    row_bytes = stepper.features * _ELEMENT_BYTES
    beside = max(one.step.bytes + one.batch.edges * _EDGE_BYTES for one in measured)
    if beside > access.memory.gpu.usable_bytes:
        raise TargetError(
            f"a step takes {beside / 1e9:,.2f} GB of the GPU's memory, which has "
            f"{access.memory.gpu.usable_bytes / 1e9:,.2f} GB for it",
            "train smaller batches, or draw fewer neighbours",
        )
    table = found.graph.num_vertices * row_bytes
    where = access.placements(table, beside, found.bytes)
    loop = _loop(found, stepper, loader, trained, count, fan_outs, batch, measured, beside, access.tier.step_us)
    rows = tuple(_row(placement, where[placement], measured, loop, access, machine) for placement in PLACEMENTS)
    return Epoch(machine.name, loop, rows)


class _Stepper:
    """Prices the step of a model over a batch."""

    def __init__(
        self,
        model: str | Path,
        machine: Target,
        costs: CostModel,
        features: int | None,
        hidden: int,
        classes: int | None,
        found: Workload,
    ) -> None:
        self.name = str(model)
        self.costs = costs
        self._network: Network | None = None
        published = found.published
        if self.name in LAYERS:
            columns = features or (published.features if published else 0)
            if not columns:
                raise OptionError("the graph says nothing of features", "give their number: --features")
            kinds = classes or (published.classes if published else 16)
            self._network = Network(self.name, columns, hidden, kinds)
            self.features = columns
            return
        self._machine = Machine.of(Options.of(target=machine))
        self._source = model_source(model)
        self.features = features or 0

    def step(self, drawn: Batch) -> StepCost:
        """Forward, backward and update."""
        if self._network is not None:
            return step_cost(self._network.over(drawn), self.costs)
        options = Options.of(target=self._machine.target, graph=_as_one(drawn))
        program = clean_up(read_model(self._source, options).graph, self._machine, options).graph
        columns = {
            shape[-1]
            for name in program.inputs
            if len(shape := program.shape(name)) == 2 and shape[0] == len(drawn.vertices)
        }
        if len(columns) != 1:
            raise OptionError(f"{self.name} has no input of features of every vertex", "choose a graph network")
        (found,) = columns
        if self.features not in (0, found):
            reads = f"{self.name} reads {found} features of a vertex, not {self.features}"
            raise OptionError(reads, "leave out --features")
        self.features = found
        return step_cost(program, self.costs)


def _as_one(drawn: Batch) -> Graph:
    """All hops as one graph over the batch's vertices, as PyTorch Geometric's loader has it."""
    src = np.concatenate([hop.col for hop in drawn.hops])
    dst = np.concatenate([hop.destinations() for hop in drawn.hops])
    return Graph.from_edges(src, dst, len(drawn.vertices), len(drawn.vertices))


def _measure(drawn: Batch, stepper: _Stepper, access: FeatureAccess) -> _Measured:
    step = stepper.step(drawn)
    row_bytes = stepper.features * _ELEMENT_BYTES
    accesses = {placement: access.cost(placement, drawn.vertices, row_bytes) for placement in PLACEMENTS}
    structure = drawn.edges * _EDGE_BYTES
    return _Measured(
        drawn,
        step,
        accesses,
        drawn.edges / access.tier.sampled_edges_per_us,
        len(drawn.hops) * access.link.copy_us + structure / (access.link.copy_gb_per_s * 1e3),
    )


def _loop(
    found: Workload,
    stepper: _Stepper,
    loader: Loader,
    trained: int,
    count: int,
    fan_outs: Sequence[int],
    batch: int,
    measured: Sequence[_Measured],
    beside: int,
    issuing_us: float,
) -> Loop:
    return Loop(
        graph=found.name,
        is_estimate=found.is_estimate,
        vertices=found.graph.num_vertices,
        edges=found.edges,
        model=stepper.name,
        features=stepper.features,
        feature_bytes=found.graph.num_vertices * stepper.features * _ELEMENT_BYTES,
        fan_outs=tuple(fan_outs),
        batch=batch,
        train=trained,
        loader=loader,
        batches=count,
        drawn=len(measured),
        batch_vertices=tuple(len(one.batch.vertices) for one in measured),
        batch_edges=tuple(one.batch.edges for one in measured),
        sampling_us=mean(one.sampling_us for one in measured),
        structure_us=mean(one.structure_us for one in measured),
        forward_us=mean(one.step.forward_us for one in measured),
        backward_us=mean(one.step.backward_us for one in measured),
        update_us=mean(one.step.update_us for one in measured),
        issuing_us=issuing_us,
        step_bytes=beside,
    )


def _row(
    placement: Placement,
    refusal: Refusal | None,
    measured: Sequence[_Measured],
    loop: Loop,
    access: FeatureAccess,
    machine: Target,
) -> PlacementRow:
    if refusal is not None:
        return PlacementRow(placement, refusal.reason)
    accesses = [one.accesses[placement] for one in measured]
    parts = {part: mean(one.time_parts_us[part] for one in accesses) for part in accesses[0].time_parts_us}
    batch_us = mean(_period_us(loop.loader, one, one.accesses[placement], loop.issuing_us) for one in measured)
    energy = dict(_energy_mj(batch_us, measured, accesses, access, machine))
    return PlacementRow(
        placement,
        "",
        transfer_us=sum(parts.values()),
        transfer_parts_us=parts,
        requests=round(mean(one.requests for one in accesses)),
        batch_us=batch_us,
        epoch_s=batch_us * loop.batches * 1e-6,
        power_w=sum(energy.values()) / batch_us * 1e3,
        power_parts_w={part: spent / batch_us * 1e3 for part, spent in energy.items()},
    )


def _period_us(loader: str, one: _Measured, access: Access, issuing_us: float) -> float:
    """From one batch to the next: what follows one another is added, what overlaps takes the longest."""
    times = access.time_parts_us
    moving, training = one.structure_us + access.time_us, issuing_us + one.step.time_us
    if loader == "none":
        return one.sampling_us + moving + training
    if loader == "sampling":
        return max(one.sampling_us, moving + training)
    if access.placement == "resident":
        return max(one.sampling_us, one.structure_us, access.time_us + training)
    if "copy" in times:  # gathered by the CPU, which samples as well
        return max(one.sampling_us + times["gather"], one.structure_us + times["copy"], training)
    return max(one.sampling_us, moving, issuing_us + one.step.time_us / (1 - _READERS_SHARE))


def _energy_mj(
    batch_us: float, measured: Sequence[_Measured], accesses: Sequence[Access], access: FeatureAccess, machine: Target
) -> Iterator[tuple[str, float]]:
    """Of a batch in the mean, by part; a part is named once."""
    tier = access.tier
    spent = {part: mean(one.energy_parts_mj[part] for one in accesses) for part in accesses[0].energy_parts_mj}
    yield "idle", (tier.idle_w + machine.any_gpu.energy.static_w) * batch_us * 1e-3
    yield "sampling", tier.sampling_w * mean(one.sampling_us for one in measured) * 1e-3
    yield "issuing", tier.issuing_w * batch_us * 1e-3
    gathering_us = mean(one.time_parts_us["gather"] for one in accesses) if "CPU" in spent else batch_us
    yield "gather", spent.get("CPU", 0.0) + tier.gather_w * min(tier.spin_us, batch_us - gathering_us) * 1e-3
    yield "training", mean(one.step.energy_mj for one in measured)
    yield "GPU reads", spent.get("GPU", 0.0)
    structure = mean(one.batch.edges for one in measured) * _EDGE_BYTES
    yield "host DRAM", spent.get("host DRAM", 0.0) + structure * tier.dram_pj_per_byte * 1e-9
    yield "link", spent.get("link", 0.0) + structure * access.link.pj_per_byte * 1e-9


def _trained(found: Workload, train: int | None) -> int:
    known = found.published.train if found.published else found.graph.num_vertices
    if train is not None and not 0 < train <= found.graph.num_vertices:
        raise OptionError(f"train is {train}", f"the graph has {found.graph.num_vertices:,} vertices")
    return train or known


def _distinct(vertices: int, count: int, random: np.random.Generator) -> Longs:
    """So many different vertices, in random order."""
    if count * 4 > vertices:
        return random.permutation(vertices)[:count].astype(np.int64)
    found = np.unique(random.integers(0, vertices, 2 * count + 16))
    return random.permutation(found)[:count].astype(np.int64)


def _check(fan_outs: Sequence[int], batch: int, features: int | None, hidden: int, batches: int) -> None:
    if not fan_outs or not all(0 < most <= _MOST_FAN_OUT for most in fan_outs):
        raise OptionError(f"fan-outs are {list(fan_outs)}", f"give numbers between 1 and {_MOST_FAN_OUT}, one a hop")
    limits = {
        "batch": (batch, 1, _MOST_BATCH),
        "features": (1 if features is None else features, 1, _MOST_FEATURES),
        "hidden": (hidden, 1, _MOST_FEATURES),
        "batches": (batches, 0, _MOST_BATCH),
    }
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise OptionError(f"{name} is {value}", f"give a number between {low} and {high}")

"""UPMEM modules as a backend: its choices are strategies, its programs assignments of edges to cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from pimflow import data as codec
from pimflow.codegen.answers import Copy, Lane, Parts, Roof, Transfer, UnitCost
from pimflow.codegen.backend import Backend
from pimflow.codegen.upmem.strategy import Strategy
from pimflow.codegen.work import Work
from pimflow.errors import DataError, OptionError
from pimflow.ir import Array, Graph, Node, Refusal, Spmm
from pimflow.ir.text.literals import digest
from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.pricing import Aggregation, AggregationCost, Pricing, clusters_of
from pimflow.runtime.upmem.quantize import BITS, Quantized, bits_for, overflow, quantized
from pimflow.runtime.upmem.tuner import Tuner
from pimflow.runtime.upmem.values import aggregated
from pimflow.sparse import Graph as Adjacency
from pimflow.targets.schema.upmem import ELEMENT_BYTES, ElementType, UpmemSpec

SUM_RTOL = 2e-5
"""Bound on the error of sums in single precision, relative to the largest magnitude in a node's result."""
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class AggregationWork(Work):
    """The sum of features over the edges of each destination.

    Args:
        adjacency: content hash of the edges and of constant weights.
        sources, destinations, edges: their numbers.
        features: number of columns, over all heads.
        scaled: whether the host scales rows of results.
        heads: number of weights per edge; each applies to the same number of columns.
        computed: whether weights are computed at run time.
    """

    adjacency: str
    sources: int
    destinations: int
    edges: int
    features: int
    scaled: bool = False
    heads: int = 1
    computed: bool = False


class _Edges(NamedTuple):
    """The edges of a graph, and their constant weights if any, [edges] or [edges, heads]."""

    graph: Adjacency
    weights: Array | None


@dataclass(frozen=True)
class UpmemCost:
    """The cost of the kernel on the modules; copies to and from them are a `Transfer`."""

    aggregation: AggregationCost
    strategy: Strategy

    @property
    def time_us(self) -> float:
        """Microseconds of the kernel."""
        return self.aggregation.kernel_us

    @property
    def cycles(self) -> int:
        """Cycles of the slowest core."""
        return self.aggregation.cycles

    @property
    def counters(self) -> Mapping[str, int]:
        """Bytes over the link."""
        return {"LOADED": self.aggregation.loaded_bytes, "RETRIEVED": self.aggregation.retrieved_bytes}

    @property
    def energy_parts_mj(self) -> Mapping[str, float]:
        """Energy of running cores; the idle power of modules is static, and the energy of copies is the transfer's."""
        return {"kernel": self.aggregation.kernel_mj}

    @property
    def energy_mj(self) -> float:
        """The sum of its parts."""
        return sum(self.energy_parts_mj.values())


@dataclass(frozen=True)
class Copies(Transfer):
    """The copies of features to the modules and of results back, through the host's memory."""

    steps_before: tuple[Copy, ...] = ()
    steps_after: tuple[Copy, ...] = ()

    @property
    def before(self) -> tuple[Copy, ...]:
        """Over the GPU's link if there is one, quantisation, and to all clusters."""
        return self.steps_before

    @property
    def after(self) -> tuple[Copy, ...]:
        """Back from all cores, merging, scaling, and over the GPU's link."""
        return self.steps_after


@dataclass(frozen=True)
class UpmemProgram:
    """The program of the modules for one aggregation.

    Args:
        work: the aggregation.
        strategy: how the work is divided.
    """

    work: AggregationWork
    strategy: Strategy


class UpmemBackend(Backend[AggregationWork, UpmemProgram]):
    """DRAM modules whose cores aggregate over the edges of a graph."""

    title = "UPMEM cores"
    choices: ClassVar[tuple[str, ...]] = ("auto",)
    choice_word = "strategy"
    copies_by_work = True
    counters: ClassVar[tuple[str, ...]] = ("LOADED", "RETRIEVED")
    operands: ClassVar[tuple[str, ...]] = ("int8", "int16", "int32", "fp32")

    def __init__(self, device: str, spec: UpmemSpec) -> None:
        super().__init__(device, spec)
        self.modules = spec
        self._adjacencies: dict[str, _Edges] = {}
        self._costs: dict[tuple[AggregationWork, str], UpmemCost | Refusal] = {}

    @property
    def operand(self) -> str:
        """The operand type of the target."""
        return self.modules.operand

    @property
    def roof(self) -> Roof:
        """One instruction per cycle on all cores, and their banks with the longest transfers."""
        modules, table = self.modules, self.modules.mram
        instructions = modules.kernel.multiply_add.of(modules.operand, modules.widened)
        delivered = modules.cores * table.transfer_bytes[-1] / table.read_us[-1]
        return Roof(modules.cores * modules.clock_mhz / instructions, delivered)

    def resolve(self, choice: str) -> str:
        """ "auto", or the text of a strategy."""
        return "auto" if choice in ("", "auto") else str(Strategy.parse(choice))

    def work(self, graph: Graph, node: Node) -> AggregationWork | Refusal:
        """The work of an aggregation: it must sum rows over the edges of a constant graph."""
        if not isinstance(node.op, Spmm):
            return Refusal(f"its cores have no kernel for {node.kind}: they only sum over the edges of a graph")
        if node.placement.origin not in (None, node.name):
            return Refusal("its cores aggregate over a whole graph: edges are loaded in advance, for all rows")
        if node.op.reduce != "sum" or node.op.start or node.op.empty:
            return Refusal(f"its kernels can only compute sums that start from zero (reduction: {node.op.reduce})")
        shape = graph.value(node.inputs[0]).shape or ()
        if len(shape) < 2:
            return Refusal("its kernels only sum rows of a matrix")
        if not all(name in graph.constants for name in node.inputs[1:3]):
            return Refusal("its cores are loaded with edges in advance, but these are only known at run time")
        weight = node.inputs[3] if len(node.inputs) > 3 else ""
        edges = [name for name in (*node.inputs[1:3], weight) if name in graph.constants]
        rowptr, col, *weights = (graph.constants[name] for name in edges)
        key = " ".join(map(digest, (rowptr, col, *weights)))
        if key not in self._adjacencies:
            self._adjacencies[key] = _Edges(Adjacency.from_csr(rowptr, col, shape[0]), weights[0] if weights else None)
        heads = shape[1] if weight and len(graph.shape(weight)) == 2 else 1
        scaled = len(node.inputs) > 4 and bool(node.inputs[4])
        computed = bool(weight) and not weights
        columns = prod(shape[1:])
        return AggregationWork(key, shape[0], len(rowptr) - 1, len(col), columns, scaled, heads, computed)

    def cost(self, work: AggregationWork, choice: str) -> UpmemCost | Refusal:
        """The cost with the tuner's best strategy, or with the one given."""
        key = work, choice
        if key not in self._costs:
            self._costs[key] = self._priced(work, choice)
        return self._costs[key]

    def _priced(self, work: AggregationWork, choice: str) -> UpmemCost | Refusal:
        graph, weights = self._adjacencies[work.adjacency]
        aggregation = Aggregation(work.features, self.modules.operand, self.modules.widened, work.heads, work.computed)
        narrow = overflow(graph, aggregation.element, aggregation.widened, weights, computed=work.computed)
        if narrow is not None:
            return narrow
        if choice == "auto":
            ranking = Tuner(self.modules, graph, aggregation).rank()
            if ranking.rows:
                return UpmemCost(ranking.best.cost, ranking.best.strategy)
            return min(ranking.refusals.values(), key=lambda refusal: refusal.gap or 0)
        strategy = Strategy.parse(choice)
        cost = Pricing(self.modules, aggregation, EdgeParts(graph)).cost(strategy)
        return cost if isinstance(cost, Refusal) else UpmemCost(cost, strategy)

    def lower_bound_us(self, work: AggregationWork, choice: str) -> float:
        """Starting the cores, which every strategy does once."""
        return self.modules.launch_us

    def static_energy_mj(self, time_us: float) -> float:
        """Static energy: the power of modules with idle cores."""
        return self.modules.static_w * time_us * 1e-3

    def time_parts_us(self, work: AggregationWork, choice: str) -> Parts:
        """Starting the cores, and the time until the slowest has ended."""
        cost = self.cost(work, choice)
        if isinstance(cost, Refusal):
            raise ValueError(cost.reason)
        launch_us = cost.aggregation.launch_us
        return {"launch": launch_us, "kernel": cost.time_us - launch_us}

    def copies(self, work: AggregationWork, choice: str) -> Transfer | None:
        """Features to all clusters and results back, with the host's processing on the way."""
        cost = self.cost(work, choice)
        if isinstance(cost, Refusal):
            return None
        stages, energy_mj = cost.aggregation, cost.aggregation.link_mj
        loading = stages.loaded_bytes / max(stages.loaded_bytes + stages.retrieved_bytes, 1)
        sources, results = work.sources * work.features, work.destinations * work.features
        weights = work.edges * work.heads if work.computed else 0
        before = _that_take_time(
            self._over_pcie(sources + weights),
            self._by_cpu("quantize", self._on_host_us(sources)),
            self._by_cpu("load weights", stages.weights_us),
            self._by_cpu("load", stages.load_us - stages.weights_us, loading * energy_mj),
        )
        after = _that_take_time(
            self._by_cpu("retrieve", stages.retrieve_us, (1 - loading) * energy_mj),
            self._by_cpu("merge", stages.merge_us),
            self._by_cpu("scale", self._on_host_us(results, scaled=work.scaled)),
            self._over_pcie(results),
        )
        load_us, store_us = (sum(copy.time_us for copy in steps) for steps in (before, after))
        load_mj, store_mj = (sum(copy.energy_mj for copy in steps) for steps in (before, after))
        return Copies(load_us, store_us, load_mj, store_mj, steps_before=before, steps_after=after)

    def _by_cpu(self, name: str, time_us: float, link_mj: float = 0.0) -> Copy:
        """A step that keeps the CPU busy."""
        return Copy(name, time_us, link_mj + self.modules.energy.copying_w * time_us * 1e-3)

    def _on_host_us(self, elements: int, *, scaled: bool = False) -> float:
        """A pass of the host over floats and their form on the modules, if the two differ."""
        if self.modules.operand not in BITS and not scaled:
            return 0.0
        element = "int64" if self.modules.widened else self.modules.operand
        moved = elements * (_FLOAT_BYTES + ELEMENT_BYTES[element])
        return moved / (self.modules.link.host_gb_per_s * 1e3)

    def _over_pcie(self, elements: int) -> Copy:
        """A copy between the memory of a GPU that is this machine's host and the CPU's memory next to the modules."""
        rate, moved = self.modules.link.pcie_gb_per_s, elements * _FLOAT_BYTES
        if rate is None:
            return Copy("pcie", 0.0, 0.0)
        return Copy("pcie", moved / (rate * 1e3), moved * self.modules.energy.pcie_pj_per_byte * 1e-9)

    def program(self, work: AggregationWork, choice: str) -> UpmemProgram | Refusal:
        """The program with the strategy that `cost` prices."""
        cost = self.cost(work, choice)
        return cost if isinstance(cost, Refusal) else UpmemProgram(work, cost.strategy)

    def describe(self, program: UpmemProgram) -> str:
        """The strategy."""
        return str(program.strategy)

    def work_of(self, program: UpmemProgram) -> AggregationWork:
        """Its aggregation."""
        return program.work

    def execute(
        self, program: UpmemProgram, graph: Graph, node: Node, inputs: Sequence[Array | None], operand: str
    ) -> Array:
        """The value, computed tasklet by tasklet in the given element type."""
        features, rowptr, col, weights, scale = (*inputs, None, None)[:5]
        assert features is not None
        assert rowptr is not None
        assert col is not None
        adjacency, work = Adjacency.from_csr(rowptr, col, len(features)), program.work
        widened = self.modules.widened and operand in BITS
        aggregation = Aggregation(work.features, operand, widened, work.heads, work.computed)  # type: ignore[arg-type]
        columns = features.reshape(len(features), work.features)
        sums = aggregated(self.modules, adjacency, columns, program.strategy, aggregation, weights)
        if scale is not None:
            sums = sums * scale.astype(np.float32)[:, None]
        result = graph.value(node.output)
        return sums.reshape(result.shape or sums.shape).astype(result.dtype)

    def rounded(self, inputs: Sequence[Array | None], operand: str) -> tuple[Array | None, ...]:
        """The inputs with features and weights rounded to their quantisation steps, as floats."""
        features, rowptr, col, weight, *others = (*inputs, None, None)[: max(len(inputs), 4)]
        if operand not in BITS or features is None or rowptr is None or col is None:
            return tuple(inputs)
        adjacency = Adjacency.from_csr(rowptr, col, len(features))
        element: ElementType = operand  # type: ignore[assignment]
        bits = bits_for(adjacency, element, self.modules.widened, weight)
        if isinstance(bits, Refusal):
            return tuple(inputs)
        steps = (None if array is None else quantized(array, element, bits) for array in (features, weight))
        near, near_weight = (None if step is None else _as_floats(step) for step in steps)
        return (near, rowptr, col, near_weight, *others)[: len(inputs)]

    def tolerance(self, operand: str) -> float:
        """The tolerance of sums in single precision: inputs are quantised in advance (`rounded`)."""
        return SUM_RTOL

    def encode(self, program: UpmemProgram) -> Any:
        """The fields of a program."""
        return codec.encode(program)

    def decode(self, data: Any) -> UpmemProgram:
        """A program from the output of `encode`."""
        try:
            program: UpmemProgram = codec.decode(UpmemProgram, data)
        except OptionError as error:  # its remedy is for a user's own strategy
            raise DataError(f"'strategy': {error.what}") from None
        if self.modules.ranks % program.strategy.clusters:
            raise DataError("the program is for another machine")
        return program

    def parts(self, program: UpmemProgram) -> int:
        """The number of clusters."""
        return program.strategy.clusters

    def lanes(self, cost: UnitCost) -> tuple[Lane, ...]:
        """The clusters of ranks, from the start of their cores to the end of the slowest core, which all wait for."""
        assert isinstance(cost, UpmemCost)
        start, end = cost.aggregation.launch_us, cost.aggregation.kernel_us
        return tuple(Lane(cluster, start, end, "cluster") for cluster in range(cost.strategy.clusters))

    def trace(self, program: UpmemProgram, part: int) -> Iterator[str]:
        """The steps of the host and of the cores of one cluster, one per line."""
        work, strategy, modules = program.work, program.strategy, self.modules
        aggregation = Aggregation(work.features, modules.operand, modules.widened, work.heads, work.computed)
        cluster = list(clusters_of(modules, aggregation, strategy))[part]
        width = -(-work.sources // strategy.edge_parts)
        first = cluster.part * width
        left = part % strategy.feature_parts * -(-work.features // strategy.feature_parts)
        columns = f"columns {left}-{left + cluster.columns - 1}"
        sources = f"sources {first}-{min(first + width, work.sources) - 1}"
        tasklets = f"{modules.tasklets} tasklets by {strategy.tasklets} {strategy.sync}"
        yield f"LOAD {sources} {columns} {modules.operand} to each of {cluster.cores} cores\n"
        if work.computed:
            yield f"LOAD weights of {cluster.heads} heads to {cluster.cores} cores, each its edges'\n"
        yield f"LAUNCH {strategy.format} {cluster.cores} cores by {strategy.cores} {tasklets}\n"
        yield f"RETRIEVE rows {columns} from each of {cluster.cores} cores\n"
        yield f"{'COPY' if cluster.part == 0 else 'ADD'} {work.destinations} rows {columns}\n"


def _as_floats(steps: Quantized) -> Array:
    whole: Array = (steps.values * steps.scale).astype(np.float32)
    return whole


def _that_take_time(*copies: Copy) -> tuple[Copy, ...]:
    return tuple(copy for copy in copies if copy.time_us > 0)

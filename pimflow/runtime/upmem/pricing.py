"""The cost of an aggregation under a strategy: loading features, the kernel, retrieving results, merging them.

The formulas are those of PyGim's tuner (`autotuner.py`) without its errors: every partition counts, and the time of the
cores is that of the slowest one with the actual division of its work among tasklets (`kernel.py`), for any number of
columns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import pairwise

import numpy as np

from pimflow.codegen.answers import SumOfParts
from pimflow.codegen.upmem.partition import Cores, Longs, Tasklets, cores_of, even_shares, tasklets_of
from pimflow.codegen.upmem.strategy import Format, Strategy
from pimflow.ir import Refusal
from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.upmem.edge_parts import EdgeParts
from pimflow.runtime.upmem.kernel import CoreModel, Floats, RowForm
from pimflow.runtime.upmem.simulation import core_cycles, is_sampled
from pimflow.targets.schema.upmem import ELEMENT_BYTES, ElementType, UpmemSpec

_INDEX_BYTES = 4
_FLOAT_BYTES = 4  # bytes of a number on the host
_SIMULATED = 2  # minimum number of cores to simulate; one for an estimate
_LIKELY = 4  # candidates for the slowest core of a cluster
_SMALL = 0.1  # share of the kernel in the time up to which an estimate uses the closed form: an error of 1 % at most


@dataclass(frozen=True)
class AggregationCost(SumOfParts):
    """The time of one aggregation by stage, its traffic and its energy.

    Args:
        load_us: loading features to the cores of every cluster, including `weights_us`.
        kernel_us: time until the slowest core has ended, including `launch_us`.
        retrieve_us: copying results back to the host.
        merge_us: on the host, putting results in place and adding up partial ones.
        loaded_bytes, retrieved_bytes: bytes over the link.
        cycles: cycles of the slowest core.
        kernel_mj: energy of running cores, in addition to idle modules.
        idle_mj: energy of idle modules, over all stages.
        host_mj: energy of the CPU for loading, retrieving and merging, in addition to waiting.
        link_mj: energy of the link.
        launch_us: starting the cores.
        weights_us: loading weights that are computed at run time: the host arranges them, and each core gets its own.
    """

    load_us: float
    kernel_us: float
    retrieve_us: float
    merge_us: float
    loaded_bytes: int
    retrieved_bytes: int
    cycles: int
    kernel_mj: float
    idle_mj: float
    host_mj: float
    link_mj: float
    launch_us: float
    weights_us: float = 0.0

    @property
    def energy_parts_mj(self) -> dict[str, float]:
        """Energy of the modules, the link, and the CPU that serves them, without the host's own static energy."""
        return {"kernel": self.kernel_mj, "idle": self.idle_mj, "host": self.host_mj, "link": self.link_mj}

    @property
    def time_parts_us(self) -> dict[str, float]:
        """Time by stage."""
        return {
            "load": self.load_us,
            "kernel": self.kernel_us,
            "retrieve": self.retrieve_us,
            "merge": self.merge_us,
        }

    def times(self, count: int) -> AggregationCost:
        """The cost of `count` runs."""
        return AggregationCost(**{field.name: getattr(self, field.name) * count for field in fields(self)})


@dataclass(frozen=True)
class Aggregation:
    """The aggregation to run: for each destination, the sum over its edges of the features of their sources.

    Args:
        features: number of columns, head after head.
        element: the element type of the aggregation.
        widened: whether integers are accumulated in int64.
        heads: number of weights per edge; each applies to the same number of columns.
        computed: whether weights are computed at run time; then they are loaded for every aggregation, not once.
    """

    features: int
    element: ElementType
    widened: bool = False
    heads: int = 1
    computed: bool = False

    @property
    def head_columns(self) -> int:
        """Columns per head."""
        return self.features // self.heads

    def heads_of(self, first: int, columns: int) -> int:
        """The number of heads that a range of columns belongs to."""
        return (first + columns - 1) // self.head_columns - first // self.head_columns + 1


class Cluster(NamedTuple):
    """Ranks that aggregate one edge part for one feature part; `heads` is the number of heads of its columns."""

    part: int
    cores: int
    columns: int
    heads: int = 1


class Pricing:
    """Prices strategies for one graph on one machine.

    Args:
        spec: the machine.
        aggregation: what to aggregate, and in which type.
        parts: the graph's edges.
    """

    def __init__(self, spec: UpmemSpec, aggregation: Aggregation, parts: EdgeParts) -> None:
        self.spec = spec
        self.aggregation = aggregation
        self.parts = parts
        self._shared: dict[tuple[int, bool, int, str], Shares] = {}
        self._paces: dict[tuple[RowForm, Format], float] = {}

    def cost(self, strategy: Strategy) -> AggregationCost | Refusal:
        """Time and energy, considering every core and tasklet; or why the strategy cannot run."""
        refusal = refusal_of(self.spec, self.aggregation, self.parts.graph.num_src, strategy)
        if refusal is not None:
            return refusal
        return self.cost_of(strategy, clusters_of(self.spec, self.aggregation, strategy))

    def cost_of(self, strategy: Strategy, clusters: Iterable[Cluster]) -> AggregationCost | Refusal:
        """The cost with given clusters; the strategy determines only edge parts, format and balancing."""
        tally = _Tally()
        for part, alike in _by_part(clusters).items():
            rowptr, filled = self.parts.rows(strategy.edge_parts, part)
            for cluster, count in alike.items():
                form = self._form(cluster)
                cores = cores_of(rowptr, cluster.cores, strategy.cores)
                overfull = self._overfull(strategy, cluster, cores)
                if overfull is not None:
                    return overfull
                sources = self.parts.sources(strategy.edge_parts, part)
                tally.add(cluster, Rows.of(cores), form, sources, count, count if part == 0 else 0)
                tally.add_weights(cluster, int(cores.nonzeros.max()), count)
                tally.slowest += self._slowest(strategy, cores, form, rowptr, filled)
        return self._priced(tally)

    def estimate(self, strategy: Strategy) -> AggregationCost | Refusal:
        """An estimate of the cost from the heaviest edge part, and from those of its cores likely to be the slowest."""
        refusal = refusal_of(self.spec, self.aggregation, self.parts.graph.num_src, strategy)
        if refusal is not None:
            return refusal
        heaviest, rowptr, filled = self.parts.guess(strategy.edge_parts)
        tally = _Tally(simulated=1)
        timed: list[tuple[_TimedCore, RowForm]] = []
        clusters = clusters_of(self.spec, self.aggregation, strategy)
        for cluster, alike in _by_part(clusters)[heaviest].items():
            form = self._form(cluster)
            shares = self._shares(strategy, cluster, rowptr)
            overfull = self._overfull(strategy, cluster, shares.cores)
            if overfull is not None:
                return overfull
            sources = self.parts.sources(strategy.edge_parts, heaviest)
            tally.add(cluster, shares.rows, form, sources, alike * strategy.edge_parts, alike)
            tally.add_weights(cluster, shares.max_nonzeros, alike * strategy.edge_parts)
            timed += [(core, form) for core in self._slowest(strategy, shares.busiest, form, rowptr, filled)]
        tally.slowest = [_TimedCore(core.cycles) for core, _ in timed]
        cost = self._priced(tally)
        if cost.kernel_us <= _SMALL * cost.time_us:
            return cost
        tally.slowest = [self._at_pace(core, form, strategy.format) for core, form in timed]
        return self._priced(tally)

    def balanced(self, strategies: Iterable[Strategy]) -> dict[Strategy, AggregationCost]:
        """The costs if all cores and tasklets had equal shares of edges and rows, except for the longest row.

        No other property of the graph is used; strategies must not have a refusal.
        """
        alike: dict[tuple[object, ...], dict[int, list[Strategy]]] = defaultdict(lambda: defaultdict(list))
        for strategy in strategies:
            shared = strategy.cores == "nnz-exact", strategy.tasklets == "nnz-exact"
            kind = strategy.feature_parts, strategy.format, *shared, strategy.sync
            alike[kind][strategy.edge_parts].append(strategy)
        prices: dict[Strategy, AggregationCost] = {}
        for by_parts in alike.values():
            firsts = [same[0] for same in by_parts.values()]
            for first, cycles in zip(firsts, self._balanced_cycles(firsts), strict=True):
                cost = self._balanced(first, float(cycles))
                prices.update(dict.fromkeys(by_parts[first.edge_parts], cost))
        return prices

    def _balanced(self, strategy: Strategy, cycles: float) -> AggregationCost:
        cores, graph = self.spec.cores // strategy.clusters, self.parts.graph
        rows = Rows(-(-graph.num_dst // cores), graph.num_dst, 0)
        edges = -(-graph.num_edges // (strategy.edge_parts * cores))
        tally = _Tally()
        tally.slowest = [_TimedCore(cycles)]
        for (columns, heads), alike in Counter(feature_parts(self.aggregation, strategy.feature_parts)).items():
            cluster = Cluster(0, cores, columns, heads)
            sources = graph.num_src / strategy.edge_parts
            tally.add(cluster, rows, self._form(cluster), sources, alike * strategy.edge_parts, alike)
            tally.add_weights(cluster, edges, alike * strategy.edge_parts)
        return self._priced(tally)

    def _balanced_cycles(self, strategies: Sequence[Strategy]) -> Floats:
        """Cycles for strategies that differ only in edge parts: of an equally loaded core or a hub's, if slower.

        The hub's core has as much of the longest row as one core may have.
        """
        graph, kind = self.parts.graph, strategies[0]
        parts = np.array([strategy.edge_parts for strategy in strategies])
        cores = self.spec.cores // (parts * kind.feature_parts)
        edges, rows = graph.num_edges // (parts * cores), graph.num_dst // cores
        longest = self.parts.longest_row // parts
        if kind.cores == "nnz-exact":
            longest = np.minimum(longest, edges)
        columns, heads = max(feature_parts(self.aggregation, kind.feature_parts))
        form = RowForm(columns, self.aggregation.element, self.aggregation.widened, heads)
        model = CoreModel(self.spec, form)
        even = model.cycles(kind, *_even_core(kind, edges, rows, self.spec.tasklets))
        hub = model.cycles(kind, *_hub_core(kind, longest, self.spec.tasklets))
        return np.maximum(even, hub)

    def _shares(self, strategy: Strategy, cluster: Cluster, rowptr: Longs) -> Shares:
        """The shares of a cluster's cores, cached for strategies that differ only in tasklets and columns."""
        key = strategy.edge_parts, self.parts.counted(strategy.edge_parts), cluster.cores, strategy.cores
        if key not in self._shared:
            cores = cores_of(rowptr, cluster.cores, strategy.cores)
            self._shared[key] = Shares(cores, _busiest(cores), Rows.of(cores), int(cores.nonzeros.max()))
        return self._shared[key]

    def _form(self, cluster: Cluster) -> RowForm:
        return RowForm(cluster.columns, self.aggregation.element, self.aggregation.widened, cluster.heads)

    def _slowest(
        self, strategy: Strategy, cores: Cores, form: RowForm, rowptr: Longs, filled: Longs
    ) -> list[_TimedCore]:
        """The slowest cores according to the closed form, each with a function that simulates it event by event."""
        element = "int64" if self.aggregation.widened else self.aggregation.element
        tasklets = tasklets_of(rowptr, filled, cores, self.spec.tasklets, strategy, element)
        model = CoreModel(self.spec, form)
        cycles = model.cycles(strategy, cores, tasklets)
        return [
            _TimedCore(
                float(cycles[core]),
                partial(core_cycles, model, strategy, core, cores, tasklets, rowptr),
                is_sampled(core, cores, tasklets),
            )
            for core in np.argsort(-cycles, kind="stable")[:_LIKELY].tolist()
        ]

    def _at_pace(self, core: _TimedCore, form: RowForm, stored: Format) -> _TimedCore:
        """A core with long lists, scaled by the pace of the first such core simulated for this form of rows."""
        if core.simulate is None or not core.is_sampled:
            return core
        if (form, stored) not in self._paces:
            self._paces[form, stored] = core.simulate() / core.cycles
        return _TimedCore(core.cycles * self._paces[form, stored])

    def _overfull(self, strategy: Strategy, cluster: Cluster, cores: Cores) -> Refusal | None:
        """Why the data of the fullest core does not fit into its bank, or None."""
        form = self._form(cluster)
        values = ELEMENT_BYTES[self.aggregation.element]
        nonzeros = int(cores.nonzeros.max())
        rows = int(cores.rows.max())
        indices = (2 * nonzeros if strategy.format == "coo" else nonzeros + rows + 1) * _INDEX_BYTES
        sources = self.parts.sources(strategy.edge_parts, cluster.part)
        needed = sources * form.read_bytes + rows * form.written_bytes + indices + nonzeros * values * form.heads
        if needed <= self.spec.mram_bytes:
            return None
        return _lacks_memory("MRAM", needed, self.spec.mram_bytes)

    def _priced(self, tally: _Tally) -> AggregationCost:
        spec = self.spec
        weights, weights_us = self._weights(tally)
        loaded = tally.loaded + weights
        load_us = tally.loaded / (spec.link.host_to_pim_gb_per_s * 1e3) + weights_us
        cycles = tally.cycles()
        kernel_us = spec.launch_us + cycles / spec.clock_mhz
        retrieve_us = tally.retrieved / (retrieving_gb_per_s(spec, tally.retrieved / max(tally.cores, 1)) * 1e3)
        merge_us = self._merging_us(tally)
        working_us = load_us + retrieve_us + merge_us
        return AggregationCost(
            load_us,
            kernel_us,
            retrieve_us,
            merge_us,
            loaded,
            tally.retrieved,
            round(cycles),
            spec.dimms * max(spec.energy.dimm_w - spec.energy.idle_dimm_w, 0.0) * kernel_us * 1e-3,
            spec.static_w * (working_us + kernel_us) * 1e-3,
            spec.energy.copying_w * working_us * 1e-3,
            (loaded + tally.retrieved) * spec.energy.link_pj_per_byte * 1e-9,
            spec.launch_us,
            weights_us,
        )

    def _weights(self, tally: _Tally) -> tuple[int, float]:
        """Bytes of computed weights loaded per call, and the time for it; zero for weights that belong to the graph.

        The host arranges the weights of each head in the order of the cores' edges and in the cores' element type,
        reading and writing all of them. As a copy to all cores has one size, every core gets as many as the core with
        most edges. For integers, the host reads them once more in advance to find their range.
        """
        if not self.aggregation.computed:
            return 0, 0.0
        spec, size = self.spec, ELEMENT_BYTES[self.aggregation.element]
        passes = _FLOAT_BYTES + size if self.aggregation.element == "fp32" else 2 * _FLOAT_BYTES + size
        arranged = self.parts.graph.num_edges * self.aggregation.heads * passes
        sent = tally.weights * size
        return sent, arranged / (spec.link.host_gb_per_s * 1e3) + sent / (spec.link.host_to_pim_gb_per_s * 1e3)

    def _merging_us(self, tally: _Tally) -> float:
        copying = sum(rows * row_us(self.spec, size, True) for size, rows in tally.copied.items())
        return copying + sum(rows * row_us(self.spec, size, False) for size, rows in tally.added.items())


class _TimedCore(NamedTuple):
    """Cycles of a core by the closed form, a function that simulates it event by event, and whether it samples."""

    cycles: float
    simulate: Callable[[], float] | None = None
    is_sampled: bool = False


class Shares(NamedTuple):
    """The shares of a cluster's cores, of those likely to be the slowest, and the cluster's rows."""

    cores: Cores
    busiest: Cores
    rows: Rows
    max_nonzeros: int


class _Tally:
    """Totals of a strategy over all clusters."""

    def __init__(self, simulated: int = _SIMULATED) -> None:
        self.simulated = simulated
        self.slowest: list[_TimedCore] = []
        self.cores = 0
        self.loaded = 0
        self.retrieved = 0
        self.weights = 0
        self.copied: dict[int, int] = defaultdict(int)
        self.added: dict[int, int] = defaultdict(int)

    def cycles(self) -> float:
        """Cycles of the slowest core: cores are simulated until no other seems slower than the results so far.

        For cores with long lists, whose closed forms have similar errors, closed forms are compared with each other.
        """
        found = predicted = 0.0
        for place, core in enumerate(sorted(self.slowest, key=lambda core: -core.cycles)):
            if place >= self.simulated and core.cycles <= (max(found, predicted) if core.is_sampled else found):
                break
            cycles = core.simulate() if core.simulate else core.cycles
            found, predicted = max((found, predicted), (cycles, core.cycles))
        return found

    def add(self, cluster: Cluster, rows: Rows, form: RowForm, sources: float, alike: int, first: int) -> None:
        """Adds `alike` equal clusters, of which `first` are of the first edge part.

        The host copies rows of the first edge part, and adds those of other parts and those that straddle two cores.
        """
        self.cores += alike * cluster.cores
        self.loaded += round(alike * cluster.cores * sources * form.read_bytes)
        self.retrieved += alike * cluster.cores * rows.most * form.written_bytes
        self.copied[form.written_bytes] += first * (rows.all - rows.straddling)
        self.added[form.written_bytes] += (alike - first) * rows.all + first * rows.straddling

    def add_weights(self, cluster: Cluster, most: int, alike: int) -> None:
        """Adds the weights of `alike` equal clusters whose cores have at most `most` edges."""
        self.weights += alike * cluster.cores * most * cluster.heads


class Rows(NamedTuple):
    """Numbers of result rows of a cluster: of the core with most, of all cores, and of those shared by two cores."""

    most: int
    all: int
    straddling: int

    @classmethod
    def of(cls, cores: Cores) -> Rows:
        """The numbers for given cores."""
        straddling = int((cores.first_row[1:] < cores.end_row[:-1]).sum())
        return cls(int(cores.rows.max()), int(cores.rows.sum()), straddling)


def refusal_of(spec: UpmemSpec, aggregation: Aggregation, sources: int, strategy: Strategy) -> Refusal | None:
    """Why a strategy cannot run for any edges: too many parts, or too little memory for rows; None if it can."""
    ranks = spec.ranks
    if ranks % strategy.clusters:
        return Refusal(f"{strategy} has {strategy.clusters} clusters, which do not divide {ranks} ranks evenly")
    if (strategy.feature_parts - 1) * -(-aggregation.features // strategy.feature_parts) >= aggregation.features:
        return Refusal(f"{aggregation.features} features cannot be divided into {strategy.feature_parts} parts")
    if strategy.edge_parts > 1 and (strategy.edge_parts - 1) * -(-sources // strategy.edge_parts) >= sources:
        return Refusal(f"{sources} sources cannot be divided into {strategy.edge_parts} parts")
    parts = set(feature_parts(aggregation, strategy.feature_parts))
    forms = [RowForm(columns, aggregation.element, aggregation.widened, heads) for columns, heads in parts]
    scratchpad = max(_scratchpad_bytes(spec, form) for form in forms)
    if scratchpad > spec.wram_bytes:
        return _lacks_memory("WRAM", scratchpad, spec.wram_bytes)
    features = -(-sources // strategy.edge_parts) * max(form.read_bytes for form in forms)
    if features > spec.mram_bytes:
        return _lacks_memory("MRAM", features, spec.mram_bytes)
    return None


def _scratchpad_bytes(spec: UpmemSpec, form: RowForm) -> int:
    """Scratchpad bytes of all tasklets of a core: a row read, a row summed, two buffers per list, and stacks."""
    buffers = form.read_bytes + form.written_bytes + 2 * form.streams * spec.kernel.stream_buffer_bytes
    return spec.tasklets * (buffers + spec.stack_bytes)


def _lacks_memory(memory: str, needed: int, available: int) -> Refusal:
    return Refusal(
        f"a core needs {needed:,} bytes of {memory} and has {available:,}",
        needed,
        available,
        f"bytes of {memory}",
        "use more parts of edges or of features",
    )


def feature_parts(aggregation: Aggregation, count: int) -> list[tuple[int, int]]:
    """Columns of each feature part, and the number of heads they belong to."""
    widest = -(-aggregation.features // count)
    firsts = [min(part * widest, aggregation.features) for part in range(count + 1)]
    return [(end - first, aggregation.heads_of(first, end - first)) for first, end in pairwise(firsts)]


def clusters_of(spec: UpmemSpec, aggregation: Aggregation, strategy: Strategy) -> Iterator[Cluster]:
    """The clusters of a strategy, ordered by edge part, each with the next ranks."""
    together = spec.ranks // strategy.clusters
    cores = spec.rank_cores()
    parts = feature_parts(aggregation, strategy.feature_parts)
    for place in range(strategy.clusters):
        part, feature_part = divmod(place, strategy.feature_parts)
        own = sum(cores[place * together : (place + 1) * together])
        yield Cluster(part, own, *parts[feature_part])


def _by_part(clusters: Iterable[Cluster]) -> dict[int, dict[Cluster, int]]:
    """The distinct clusters of each edge part, with their numbers."""
    found: dict[int, dict[Cluster, int]] = defaultdict(lambda: defaultdict(int))
    for cluster in clusters:
        found[cluster.part][cluster] += 1
    return found


def _even_core(strategy: Strategy, edges: Longs, rows: Longs, tasklets: int) -> tuple[Cores, Tasklets]:
    """Cores with given numbers of edges and rows, shared equally by all tasklets."""
    each = np.diff(even_shares(edges, tasklets), axis=1)
    written = np.diff(even_shares(rows, tasklets), axis=1)
    if strategy.format == "coo":
        written = np.minimum(np.maximum(written, 1), each)
    head = np.minimum(each, -(-edges // np.maximum(rows, 1))[:, None])
    return Cores(0 * rows, rows, 0 * rows, edges), Tasklets(0 * each, each, written, head)


def _hub_core(strategy: Strategy, edges: Longs, tasklets: int) -> tuple[Cores, Tasklets]:
    """Cores with one row of a given number of edges each, which all tasklets share if allowed."""
    sharing = tasklets if strategy.tasklets == "nnz-exact" else 1
    each = np.zeros((len(edges), tasklets), np.int64)
    each[:, :sharing] = np.diff(even_shares(edges, sharing), axis=1)
    row = np.minimum(edges, 1)
    return Cores(0 * row, row, 0 * row, edges), Tasklets(0 * each, each, np.minimum(each, 1), each)


def _busiest(cores: Cores, count: int = 3) -> Cores:
    """The cores with most non-zeros, with most rows, and with fewest: many tasklets share long rows."""
    chosen: set[int] = set()
    for order in (np.argsort(-cores.nonzeros, kind="stable"), np.argsort(cores.rows, kind="stable")):
        chosen |= {*order[:count].tolist(), *order[-count:].tolist()}
    return cores.only(np.array(sorted(chosen)))


def retrieving_gb_per_s(spec: UpmemSpec, block_bytes: float) -> float:
    """The bandwidth of retrieving, at the nearest measured block size."""
    sizes = spec.link.block_kib
    nearest = min(range(len(sizes)), key=lambda place: abs(sizes[place] * 1024 - block_bytes))
    return spec.link.pim_to_host_gb_per_s[nearest]


def row_us(spec: UpmemSpec, row_bytes: int, copied: bool) -> float:
    """The host's time for a row: interpolated linearly between the measured sizes, and extrapolated beyond them."""
    sizes, rates = spec.merge.row_bytes, spec.merge.copy_rows_per_ms if copied else spec.merge.add_rows_per_ms
    place = min(max(bisect_left(sizes, row_bytes), 1), len(sizes) - 1)
    before, after = 1e3 / rates[place - 1], 1e3 / rates[place]
    slope = (after - before) / (sizes[place] - sizes[place - 1])
    return max(before + slope * (row_bytes - sizes[place - 1]), 0.0)

"""Plans: the decisions of the search, which the passes carry out, as data.

A plan is a sequence of decisions that covers every node of the (cleaned-up) graph exactly once, in an order in which
the decisions can run one after another. GPU and PIM synchronise at the end of each decision; for `Parallel`, at the end
of all the decisions in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise, repeat

from pimflow.errors import counted, one_line
from pimflow.ir.placement import ALL_CHANNELS
from pimflow.records import dataclass


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The node runs on one device.

    `choice` is the option requested of the device's backend (a mapping policy, a strategy); "" if it offers none. For
    the plan's host it may be `ALL_CHANNELS`.
    """

    node: str
    device: str
    choice: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return (self.node,)


@dataclass(frozen=True, slots=True)
class SplitRows:
    """MD-DP: the first `gpu_rows` output rows of the node on the plan's host device, the rest on `device`,
    concurrently.

    Rows are H of a convolution's output, M of a matrix product's (the second-last axis). `followers` are elementwise
    nodes, in order, that are applied to the two halves before the Concat that joins them.
    """

    node: str
    gpu_rows: int
    choice: str
    followers: tuple[str, ...] = ()
    device: str = "pim"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return (self.node, *self.followers)


@dataclass(frozen=True, slots=True)
class SplitColumns:
    """MD-DP along the columns: the first `gpu_columns` on the plan's host device, the rest on `device`, concurrently.

    Columns are N of a matrix product's output, the channels of a convolution's. `followers` are elementwise nodes, in
    order, that are applied to the two parts before the Concat that joins them.
    """

    node: str
    gpu_columns: int
    choice: str
    followers: tuple[str, ...] = ()
    device: str = "pim"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return (self.node, *self.followers)


@dataclass(frozen=True, slots=True)
class SplitK:
    """Split-K: the first `gpu_k` places along the summed dimension on the plan's host device, the rest on `device`.

    The summed dimension is K of a matrix product, the input channels of a convolution. Both parts run concurrently; the
    host adds them up.
    """

    node: str
    gpu_k: int
    choice: str
    device: str = "pim"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return (self.node,)


@dataclass(frozen=True, slots=True)
class SplitEdges:
    """The edges of a sum split in two: the dense ones on `device`, the rest on the plan's host device, concurrently.

    The edges from `group` consecutive sources to one destination are dense if there are at least `at_least`. The host
    adds up both parts.
    """

    node: str
    group: int
    at_least: int
    choice: str
    device: str = "pim"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return (self.node,)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A run of nodes, cut into stages along H so that stage k of a node runs alongside stage k+1 of its predecessor.

    Within a stage a node's rows may be split as well: the top ones run on the plan's host device, the rest on the
    node's own device. Such a pipeline may have a single stage; neighbours do not synchronise within it.

    Args:
        run: the nodes, in order; each but the last is read by a later one (there may be branches).
        devices: the device of each node of the run.
        stage_rows: output rows of the last node that each stage makes, in the order in which stages are run;
            they sum to its H. Stage k's rows of the other nodes follow from the receptive field.
        bottom_first: whether the first stage run is the bottom (highest rows) of the map.
        host_rows: for each node of the run, how many of its rows the host computes in each stage; () for a node that is
            never split, and () as a whole if no node is.
    """

    run: tuple[str, ...]
    devices: tuple[str, ...]
    stage_rows: tuple[int, ...]
    choice: str
    bottom_first: bool = False
    host_rows: tuple[tuple[int, ...], ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return self.run

    @property
    def stages(self) -> str:
        """The number of stages, as text."""
        return f"{len(self.stage_rows)} stages" if len(self.stage_rows) > 1 else "one stage"


Single = OnDevice | SplitRows | SplitColumns | SplitK | SplitEdges | Pipeline


@dataclass(frozen=True)
class Parallel:
    """Decisions combined: the devices synchronise only at the end of all of them. Within, work waits only for the
    values that it reads and for its device.

    `branches` exchange no values and run concurrently; each is a sequence of decisions in data-flow order. If all
    decisions are connected, there is a single branch.
    """

    branches: tuple[tuple[Single, ...], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Cached, because a search looks up the same decisions again and again."""
        return hash(self.branches)

    @cached_property
    def decisions(self) -> tuple[Single, ...]:
        """The decisions of all branches, branch by branch."""
        return tuple([decision for branch in self.branches for decision in branch])

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return tuple([name for decision in self.decisions for name in decision.nodes])


@dataclass(frozen=True)
class Storage:
    """How much of a unit's memory a plan uses (for weights), and the capacity of that memory."""

    device: str
    used: int
    bound: int
    unit: str


@dataclass(frozen=True)
class MemoryLimit:
    """The cost of unit memories too small for the best plan: its time, and a lower bound for the plans that fit."""

    unlimited_us: float
    bound_us: float


Decision = Single | Parallel


def has_all_channels(decision: Decision) -> bool:
    """Whether the host has all memory channels during a decision."""
    return isinstance(decision, OnDevice) and decision.choice == ALL_CHANNELS


def renamed(decision: Decision, called: Callable[[str], str]) -> Decision:
    """The decision for renamed nodes; `called` maps each old name to its new one."""
    if isinstance(decision, Parallel):
        return Parallel(tuple(tuple(_renamed(item, called) for item in branch) for branch in decision.branches))
    return _renamed(decision, called)


def _renamed(decision: Single, called: Callable[[str], str]) -> Single:
    """`renamed` for a decision without branches."""
    if isinstance(decision, OnDevice):
        return OnDevice(called(decision.node), decision.device, decision.choice)
    if isinstance(decision, Pipeline):
        return replace(decision, run=tuple(map(called, decision.run)))
    if isinstance(decision, SplitRows | SplitColumns):
        followers = tuple(map(called, decision.followers))
        return replace(decision, node=called(decision.node), followers=followers)
    return replace(decision, node=called(decision.node))


def devices_away(decision: Decision, host: str) -> Iterator[str]:
    """The devices of nodes off the host, one per node, except nodes whose rows a pipeline shares with the host."""
    for item in singles(decision):
        if isinstance(item, Pipeline):
            whole = zip(item.devices, item.host_rows or repeat(()), strict=False)
            yield from (device for device, on_host in whole if device != host and not on_host)
        elif not isinstance(item, OnDevice) or item.device != host:
            yield item.device


def leaves_host(decision: Decision, host: str) -> bool:
    """Whether any part of a decision runs off the host device."""
    if isinstance(decision, OnDevice):
        return decision.device != host
    if isinstance(decision, Parallel):
        return any(leaves_host(item, host) for item in decision.decisions)
    return True


def switches(decisions: Sequence[Decision]) -> int:
    """How often memory channels change hands in an inference; the units hold them at its start and end."""
    states = [False, *map(has_all_channels, decisions), False]
    return sum(before != after for before, after in pairwise(states))


def singles(decision: Decision) -> tuple[Single, ...]:
    """The decision itself, or the decisions of all its branches."""
    return decision.decisions if isinstance(decision, Parallel) else (decision,)


@dataclass(frozen=True, repr=False)
class Plan:
    """Decisions in execution order, and what the search predicted for them (microseconds).

    `host` is the device that runs everything that no decision assigns elsewhere: the movements left over from splitting
    nodes, the elementwise followers of a split, and the whole baseline. `stored` is how full the units' memories are
    (at most full), `limit` what their size costs, None if the best plan fits. `objective` is the metric that the plan
    is best in; `complete` is whether the search covered everything rather than running out of its time budget. With
    several inferences in flight, `interval_us` is the time between two of them, of which the busiest device is idle for
    `rest_us` because memory cannot hold more inferences at once.
    """

    policy: str
    decisions: tuple[Decision, ...]
    predicted_us: float
    baseline_us: float
    candidates: int = 0
    search_seconds: float = field(default=0.0, compare=False)
    host: str = "gpu"
    stored: tuple[Storage, ...] = ()
    limit: MemoryLimit | None = None
    objective: str = "latency"
    complete: bool = True
    interval_us: float | None = None
    rest_us: float = 0.0

    def __repr__(self) -> str:
        times = f"{self.predicted_us:,.1f} us, {self.host.upper()} alone {self.baseline_us:,.1f} us"
        return one_line("Plan", f"{self.policy}: {counted(len(self.decisions), 'decision')}, {times}")

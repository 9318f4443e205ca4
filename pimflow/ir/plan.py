"""What the search decides and the passes carry out: a plan as data.

A plan is a sequence of decisions that covers every node of the (cleaned-up) graph once, in an order in which the
decisions can run one after the other: GPU and PIM meet at the end of each decision (of `Parallel`, of all in it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import pairwise, repeat

from pimflow.errors import one_line
from pimflow.ir.placement import ALL_CHANNELS
from pimflow.records import dataclass


@dataclass(frozen=True)
class OnDevice:
    """The node runs on one device.

    `choice` is what the device's backend is asked for (a mapping policy, a strategy); "" where it offers none. Of the
    plan's host it may be `ALL_CHANNELS`.
    """

    node: str
    device: str
    choice: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return (self.node,)


@dataclass(frozen=True)
class SplitRows:
    """MD-DP: the first `gpu_rows` output rows of the node on the plan's host device, the rest on `device`, at once.

    Rows are H of a convolution's output, M of a matrix product's (the second-last axis). `followers` are elementwise
    nodes, in order, that are applied to the two halves before the one Concat.
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


@dataclass(frozen=True)
class SplitColumns:
    """MD-DP along the columns: the first `gpu_columns` on the plan's host device, the rest on `device`, at once.

    Columns are N of a matrix product's output, the channels of a convolution's. `followers` are elementwise nodes, in
    order, that are applied to the two parts before the one Concat.
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


@dataclass(frozen=True)
class SplitK:
    """Split-K: the first `gpu_k` of what the node sums over on the plan's host device, the rest on `device`, at once.

    That are the inner elements of a matrix product, the input channels of a convolution. The host adds up both parts.
    """

    node: str
    gpu_k: int
    choice: str
    device: str = "pim"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return (self.node,)


@dataclass(frozen=True)
class SplitEdges:
    """The edges of a sum divided: the dense ones on `device`, the rest on the plan's host device, at once.

    Dense is what a destination has from `group` consecutive sources, if that is at least `at_least` edges. The host
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


@dataclass(frozen=True)
class Pipeline:
    """A run of nodes, cut into stages along H so that stage k of one node runs beside stage k+1 of its neighbour.

    Within a stage a node's rows may be divided as well, the top ones on the plan's host device, the rest on the node's;
    then there may be one stage alone, in which neighbours do not meet.

    Args:
        run: the nodes, in order; each but the last is read by a later one (there may be branches).
        devices: the device of each node of the run.
        stage_rows: output rows of the last node that each stage makes, in the order in which stages are run;
            they sum to its H. Stage k's rows of the other nodes follow from the receptive field.
        bottom_first: whether the first stage run is the bottom (highest rows) of the map.
        host_rows: by node of the run, how many of its rows the host makes in each stage, none of a node that is
            nowhere divided; nothing at all if no node is.
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
        """How many stages there are, in words."""
        return f"{len(self.stage_rows)} stages" if len(self.stage_rows) > 1 else "one stage"


Single = OnDevice | SplitRows | SplitColumns | SplitK | SplitEdges | Pipeline


@dataclass(frozen=True)
class Parallel:
    """Decisions put together: devices meet at the end of all of them alone. What is in one waits for the values that it
    reads, and for its device.

    `branches` exchange nothing with each other and run at once; each is a sequence of decisions along the data flow.
    Where all are connected there is one.
    """

    branches: tuple[tuple[Single, ...], ...]

    @property
    def decisions(self) -> tuple[Single, ...]:
        """Those of all branches, one branch after the other."""
        return tuple(decision for branch in self.branches for decision in branch)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes this decision covers."""
        return tuple(name for decision in self.decisions for name in decision.nodes)


@dataclass(frozen=True)
class Storage:
    """What a plan keeps in a unit's memory (weights), and how much that memory holds."""

    device: str
    used: int
    bound: int
    unit: str


@dataclass(frozen=True)
class MemoryLimit:
    """Where memories of units forbid the best plan: what that would take, and what no plan that fits can be below."""

    unlimited_us: float
    bound_us: float


Decision = Single | Parallel


def has_all_channels(decision: Decision) -> bool:
    """Whether the host has all memory channels meanwhile."""
    return isinstance(decision, OnDevice) and decision.choice == ALL_CHANNELS


def renamed(decision: Decision, called: Callable[[str], str]) -> Decision:
    """The same decided of nodes that are called otherwise."""
    if isinstance(decision, Parallel):
        return Parallel(tuple(tuple(_renamed(item, called) for item in branch) for branch in decision.branches))
    return _renamed(decision, called)


def _renamed(decision: Single, called: Callable[[str], str]) -> Single:
    """The same of a decision without branches."""
    if isinstance(decision, OnDevice):
        return OnDevice(called(decision.node), decision.device, decision.choice)
    if isinstance(decision, Pipeline):
        return replace(decision, run=tuple(map(called, decision.run)))
    if isinstance(decision, SplitRows | SplitColumns):
        followers = tuple(map(called, decision.followers))
        return replace(decision, node=called(decision.node), followers=followers)
    return replace(decision, node=called(decision.node))


def devices_away(decision: Decision, host: str) -> Iterator[str]:
    """For every node that runs elsewhere than on the host device: where; those that stages divide are left out."""
    for item in singles(decision):
        if isinstance(item, Pipeline):
            whole = zip(item.devices, item.host_rows or repeat(()), strict=False)
            yield from (device for device, on_host in whole if device != host and not on_host)
        elif not isinstance(item, OnDevice) or item.device != host:
            yield item.device


def leaves_host(decision: Decision, host: str) -> bool:
    """Whether any part of a decision runs elsewhere than on the host device."""
    if isinstance(decision, OnDevice):
        return decision.device != host
    if isinstance(decision, Parallel):
        return any(leaves_host(item, host) for item in decision.decisions)
    return True


def switches(decisions: Sequence[Decision]) -> int:
    """How often memory channels change hands in a run. It begins and ends with them at the units."""
    states = [False, *map(has_all_channels, decisions), False]
    return sum(before != behind for before, behind in pairwise(states))


def singles(decision: Decision) -> tuple[Single, ...]:
    """A decision, or those of all its branches."""
    return decision.decisions if isinstance(decision, Parallel) else (decision,)


@dataclass(frozen=True, repr=False)
class Plan:
    """Decisions in execution order, and what the search predicted for them (microseconds).

    `host` is the device that runs what no decision sends elsewhere: the movements that cutting nodes up leaves behind,
    the elementwise followers of a split, and everything in the baseline. `stored` says how full the units' memories are
    (no more than full), `limit` what that costs, None where the best plan fits. `objective` is what it is best in,
    `complete` whether the search looked at everything, or ended with its time budget. With inferences in flight
    `interval_us` lies between two of them; of that the busiest device rests `rest_us`, as the memory holds no more
    inferences at once.
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
        return one_line("Plan", f"{self.policy}: {len(self.decisions)} decisions, {times}")

"""A lower bound on the makespan of every plan for a graph and a machine, whatever the policy.

Every node is assumed to run at the best rate that any share of it reaches on a device (`least_times`). Whatever a plan
does with a node, it gives the devices d shares x_d of it, which add up to one, and keeps each device busy for at least
x_d times the whole node's time there at its best rate. Three bounds follow:

- **Load.** No resource is busy for longer than the makespan T, queued launches included. Where a unit computes a
  node, the host computes the part of its epilogue that the unit cannot, and, where only the product of an operator
  runs on the unit, the rest of that operator (all steps of an LSTM). The least T over all shares is a linear program,
  the load balance of unrelated machines (Lenstra, Shmoys and Tardos, Mathematical Programming 46, 1990, without
  integrality). By duality it is the maximum, over prices of the resources that add up to one, of the sum over the
  nodes of the cheapest device at these prices. Any prices give a valid bound, so the result does not depend on the
  precision of a solver.
- **Path.** A node starts when its inputs are ready: all of each input, or as much as one row needs if both nodes may be
  parts of one pipeline or split. It then takes as long as it does on one device, or on several together: at their best
  rates, and no less than the smallest share takes on any of them. It ends no earlier than one of its own rows after its
  inputs are complete. The longest chain of these is the critical path.
- **Meeting.** A node that all others wait for runs alone or in a pipeline, with a kernel for every part; what lies
  between two such nodes runs between them or with them (`meeting_bound`).

Fetching rows of tables from the host's memory is a decision of its own in every plan, and nothing runs in parallel with
it. A lower bound on its time (**transfer**: every row once over the link, at the rate of the best way) is added.

Movements, and copies of results that the host adds up, do not count. The host alone with all memory channels is a plan
too, and may be below all of these bounds. It is the only plan, and so the bound, for a graph of movements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import combinations

import numpy as np
import numpy.typing as npt

from pimflow.ir import Graph, Node
from pimflow.records import NamedTuple, dataclass
from pimflow.search.epilogues import members_by_root, own_kernels
from pimflow.search.flows import Flow, flow_in
from pimflow.search.least_times import Costs, LeastTimes, NodeTimes
from pimflow.search.meeting_bound import meeting_bound
from pimflow.search.node_costs import NodeCosts

Array = npt.NDArray[np.float64]

_STEPS = 60
"""The number of steps of a search between two resources; each narrows it down by the golden ratio."""
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Bottleneck:
    """A node and its contribution to the bound."""

    node: str
    time_us: float


@dataclass(frozen=True)
class MakespanBound:
    """A lower bound on the makespan of every plan, and what it comes from.

    Args:
        time_us: the bound: the smaller of `host_us` and `transfer_us + max(load_us, path_us, meeting_us)`; `host_us` if
            those are zero and nothing can leave the host.
        load_us: the time of the work if it is divided over the resources as evenly as possible.
        path_us: the time of the longest chain of nodes.
        meeting_us: the time of the nodes that all others wait for, and of those between them, as devices synchronise
            after every decision.
        transfer_us: the time for fetching rows of tables from the host's memory.
        host_us: the host alone, with all memory channels.
        bottlenecks: the fewest nodes that make up half of the bound, the largest contribution first.
    """

    time_us: float
    load_us: float
    path_us: float
    meeting_us: float
    transfer_us: float
    host_us: float
    bottlenecks: tuple[Bottleneck, ...]

    @property
    def binding(self) -> str:
        """The bound that determines the result, or most of it: "load", "path", "meeting", "transfer" or "host"."""
        bounds_us = {"load": self.load_us, "path": self.path_us, "meeting": self.meeting_us}
        most = max(bounds_us.values())
        if self.time_us != most + self.transfer_us:
            return "host"
        return "transfer" if self.transfer_us > most else next(name for name, us in bounds_us.items() if us == most)

    def ratio(self, time_us: float) -> float:
        """The ratio of a time to the bound; 1 if there is nothing to do."""
        return time_us / self.time_us if self.time_us > 0 else 1.0


def makespan_bound(graph: Graph, costs: Costs, host_us: float) -> MakespanBound:
    """The lower bound for a graph.

    Args:
        graph: cleaned up, as the search receives it.
        costs: the cost model in PIM mode.
        host_us: the time of the host alone, with all memory channels.
    """
    busy, times = (
        {node.name: least.of(node) for node in graph.nodes}
        for least in (LeastTimes(graph, costs, busy=True), LeastTimes(graph, costs))
    )
    behind = _behind(graph, busy, costs)
    load_us, weights = _load(costs, busy, behind)
    path_us, path = _critical_path(graph, times)
    meeting_us, meeting = meeting_bound(graph, NodeCosts(busy, times, behind))
    transfers = costs.least_transfers_us(graph)
    transfer_us = sum(transfers.values(), 0.0)
    parts = (load_us, path_us, meeting_us, transfer_us, host_us)
    other_us = max(load_us, path_us, meeting_us) + transfer_us
    leaves = any(least.device in costs.units for time in times.values() for least in time.on_devices)
    if host_us <= other_us or (other_us == 0 and not leaves):
        alone = {
            node.name: costs.node_cost(graph, node.placed(device=costs.target.host)).time_us for node in graph.nodes
        }
        return MakespanBound(host_us, *parts, _bottlenecks(alone))
    found = max((load_us, weights), (path_us, path), (meeting_us, meeting), key=lambda bound: bound[0])
    return MakespanBound(found[0] + transfer_us, *parts, _bottlenecks({**found[1], **transfers}))


def _bottlenecks(shares: Mapping[str, float]) -> tuple[Bottleneck, ...]:
    """The fewest nodes that make up half of the sum; ties go to those that come first."""
    half, found = sum(shares.values()) / 2, []
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        if half <= 0:
            break
        found.append(Bottleneck(name, share))
        half -= share
    return tuple(found)


def _behind(graph: Graph, busy: Mapping[str, NodeTimes], costs: Costs) -> dict[tuple[str, str], float]:
    """By node and unit, a lower bound on how long the host is busy if the unit computes the node: for the epilogue, and
    for the rest of an operator if only its product runs on the unit.

    An elementwise node takes a launch plus time in proportion to its size: no share of it has a better rate than all of
    it.
    """
    found = {(name, least.device): least.beside_us for name, time in busy.items() for least in time.on_devices}
    host = costs.target.host
    for root, members in members_by_root(graph).items():
        for device in costs.units:
            own = own_kernels(graph, root, members, device, costs.readouts, host)
            kernels = [graph.node(name).placed(device=host, fused_into=None) for name in members if own[name]]
            epilogue_us = sum(_busy_us(graph, node, costs) for node in kernels)
            found[root, device] = found.get((root, device), 0.0) + epilogue_us
    return found


def _busy_us(graph: Graph, node: Node, costs: Costs) -> float:
    """A lower bound on how long the host is busy with a node in a kernel of its own."""
    alone_us = costs.node_cost(graph, node).time_us - costs.avoidable_us(graph, node, busy=costs.queues_launches)
    return min(alone_us, costs.measured_us(node.op))


def _load(
    costs: Costs, busy: Mapping[str, NodeTimes], behind: Mapping[tuple[str, str], float]
) -> tuple[float, dict[str, float]]:
    """The load balance, and each node's contribution to it at the optimal prices of the resources."""
    names = [name for name, time in busy.items() if any(least.whole_us for least in time.on_devices)]
    if not names:
        return 0.0, {}
    resources = (costs.target.host, *costs.units, *map(_link, costs.units))
    loads = _loads({name: busy[name] for name in names}, behind, resources)
    loads = loads[:, :, loads.any(axis=(0, 1))]  # nothing is gained by a price of the others
    prices = _best_prices(loads)
    weights = (loads @ prices).min(axis=1)
    return float(weights.sum()), dict(zip(names, weights.tolist(), strict=True))


def _loads(times: Mapping[str, NodeTimes], behind: Mapping[tuple[str, str], float], resources: Sequence[str]) -> Array:
    """The loads of resources by node: [nodes, devices, resources]; nodes with fewer devices repeat their last one."""
    at = {resource: place for place, resource in enumerate(resources)}
    host, most = resources[0], max(len(time.on_devices) for time in times.values())
    loads = np.zeros((len(times), most, len(resources)))
    for row, (name, time) in zip(loads, times.items(), strict=True):
        for place in range(most):
            least = time.on_devices[min(place, len(time.on_devices) - 1)]
            row[place, at[host]] = behind.get((name, least.device), 0.0)
            row[place, at[least.device]] += least.whole_us
            if least.link_us:
                row[place, at[_link(least.device)]] = least.link_us
    return loads


def _best_prices(loads: Array) -> Array:
    """The prices of resources, adding up to one, that maximise the total cost of the nodes.

    The total cost is concave: along the line between any two prices it has one maximum, which the golden-section search
    finds. With two resources that is enough; with more it is repeated for every pair until nothing is gained.
    """
    prices = np.full(loads.shape[2], 1 / loads.shape[2])
    best = -math.inf
    for _ in range(_STEPS):
        for first, second in combinations(range(len(prices)), 2):
            prices = _best_between(loads, prices, first, second)
        cost = _cost(loads, prices)
        if cost <= best * (1 + 1e-6) or len(prices) <= 2:
            break
        best = cost
    return prices


def _best_between(loads: Array, prices: Array, first: int, second: int) -> Array:
    """The same prices, with the sum of two of them divided optimally."""
    both = prices[first] + prices[second]

    def divided(share: float) -> Array:
        changed: Array = prices.copy()
        changed[first], changed[second] = share * both, (1 - share) * both
        return changed

    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _cost(loads, divided(left)) < _cost(loads, divided(right)):
            low = left
        else:
            high = right
    moved = divided((low + high) / 2)
    return moved if _cost(loads, moved) > _cost(loads, prices) else prices


def _cost(loads: Array, prices: Array) -> float:
    return float(reduce(np.minimum, (loads @ prices).T).sum())


def _link(device: str) -> str:
    """The resource for copies to and from a device."""
    return f"link of {device}"


class _Reach(NamedTuple):
    """Lower bounds on when the first part of a node has ended, and all of it.

    `behind` is the node after whose end, or (`flows`) after whose first part, it starts; `ends_behind` is the node
    after whose end it still has one part to run, if that is later than its start plus its whole time.
    """

    first_us: float
    end_us: float
    behind: str | None
    flows: bool
    ends_behind: str | None


def _critical_path(graph: Graph, times: Mapping[str, NodeTimes]) -> tuple[float, dict[str, float]]:
    """The length of the longest chain, and the contributions of its nodes."""
    reached: dict[str, _Reach] = {}
    for node in graph.nodes:
        reached[node.name] = _reach(graph, node, times, reached)
    if not reached:
        return 0.0, {}
    last = max(reached, key=lambda name: reached[name].end_us)
    return reached[last].end_us, _chain(last, times, reached)


def _chain(last: str, times: Mapping[str, NodeTimes], reached: Mapping[str, _Reach]) -> dict[str, float]:
    """The contributions of the nodes of the chain to a node's end."""
    added: dict[str, float] = {}
    name: str | None = last
    whole = True
    while name is not None:
        reach = reached[name]
        behind = reach.ends_behind if whole else None
        added[name] = times[name].whole_us if whole and behind is None else times[name].first_us
        name, whole = (behind, True) if behind is not None else (reach.behind, not reach.flows)
    return added


def _reach(graph: Graph, node: Node, times: Mapping[str, NodeTimes], reached: Mapping[str, _Reach]) -> _Reach:
    """A lower bound on when a node ends.

    It starts after the end of any input that it reads whole. If it reads an input row by row, the first rows are enough
    to start with, provided that every part of the node reads some; and if all of the input is read, one part of the
    node follows the input's last rows.
    """
    own = times[node.name]
    start, behind, flows = 0.0, None, False
    end, ends_behind = 0.0, None
    inputs: Sequence[Flow | None] = flow_in(graph, node) if own.flows else [None] * len(node.inputs)
    for name, by_rows in zip(node.inputs, inputs, strict=True):
        producer = graph.producer(name) if name else None
        if producer is None:
            continue
        before, flow = reached[producer.name], by_rows if times[producer.name].flows else None
        ready = before.end_us if flow is None else before.first_us if flow.every_part_reads else 0.0
        if ready > start:
            start, behind, flows = ready, producer.name, flow is not None
        if flow is not None and flow.all_is_read and before.end_us + own.first_us > end:
            end, ends_behind = before.end_us + own.first_us, producer.name
    whole_us = start + own.whole_us
    return _Reach(start + own.first_us, max(whole_us, end), behind, flows, ends_behind if end > whole_us else None)

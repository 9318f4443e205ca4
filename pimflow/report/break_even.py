"""How a unit compares with the host for a node, and which key of the machine would make it as fast as the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pimflow.errors import ArgumentError, TargetError
from pimflow.ir import Graph, Node, OnDevice, Plan, Refusal
from pimflow.ir.expansion import is_expandable
from pimflow.passes import PassManager
from pimflow.records import dataclass
from pimflow.report.explanation import FACTORS, Need, Verdict
from pimflow.report.measures import measure
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.measured import MeasuredTable
from pimflow.search.pricing import rewrites
from pimflow.targets import Target, override

_NOTICEABLE = 0.995  # a change counts only if it reduces the time to less than this share


def compare_with_host(region: Graph, anchor: Node, device: str, costs: CostModel) -> Verdict:
    """How a unit compares with the host for a node, without what would change that."""
    found = _unit_time_us(region, anchor, device, costs)
    if isinstance(found, Refusal):
        return Verdict(device, found.reason, None, in_vain=found.in_vain)
    work, unit = costs.work(region, anchor, device), costs.units[device]
    report = work if isinstance(work, Refusal) else unit.explain(work, unit.choices[-1])
    return Verdict(device, "", found, standing="" if isinstance(report, Refusal) else report.standing)


@dataclass(frozen=True, eq=False)
class Slower:
    """A node on which a unit is slower than the host.

    Args:
        region: the node with everything fused into it.
        anchor: the node.
        time_us: the unit's time.
    """

    region: Graph
    anchor: Node
    time_us: float


def break_even_needs(
    nodes: Sequence[Slower],
    device: str,
    costs: CostModel,
    measured: MeasuredTable | None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[tuple[Need, ...]]:
    """For each of some nodes on which a unit is slower, the keys that would make it as fast as the host, best first.

    Machines are slow to describe and to time, so each is made once for all nodes.
    """
    needs: list[list[Need]] = [[] for _ in nodes]
    keys = _numeric_keys(costs.target, device) if nodes else {}
    for number, (key, value) in enumerate(keys.items(), 1):
        progress(f"what would change decisions: {key}, {number} of {len(keys)} keys")
        changes = _smallest_changes(nodes, device, costs.target, measured, key, value)
        for found, need in zip(needs, changes, strict=True):
            found.extend([] if need is None else [need])
    return [tuple(sorted(found, key=lambda need: need.time_us)) for found in needs]


def rewritten(region: Graph, plan: Plan, costs: CostModel) -> Graph:
    """The region as rewritten by a plan."""
    return PassManager(rewrites(plan, costs)).run(region).graph


def _unit_time_us(region: Graph, anchor: Node, device: str, costs: CostModel) -> float | Refusal:
    """Time of the whole node on a unit with its best choice; with the rest on the host if only a product can leave."""
    work, choice = costs.work(region, anchor, device), costs.units[device].choices[-1]
    if isinstance(work, Refusal):
        return work
    cost = costs.unit_cost(device, work, choice)
    if isinstance(cost, Refusal) or not is_expandable(anchor.op):
        return cost if isinstance(cost, Refusal) else cost.time_us
    host = costs.target.host
    placed = (
        OnDevice(node.name, device, choice) if node is anchor else OnDevice(node.name, host) for node in region.nodes
    )
    return measure(rewritten(region, Plan("explain", tuple(placed), 0.0, 0.0, host=host), costs), costs).time_us


def _numeric_keys(target: Target, device: str) -> Mapping[str, float]:
    """The numeric keys of a unit that influence its times: no energies, and only the timing profile in use."""
    profile = target.values.get(f"{device}.timing.default")
    found = {}
    for key, value in target.values.items():
        of_another = key.startswith(f"{device}.timing.") and not key.startswith(f"{device}.timing.{profile}.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if key.startswith(f"{device}.") and ".energy." not in key and is_number and not of_another:
            found[key] = value
    return found


def _smallest_changes(
    nodes: Sequence[Slower], device: str, target: Target, measured: MeasuredTable | None, key: str, value: float
) -> list[Need | None]:
    """For each node, the smallest change of one key that is enough; None if none of the tried ones is."""
    needs: list[Need | None] = [None] * len(nodes)
    for direction in (1, -1):
        if None in needs:
            machines = list(_values_to_try(target, measured, key, value, direction))
            needs = [
                need or _smallest_change(node, device, key, value, machines)
                for need, node in zip(needs, nodes, strict=True)
            ]
    return needs


def _smallest_change(
    node: Slower, device: str, key: str, value: float, machines: Sequence[tuple[float, CostModel]]
) -> Need | None:
    """The first of the machines, which differ in one key, on which a unit is as fast as the host."""
    for after, costs in machines:
        if not _can_be_enough(node, device, costs):
            continue
        time_us = _unit_time_us(node.region, node.anchor, device, costs)
        if isinstance(time_us, Refusal) or time_us > node.time_us * _NOTICEABLE:
            break
        host_us = costs.host_only().node_cost(node.region, node.anchor).time_us
        if time_us <= host_us:
            return Need(key, value, after, time_us, host_us)
    return None


def _values_to_try(
    target: Target, measured: MeasuredTable | None, key: str, value: float, direction: int
) -> Iterator[tuple[float, CostModel]]:
    """Values of a key at growing distances from the current one, with the machine for each, while these are valid."""
    for factor in FACTORS:
        after = value * factor if direction > 0 else value / factor
        after = max(1, round(after)) if isinstance(value, int) else after
        try:
            yield after, CostModel(override(target, {key: after}), measured=measured)
        except (TargetError, ArgumentError, ValueError):
            return


def _can_be_enough(node: Slower, device: str, costs: CostModel) -> bool:
    """Whether a unit could be as fast as the host, by the lower bound of its product; checked before any search."""
    work, unit = costs.work(node.region, node.anchor, device), costs.units[device]
    if isinstance(work, Refusal):
        return False
    return unit.lower_bound_us(work, unit.choices[-1]) <= costs.host_only().node_cost(node.region, node.anchor).time_us

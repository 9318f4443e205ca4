"""The least costs of nodes at prices of device time that add up to one: a plan that takes a time T at any prices costs
no more than T, so what nodes cost is a lower bound on it (`meeting_bound`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from pimflow.records import NamedTuple
from pimflow.search.least_times import NodeTimes
from pimflow.search.run_bound import Ways
from pimflow.search.share_times import DividedTimes, PartTimes

Array = npt.NDArray[np.float64]

PRICES = np.linspace(0.0, 1.0, 65)
"""The prices of the host's time; the rest, up to one, is divided among the units."""


class NodeCosts:
    """The costs of nodes at all prices. Nodes that are alike share their times, and their costs.

    Args:
        busy: by node, the minimum times for which devices are busy with it.
        times: by node, its minimum times from operands to results.
        behind: by node and unit, the host's minimum time for the epilogue if the unit computes the node.
    """

    def __init__(
        self,
        busy: Mapping[str, NodeTimes],
        times: Mapping[str, NodeTimes],
        behind: Mapping[tuple[str, str], float],
    ) -> None:
        self.busy = busy
        self._times = times
        self._behind = behind
        self._costs: dict[tuple[int, tuple[float, ...]], Array] = {}
        self._ways: dict[tuple[int, tuple[float, ...]], Ways] = {}

    def cost(self, name: str) -> Array:
        """The cost of a node, however it is divided."""
        busy, behind_us = self.busy[name], self._behind_us(name)
        key = id(busy), behind_us
        if key not in self._costs:
            found = np.minimum(*_at_rates(busy, behind_us))
            if busy.rows and busy.only_rows:
                found = np.maximum(found, reduce(np.minimum, _divided(busy.rows, behind_us, in_parts=False)))
            self._costs[key] = found
        return self._costs[key]

    def ways(self, name: str) -> Ways:
        """The costs of a node of which every device computes rows that others may wait for, in two parts or more in
        all."""
        busy, rows, behind_us = self.busy[name], self._times[name].rows, self._behind_us(name)
        if busy.rows is None or rows is None:
            return Ways.anywhere(self.cost(name))
        key = id(busy), behind_us
        if key not in self._ways:
            self._ways[key] = _ways(busy, busy.rows, rows, behind_us)
        return self._ways[key]

    def _behind_us(self, name: str) -> tuple[float, ...]:
        """By unit that can run a node, the host's time for its epilogue."""
        units = self.busy[name].on_devices[1:]
        return tuple([self._behind.get((name, unit.device), 0.0) for unit in units])


class _Divided(NamedTuple):
    """The costs of a node on the host, on units, or on both."""

    host: Array
    units: Array
    both: Array


def _of_unit(units: int) -> Array:
    """The prices of the time of one unit."""
    return (1 - PRICES) / max(units, 1)


def _at_rates(busy: NodeTimes, behind_us: Sequence[float]) -> tuple[Array, Array]:
    """The costs of a node on the host and on the cheapest unit, at the best rates of any shares."""
    host, *units = busy.on_devices
    each = _of_unit(len(units))
    on_units = [each * unit.whole_us + PRICES * left_us for unit, left_us in zip(units, behind_us, strict=True)]
    return PRICES * host.whole_us, reduce(np.minimum, on_units, np.full(len(PRICES), np.inf))


def _divided(divided: DividedTimes, behind_us: Sequence[float], *, in_parts: bool) -> _Divided:
    """The costs of a node divided by rows; `in_parts` is in two parts or more."""
    host, never = divided.host, np.full(len(PRICES), np.inf)
    on_host = PRICES * (host.divided_us[-1] if in_parts else host.all_us)
    if not divided.units:
        return _Divided(on_host, never, never)
    unit, each, left_us = PartTimes.of_any(divided.units), _of_unit(len(divided.units)), min(behind_us)
    on_units = each * (unit.divided_us[-1] if in_parts else unit.all_us) + PRICES * left_us
    host_us, unit_us = divided.shared_us(unit)
    last = host.cells.last
    left = left_us * (1 - last[1 : len(host_us) + 1] / last[-1])
    shared = PRICES[:, None] * (host_us + left) + each[:, None] * unit_us
    return _Divided(on_host, on_units, shared.min(axis=1, initial=np.inf))


def _ways(busy: NodeTimes, busy_rows: DividedTimes, rows: DividedTimes, behind_us: Sequence[float]) -> Ways:
    host, units, both = map(np.maximum, _divided(busy_rows, behind_us, in_parts=True), _least_at_rates(busy, behind_us))
    only_host = host + (1 - PRICES) * rows.host.least_us
    if not rows.units:
        return Ways(host, units, both, only_host, units)
    if max(behind_us) > 0:  # where some unit computes the node, the host has work
        never = np.full(len(PRICES), np.inf)
        return Ways(host, never, np.minimum(both, units), only_host, never)
    return Ways(host, units, both, only_host, units + PRICES * PartTimes.of_any(rows.units).least_us)


def _least_at_rates(busy: NodeTimes, behind_us: Sequence[float]) -> _Divided:
    host, units = _at_rates(busy, behind_us)
    return _Divided(host, units, np.minimum(host, units))

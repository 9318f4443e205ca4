"""The costs of nodes at prices of device time: a run costs no more than it takes, however it is divided."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from pimflow.search.least_times import DeviceTimes, NodeTimes
from pimflow.search.node_costs import PRICES, NodeCosts
from pimflow.search.run_bound import Runs
from pimflow.search.share_times import ShareTimes

ROWS = 6
ROUNDING = 1 + 1e-9

Times = dict[str, list[float]]
"""By device, the time of each number of rows."""
Parts = tuple[tuple[str, int, int], ...]
"""A node's parts: the device, the first row, and the row behind the last."""


def flat(us: float) -> list[float]:
    return [0.0] + [us] * ROWS


def linear(us: float, launch_us: float = 0.0) -> list[float]:
    return [0.0] + [launch_us + us * count / ROWS for count in range(1, ROWS + 1)]


CHAINS: dict[str, list[Times]] = {
    "host, then unit": [{"host": flat(5.0)}, {"host": flat(20.0), "unit": linear(9.0, 0.5)}],
    "unit, then host": [{"host": linear(40.0), "unit": linear(9.0, 0.5)}, {"host": flat(5.0)}],
    "either": [{"host": linear(12.0, 1.0), "unit": linear(9.0, 0.5)}, {"host": flat(6.0), "unit": linear(14.0)}],
    "three": [{"host": flat(4.0)}, {"host": linear(30.0), "unit": linear(8.0)}, {"host": linear(6.0, 2.0)}],
}


def node_times(times: Times, *, only_rows: bool = True) -> NodeTimes:
    devices = []
    for device, us in times.items():
        each_us = min(us[count] / count for count in range(1, ROWS + 1))
        shares = ShareTimes(tuple(enumerate(us))[1:], each_us)
        devices.append(DeviceTimes(device, each_us * ROWS, 0.0, us[1], us[1], rows=shares))
    return NodeTimes(tuple(devices), divided=True, only_rows=only_rows, flows=True)


def costs_of(chain: list[Times], behind_us: float = 0.0) -> NodeCosts:
    times = {str(place): node_times(own) for place, own in enumerate(chain)}
    return NodeCosts(times, times, {(name, "unit"): behind_us for name in times})


def bound_us(chain: list[Times]) -> float:
    """The bound on a run of the whole chain."""
    first, *others = (costs_of(chain).ways(str(place)) for place in range(len(chain)))
    runs = reduce(Runs.with_step, others, Runs.from_step(0.0, first))
    return float(runs.least_us.max())


def divisions(times: Times) -> Iterator[Parts]:
    """Two or three parts, on any devices that can run the node."""
    for count in (1, 2):
        for cuts in combinations(range(1, ROWS), count):
            spans = list(pairwise((0, *cuts, ROWS)))
            for devices in product(times, repeat=len(spans)):
                yield tuple((device, *span) for device, span in zip(devices, spans, strict=True))


def makespan_us(chain: list[Times], parts: Sequence[Parts]) -> float:
    """How long the parts take if each starts as soon as its device and the rows that it reads are there, upper rows
    first."""
    ends: dict[tuple[int, int], float] = {}
    free = {"host": 0.0, "unit": 0.0}
    left = [(place, at) for place, own in enumerate(parts) for at in range(len(own))]
    while left:
        starts = {}
        for place, at in left:
            device, first, stop = parts[place][at]
            before = enumerate(parts[place - 1]) if place else ()
            read = [(place - 1, other) for other, (_, start, end) in before if start < stop and first < end]
            if all(part in ends for part in read):
                starts[place, at] = max([free[device], *(ends[part] for part in read)]), first, -place
        place, at = min(starts, key=starts.__getitem__)
        device, first, stop = parts[place][at]
        free[device] = ends[place, at] = starts[place, at][0] + chain[place][device][stop - first]
        left.remove((place, at))
    return max(ends.values())


@pytest.mark.parametrize("name", CHAINS)
def test_no_run_takes_less(name: str) -> None:
    chain = CHAINS[name]
    every = [list(divisions(times)) for times in chain]
    ways = (
        list(product(*every))
        if len(chain) == 2
        else [tuple(map(random.Random(at).choice, every)) for at in range(6000)]
    )
    fastest_us = min(makespan_us(chain, parts) for parts in ways)
    assert 0.75 * fastest_us <= bound_us(chain) <= fastest_us * ROUNDING


@pytest.mark.parametrize("behind_us", [0.0, 0.5])
def test_what_a_device_waits_for_counts(behind_us: float) -> None:
    """If the host computes an epilogue behind every part of a unit, it does not wait for the unit."""
    host, unit = linear(12.0, 1.0), linear(9.0, 0.5)
    ways = costs_of([{"host": host, "unit": unit}], behind_us).ways("0")
    assert ways.host.tolist() == pytest.approx((PRICES * 14.0).tolist())
    assert (ways.only_host - ways.host).tolist() == pytest.approx(((1 - PRICES) * host[1]).tolist())
    on_units = (1 - PRICES) * 10.0 + PRICES * behind_us
    if behind_us:
        assert np.isinf([ways.units, ways.only_units]).all()
        assert (ways.both <= on_units * ROUNDING).all()
    else:
        assert ways.units.tolist() == pytest.approx(on_units.tolist())
        assert (ways.only_units - ways.units).tolist() == pytest.approx((PRICES * unit[1]).tolist())


def test_the_host_does_not_wait_if_it_computes_an_epilogue_for_any_unit() -> None:
    """The cheaper unit leaves an epilogue to the host, the other one does not."""
    times = {"0": node_times({"host": linear(12.0, 1.0), "unit": linear(9.0), "other": linear(20.0)})}
    ways = NodeCosts(times, times, {("0", "unit"): 0.5}).ways("0")
    assert np.isinf([ways.units, ways.only_units]).all()
    assert np.isfinite(ways.both).all()


def test_a_node_that_only_rows_divide_costs_what_its_parts_do() -> None:
    """Four rows take the host as long as one, so it needs two parts; of columns, or elements of K, only their rate is
    known."""
    times = {"host": [0.0, 4.0, 4.0, 4.0, 4.0, 11.0, 11.0], "unit": linear(18.0)}
    by_rows, any_way = node_times(times), node_times(times, only_rows=False)
    times_of = {"rows": by_rows, "any": any_way}
    costs = NodeCosts(times_of, times_of, {})
    of_unit = 1 - PRICES
    assert costs.cost("any").tolist() == pytest.approx(np.minimum(PRICES * 6.0, of_unit * 18.0).tolist())
    shared = [PRICES * times["host"][on] + of_unit * 3.0 * (ROWS - on) for on in range(1, ROWS)]
    cheapest = reduce(np.minimum, [PRICES * 8.0, of_unit * 18.0, *shared])
    assert costs.cost("rows").tolist() == pytest.approx(cheapest.tolist())
    assert any_way.alone_us == pytest.approx(any_way.whole_us) == pytest.approx(4.5)
    assert by_rows.alone_us == pytest.approx(6.0)

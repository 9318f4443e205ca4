"""Lower bounds on the times of pipelines by the rows of their stages, before their parts are assembled.

A device runs its parts one after the other: none before the inputs of the first of them are ready, and everything that
depends on the last of them comes after it. How long the last nodes of a run keep devices busy, and what follows them,
does not depend on the nodes in front of them, so runs with the same end share it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import NamedTuple, Protocol

from pimflow.ir import Pipeline
from pimflow.search.run_parts import End, Layer, RunParts, Shares, Where, devices_of
from pimflow.search.stage_chains import Chains, Part, with_front
from pimflow.search.two_stages import Schedules


class Parts(Protocol):
    """Prices parts, each once."""

    @property
    def priced(self) -> int:
        """How many parts have been priced exactly, which changes their times."""

    @property
    def runs(self) -> RunParts:
        """The parts of all runs."""

    def stage_parts(self, end: End, devices: Sequence[Where], choice: str, beyond: int = 0) -> Sequence[Sequence[Part]]:
        """The parts of the last nodes of a run, front to back, without those of the last `beyond`.

        The parts of a node are by stage, or those that two devices share.
        """


class _Nodes(NamedTuple):
    """Some nodes of a run on some devices, by themselves.

    Args:
        parts: by node, its parts by stage, or by share.
        workers: by node, the devices that work on it; none if it takes no time.
        least_us: by node, its shortest part.
        busy_us: the sums of parts on devices, with these.
    """

    parts: Sequence[Sequence[Part]]
    workers: tuple[Sequence[str], ...]
    least_us: tuple[float, ...]
    busy_us: Sequence[tuple[str, float]]


class _Tail(NamedTuple):
    """The last nodes of a run on some devices.

    Args:
        busy_us: by device, the sum of its parts.
        behind_us: by device, the minimum time that follows any of its parts.
        workers: by place, the devices that work on the node; none if it takes no time.
        least_us: by place, the shortest part of the node.
        node_behind_us: by place, the minimum time that follows any part of the node.
        chains: the parts of two stages over nodes that read one another in turn; None for other runs.
    """

    busy_us: Mapping[str, float]
    behind_us: Mapping[str, float]
    workers: tuple[Sequence[str], ...]
    least_us: tuple[float, ...]
    node_behind_us: tuple[float, ...]
    chains: Chains | None


_NO_TAIL = _Tail({}, {}, (), (), (), Chains())


class StageTimes:
    """Lower bounds on the times of pipelines over one graph by their stages, as known when they are first asked for.

    Every part of a node reads some part of each of its producers in the run, and is read by a part of some consumer
    there, unless some of its rows are made for other readers.
    """

    def __init__(self, parts: Parts, host: str) -> None:
        self._parts = parts
        self._host = host
        self._tails: dict[tuple[End, Sequence[Where], str], _Tail] = {}
        self._known_nodes: dict[tuple[End, int, Sequence[Where], str], _Nodes] = {}
        self._priced = 0
        self._schedules = Schedules()

    def lower_bound_us(self, pipeline: Pipeline) -> float:
        """A lower bound on the length of any schedule of the parts; 0 if the rows of the stages cannot be derived."""
        end = self._parts.runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
        if end is None:
            return 0.0
        places = end.places(pipeline, self._host)
        if places is None:
            return 0.0
        tail = self._tail(end, places, pipeline.choice)
        before_us = _before_us(end, tail, len(places))
        busiest_us = max(
            [before_us.get(device, 0.0) + us + tail.behind_us.get(device, 0.0) for device, us in tail.busy_us.items()],
            default=0.0,
        )
        if tail.chains is None or math.isinf(busiest_us):
            return busiest_us
        return max(busiest_us, self._schedules.shortest_us(tail.chains.first, tail.chains.second))

    def shortest_us(self, pipeline: Pipeline) -> float:
        """The length of the shortest schedule of two stages over a chain of nodes, as known now; 0 for other
        pipelines."""
        end = self._parts.runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
        places = None if end is None or end.stages != 2 else end.places(pipeline, self._host)
        if end is None or places is None or not end.is_chain(len(places)):
            return 0.0
        chains = Chains()
        parts = self._parts.stage_parts(end, places, pipeline.choice)
        if any(math.isinf(part.us) for of_node in parts for part in of_node):
            return math.inf
        for place, (where, of_node) in enumerate(zip(reversed(places), reversed(parts), strict=True)):
            longer = with_front(chains, end, place, where, of_node)
            if longer is None:
                return 0.0
            chains = longer
        return Schedules().shortest_us(chains.first, chains.second)

    def _tail(self, end: End, devices: Sequence[Where], choice: str) -> _Tail:
        key = (end, devices, choice)
        known = self._tails.get(key)
        if known is not None:
            return known
        size = len(devices)
        shared = size - 1
        while shared and not end.closed[shared - 1]:
            shared -= 1
        tail = self._tail(end, devices[size - shared :], choice) if shared else _NO_TAIL
        nodes = self._nodes(end, devices, choice, shared)
        busy_us, behind_us = dict(tail.busy_us), dict(tail.behind_us)
        for device, us in nodes.busy_us:
            busy_us[device] = busy_us.get(device, 0.0) + us
        least_us, node_behind_us = tail.least_us + nodes.least_us, list(tail.node_behind_us)
        chains = tail.chains if end.stages == 2 and end.is_chain(size) else None
        for place in range(shared, size):
            layer = end.layers[place]
            ways_us = [0.0] if layer.leaves else [node_behind_us[at] + least_us[at] for at in layer.readers]
            after_us = min(ways_us, default=0.0)  # nothing comes after a result that nothing reads
            node_behind_us.append(after_us)
            if chains is not None:
                chains = with_front(chains, end, place, devices[size - 1 - place], nodes.parts[place - shared])
            for device in nodes.workers[place - shared]:
                if after_us < behind_us.get(device, math.inf):
                    behind_us[device] = after_us
        known = self._tails[key] = _Tail(
            busy_us, behind_us, tail.workers + nodes.workers, least_us, tuple(node_behind_us), chains
        )
        return known

    def _nodes(self, end: End, devices: Sequence[Where], choice: str, beyond: int) -> _Nodes:
        """The nodes of a run without the last `beyond`, from back to front; known until more parts are priced."""
        if self._parts.priced > self._priced:
            self._priced = self._parts.priced
            self._known_nodes.clear()
        size = len(devices)
        key = (end, size, devices[: size - beyond], choice)
        known = self._known_nodes.get(key)
        if known is not None:
            return known
        parts = self._parts.stage_parts(end, devices, choice, beyond)[::-1]
        workers: list[Sequence[str]] = []
        least_us: list[float] = []
        busy_us: dict[str, float] = {}
        for place, of_node in enumerate(parts, beyond):
            where, layer = devices[size - 1 - place], end.layers[place]
            us, at = _times([part.us - part.avoidable_us for part in of_node], where, layer)
            least_us.append(min(us))
            if max(us) <= 0:
                workers.append(())
            elif isinstance(where, str):
                workers.append((where,))
                busy_us[where] = busy_us.get(where, 0.0) + sum(us)
            else:
                workers.append(devices_of(where))
                for part_us, device in zip(us, at, strict=False):
                    busy_us[device] = busy_us.get(device, 0.0) + part_us
        known = self._known_nodes[key] = _Nodes(parts, tuple(workers), tuple(least_us), tuple(busy_us.items()))
        return known


def _times(us: list[float], where: Where, layer: Layer) -> tuple[list[float], Sequence[str]]:
    """The times of those parts of a node that compute rows, and their devices unless they have the same one."""
    if isinstance(where, Shares):
        return us, where.devices
    devices = () if isinstance(where, str) else where
    if layer.in_every_stage:
        return us, devices
    made = [part is not None for part in layer.made]
    return list(compress(us, made)), tuple(compress(devices, made))


def _before_us(end: End, tail: _Tail, size: int) -> dict[str, float]:
    """By device, the minimum time that precedes any of its parts of a run of `size` nodes."""
    found: dict[str, float] = {}
    ready = [0.0] * size
    layers, least_us, workers = end.layers, tail.least_us, tail.workers
    for place in range(size - 1, -1, -1):
        before_us = 0.0
        for producer in layers[place].producers:
            if producer < size and ready[producer] > before_us:
                before_us = ready[producer]
        ready[place] = before_us + least_us[place]
        for device in workers[place]:
            if device not in found or before_us < found[device]:
                found[device] = before_us
    return found

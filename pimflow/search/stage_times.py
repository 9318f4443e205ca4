"""Lower bounds on the times of pipelines by the rows of their stages, before their parts are assembled.

A device runs its parts one after the other: none before the inputs of the first of them are ready, and everything that
depends on the last of them comes after it. How long the last nodes of a run keep devices busy, and what follows them,
does not depend on the nodes in front of them, so runs with the same end share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, repeat
from typing import NamedTuple, Protocol

from pimflow.ir import Pipeline
from pimflow.search.run_parts import End, Layer, RunParts, Shares, Where, by_stage, devices_of
from pimflow.search.two_stages import Schedules, Step


class Part(Protocol):
    """The minimum time of some rows of a node on a device, and how much of it a plan can avoid waiting for."""

    @property
    def us(self) -> float:
        """The minimum time."""

    @property
    def avoidable_us(self) -> float:
        """The part of it that need not be waited for."""


class Parts(Protocol):
    """Prices parts, each once."""

    @property
    def runs(self) -> RunParts:
        """The parts of all runs."""

    def stage_parts(self, end: End, devices: Sequence[Where], choice: str, beyond: int = 0) -> Sequence[Sequence[Part]]:
        """The parts of the last nodes of a run, front to back, without those of the last `beyond`.

        The parts of a node are by stage, or those that two devices share.
        """


Chains = tuple[Step | None, Step | None]
"""The parts of two stages that take time, each of which waits for the one before it in its stage."""


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


_NO_TAIL = _Tail({}, {}, (), (), (), (None, None))


class StageTimes:
    """Lower bounds on the times of pipelines over one graph by their stages, as known when they are first asked for.

    Every part of a node reads some part of each of its producers in the run, and is read by a part of some consumer
    there, unless some of its rows are made for other readers.
    """

    def __init__(self, parts: Parts, host: str) -> None:
        self._parts = parts
        self._host = host
        self._tails: dict[tuple[End, Sequence[Where], str], _Tail] = {}
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
        return max(busiest_us, self._schedules.shortest_us(*tail.chains))

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
        parts = self._parts.stage_parts(end, devices, choice, shared)
        busy_us, behind_us = dict(tail.busy_us), dict(tail.behind_us)
        workers, least_us, node_behind_us = list(tail.workers), list(tail.least_us), list(tail.node_behind_us)
        chains = tail.chains if end.stages == 2 and end.is_chain(size) else None
        for place in range(shared, size):
            layer, where = end.layers[place], devices[size - 1 - place]
            us, at = _times(parts[size - 1 - place], where, layer)
            after_us = 0.0 if layer.leaves else min([node_behind_us[at] + least_us[at] for at in layer.readers])
            if chains is not None:
                chains = _with_front(chains, us, where)
            least_us.append(min(us))
            node_behind_us.append(after_us)
            workers.append(devices_of(where) if max(us) > 0 else ())
            if not workers[place]:
                continue
            for part_us, device in zip(us, at, strict=False):
                busy_us[device] = busy_us.get(device, 0.0) + part_us
            for device in workers[place]:
                if after_us < behind_us.get(device, math.inf):
                    behind_us[device] = after_us
        known = self._tails[key] = _Tail(
            busy_us, behind_us, tuple(workers), tuple(least_us), tuple(node_behind_us), chains
        )
        return known


def _with_front(chains: Chains, us: Sequence[float], where: Where) -> Chains | None:
    """The chains of two stages with the parts of a node in front; None if devices share its rows within a stage."""
    if isinstance(where, Shares):
        return None
    one, other = (
        Step(own_us, device, rest) if own_us > 0 else rest
        for own_us, device, rest in zip(us, by_stage(where, 2), chains, strict=True)
    )
    return one, other


def _times(parts: Sequence[Part], where: Where, layer: Layer) -> tuple[list[float], Iterable[str]]:
    """The times of those parts of a node that compute rows, and their devices."""
    us = [part.us - part.avoidable_us for part in parts]
    if isinstance(where, Shares):
        return us, where.devices
    devices = repeat(where) if isinstance(where, str) else where
    if layer.in_every_stage:
        return us, devices
    made = [part is not None for part in layer.made]
    return list(compress(us, made)), compress(devices, made)


def _before_us(end: End, tail: _Tail, size: int) -> dict[str, float]:
    """By device, the minimum time that precedes any of its parts of a run of `size` nodes."""
    found: dict[str, float] = {}
    ready = [0.0] * size
    for place in range(size - 1, -1, -1):
        before_us = 0.0
        for producer in end.layers[place].producers:
            if producer < size and ready[producer] > before_us:
                before_us = ready[producer]
        ready[place] = before_us + tail.least_us[place]
        for device in tail.workers[place]:
            if before_us < found.get(device, math.inf):
                found[device] = before_us
    return found

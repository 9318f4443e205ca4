"""What pipelines take at least by the rows of their stages, told before their parts are put together.

A device makes its parts one after the other: none before what the first of them waits for, and behind the last of them
comes what waits for that. What the last nodes of a run keep devices busy for, and what comes behind, does not depend on
the nodes in front of them, so that runs with the same end share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, repeat
from typing import NamedTuple, Protocol

from pimflow.ir import Pipeline
from pimflow.search.run_parts import End, Layer, RunParts, Shares, Where, devices_of


class Part(Protocol):
    """What some rows of a node take at least on a device, and how much of that a plan need not wait for."""

    @property
    def us(self) -> float:
        """At least."""

    @property
    def avoidable_us(self) -> float:
        """Of that."""


class Parts(Protocol):
    """Prices parts, each once."""

    @property
    def runs(self) -> RunParts:
        """Which parts there are."""

    def stage_parts(self, end: End, devices: Sequence[Where], choice: str, beyond: int = 0) -> Sequence[Sequence[Part]]:
        """Those of the last nodes of a run, front to back; not of the last `beyond`.

        Of a node they are by stage, or those that two devices share it in.
        """


class _Tail(NamedTuple):
    """The last nodes of a run on some devices.

    Args:
        busy_us: by device, all parts.
        behind_us: by device, what comes behind any of its parts at least.
        works: by place, whether any part of a node takes time.
        least_us: by place, the shortest of the parts of a node.
        node_behind_us: by place, what comes behind any part of a node at least.
    """

    busy_us: Mapping[str, float]
    behind_us: Mapping[str, float]
    works: tuple[bool, ...]
    least_us: tuple[float, ...]
    node_behind_us: tuple[float, ...]


_NO_TAIL = _Tail({}, {}, (), (), ())


class StageTimes:
    """What pipelines over one graph take at least by their stages, as far as that is known when it is first asked for.

    Every part of a node reads some part of each maker that it has in the run, and is read by a part of some reader,
    unless rows are made of it that nobody there reads.
    """

    def __init__(self, parts: Parts, host: str) -> None:
        self._parts = parts
        self._host = host
        self._tails: dict[tuple[End, Sequence[Where], str], _Tail] = {}

    def least_us(self, pipeline: Pipeline) -> float:
        """What no schedule of the parts is shorter than; 0 where the rows of the stages cannot be told."""
        end = self._parts.runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
        if end is None:
            return 0.0
        places = end.places(pipeline, self._host)
        if places is None:
            return 0.0
        tail = self._tail(end, places, pipeline.choice)
        before_us = _before_us(end, tail, places)
        return max(
            [before_us.get(device, 0.0) + us + tail.behind_us.get(device, 0.0) for device, us in tail.busy_us.items()],
            default=0.0,
        )

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
        works, least_us, node_behind_us = list(tail.works), list(tail.least_us), list(tail.node_behind_us)
        for place in range(shared, size):
            layer, where = end.layers[place], devices[size - 1 - place]
            us, at = _times(parts[size - 1 - place], where, layer)
            after_us = 0.0 if layer.leaves else min([node_behind_us[at] + least_us[at] for at in layer.readers])
            least_us.append(min(us))
            node_behind_us.append(after_us)
            works.append(max(us) > 0)
            if not works[place]:
                continue
            for part_us, device in zip(us, at, strict=False):
                busy_us[device] = busy_us.get(device, 0.0) + part_us
            for device in devices_of(where):
                if after_us < behind_us.get(device, math.inf):
                    behind_us[device] = after_us
        known = self._tails[key] = _Tail(busy_us, behind_us, tuple(works), tuple(least_us), tuple(node_behind_us))
        return known


def _times(parts: Sequence[Part], where: Where, layer: Layer) -> tuple[list[float], Iterable[str]]:
    """What those parts of a node take that make rows, and their devices."""
    us = [part.us - part.avoidable_us for part in parts]
    if isinstance(where, Shares):
        return us, where.devices
    devices = repeat(where) if isinstance(where, str) else where
    if None not in layer.made:
        return us, devices
    made = [part is not None for part in layer.made]
    return list(compress(us, made)), compress(devices, made)


def _before_us(end: End, tail: _Tail, devices: Sequence[Where]) -> dict[str, float]:
    """By device, what comes before any of its parts at least."""
    size = len(devices)
    found: dict[str, float] = {}
    ready = [0.0] * size
    for place in range(size - 1, -1, -1):
        before_us = 0.0
        for maker in end.layers[place].makers:
            if maker < size and ready[maker] > before_us:
                before_us = ready[maker]
        ready[place] = before_us + tail.least_us[place]
        if tail.works[place]:
            for device in devices_of(devices[size - 1 - place]):
                if before_us < found.get(device, math.inf):
                    found[device] = before_us
    return found

"""Lower bounds on the times of pipelines by the rows of their stages, before their parts are assembled.

A device runs its parts one after the other: none before the inputs of the first of them are ready, and everything that
depends on the last of them comes after it. Runs with the same end share what is known of its nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from typing import Protocol

from pimflow.ir import Pipeline
from pimflow.records import NamedTuple
from pimflow.search.part_prices import Part
from pimflow.search.run_parts import End, Layer, RunParts, Shares, Where
from pimflow.search.stage_chains import Chains, with_front
from pimflow.search.two_stages import Schedules


class Parts(Protocol):
    """Prices parts, each once."""

    @property
    def runs(self) -> RunParts:
        """The parts of all runs."""

    def node_parts(self, end: End, place: int, devices: Sequence[Where], choice: str) -> Sequence[Part]:
        """The parts of the node at a place of a run on some devices: by stage, or those that two devices share."""


class _Node(NamedTuple):
    """A node of a run on its devices, by itself.

    Args:
        least_us: its shortest part, with the copies around it.
        busy_us: by device that works on it, the sum of its parts there, and by link, that of its copies.
        parts: the parts.
        pending: those of them that may be priced later, which changes the node.
    """

    least_us: float
    busy_us: Sequence[tuple[str, float]]
    parts: Sequence[Part]
    pending: Sequence[Part]

    @property
    def is_current(self) -> bool:
        """Whether none of its parts has been priced since it was made."""
        return _are_pending(self.pending)


class _KnownChains(NamedTuple):
    """The chains of a run, as known when they were made.

    Args:
        chains: None for a run that `with_front` refuses, or with a part that cannot run.
        pending: the parts that may be priced later, which makes the chains longer.
        has_all: whether they have every part: devices share the rows of no node.
    """

    chains: Chains | None
    pending: tuple[Part, ...]
    has_all: bool

    @property
    def is_old(self) -> bool:
        """Whether a part has been priced since they were made."""
        return not _are_pending(self.pending)

    @property
    def is_whole(self) -> bool:
        """Whether they have every part, as known now."""
        return self.has_all and not self.is_old


_NO_NODES = _KnownChains(Chains(), (), True)


def _are_pending(parts: Sequence[Part]) -> bool:
    """Whether none of some parts that were not priced has been priced."""
    return not [part for part in parts if part.pending is None]


class StageTimes:
    """Lower bounds on the times of pipelines over one graph by their stages.

    Every part of a node reads some part of each of its producers in the run, and is read by a part of some consumer
    there, unless some of its rows are made for other readers.
    """

    def __init__(self, parts: Parts, host: str) -> None:
        self._parts = parts
        self._host = host
        self._nodes: dict[tuple[End, str], dict[tuple[int, Where] | tuple[int, Where, Where | None], _Node]] = {}
        self._chains: dict[tuple[End, Sequence[Where], str], _KnownChains] = {}
        self._schedules = Schedules()

    def lower_bound_us(self, pipeline: Pipeline) -> float:
        """A lower bound on the length of any schedule of the parts; 0 if the rows of the stages cannot be derived.

        The shortest schedule of all parts takes no less than the busiest device, so that is only asked for where the
        chains lack a part, or a part has been priced since they were made.
        """
        end = self._parts.runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
        if end is None:
            return 0.0
        places = end.places(pipeline, self._host)
        if places is None:
            return 0.0
        shortest_us = 0.0
        if end.stages == 2 and end.is_chain(len(places)):
            known = self._chains_of(end, places, pipeline.choice)
            if known.chains is not None:
                shortest_us = self._schedules.shortest_us(known.chains.first, known.chains.second)
                if known.is_whole:
                    return shortest_us
        nodes = self._nodes_of(end, places, pipeline.choice)
        busiest = _busiest_in_line_us if end.is_line(len(nodes)) else _busiest_us
        return max(shortest_us, busiest(end.layers, nodes))

    def shortest_us(self, pipeline: Pipeline) -> float:
        """The length of the shortest schedule of two stages over a chain of nodes, as known now; 0 for other pipelines,
        and for those with a part that cannot run."""
        end = self._parts.runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
        places = None if end is None or end.stages != 2 else end.places(pipeline, self._host)
        if end is None or places is None or not end.is_chain(len(places)):
            return 0.0
        known = self._chains_of(end, places, pipeline.choice, now=True)
        if known.chains is None:
            return 0.0
        return self._schedules.shortest_us(known.chains.first, known.chains.second)

    def _nodes_of(self, end: End, places: Sequence[Where], choice: str) -> list[_Node]:
        """The nodes of a run, from back to front, as known now."""
        known = self._nodes.get((end, choice))
        if known is None:
            known = self._nodes[end, choice] = {}
        found: list[_Node] = []
        roots = end.roots
        for place, where in enumerate(reversed(places)):
            root = roots[place]
            key = (place, where) if root is None else (place, where, end.where(root, places))
            node = known.get(key)
            if node is None or (node.pending and not node.is_current):
                parts = node.parts if node else self._parts.node_parts(end, place, places, choice)
                node = known[key] = _node_of(parts, where, end.layers[place])
            found.append(node)
        return found

    def _chains_of(self, end: End, places: Sequence[Where], choice: str, *, now: bool = False) -> _KnownChains:
        """The chains of a run, as known when they were last made, or as known `now`; runs with the same end share those
        of its nodes."""
        key = (end, places, choice)
        known = self._chains.get(key)
        if known is not None and not (now and known.is_old):
            return known
        size = len(places)
        shared = size - 1
        while shared and not end.closed[shared - 1]:
            shared -= 1
        known = self._chains_of(end, places[size - shared :], choice, now=now) if shared else _NO_NODES
        for place in range(shared, size):
            if known.chains is not None:
                where, parts = places[size - 1 - place], self._parts.node_parts(end, place, places, choice)
                known = _longer(known, end, place, where, parts)
        self._chains[key] = known
        return known


def _longer(known: _KnownChains, end: End, place: int, where: Where, parts: Sequence[Part]) -> _KnownChains:
    """Known chains with the node at a place in front."""
    assert known.chains is not None
    if _is_refused(parts):
        return _KnownChains(None, (), False)
    pending = [part for part in parts if part.pending is not None]
    chains = with_front(known.chains, end, place, where, parts)
    return _KnownChains(chains, (*pending, *known.pending), known.has_all and not isinstance(where, Shares))


def _is_refused(parts: Sequence[Part]) -> bool:
    """Whether a node has a part that cannot run."""
    return math.inf in [part.us for part in parts]


def _node_of(parts: Sequence[Part], where: Where, layer: Layer) -> _Node:
    if isinstance(where, str) and layer.in_every_stage and not _have_copies(parts):
        return _on_one_device(parts, where)
    pending = [part for part in parts if part.pending is not None]
    made = [True] * len(parts) if isinstance(where, Shares) or layer.in_every_stage else list(map(bool, layer.made))
    own = list(compress(parts, made))
    devices = [where] * len(own) if isinstance(where, str) else list(compress(_devices(where), made))
    us = [part.us - part.avoidable_us for part in own]
    busy_us: dict[str, float] = {}
    for device, part_us in zip(devices, us, strict=True):
        if part_us > 0:
            busy_us[device] = busy_us.get(device, 0.0) + part_us
    if _have_copies(own):
        for at, part in enumerate(own):
            for resource, copy in (*part.before, *part.after):
                us[at] += copy.us
                busy_us[resource] = busy_us.get(resource, 0.0) + copy.us
    return _Node(min(us), tuple(busy_us.items()), parts, pending)


def _on_one_device(parts: Sequence[Part], device: str) -> _Node:
    """A node with a part in every stage and no copies; this is most of them."""
    least_us, busy_us, pending = math.inf, 0.0, []
    for part in parts:
        us = part.us - part.avoidable_us
        if us < least_us:
            least_us = us
        if us > 0:
            busy_us += us
        if part.pending is not None:
            pending.append(part)
    return _Node(least_us, ((device, busy_us),) if busy_us > 0 else (), parts, pending)


def _have_copies(parts: Sequence[Part]) -> bool:
    return bool([part for part in parts if part.before or part.after])


def _devices(where: tuple[str, ...] | Shares) -> Sequence[str]:
    """The devices of the parts of a node."""
    return where.devices if isinstance(where, Shares) else where


def _busiest_us(layers: Sequence[Layer], nodes: Sequence[_Node]) -> float:
    """The longest that a device takes for its parts of a run, with the minimum times that precede any of them and
    follow any of them; nodes from back to front."""
    busy_us: dict[str, float] = {}
    behind_us: dict[str, float] = {}
    follows_us: list[float] = []  # by place, the minimum time that follows any part of the node, with the node's own
    for layer, (least_us, of_node, _, _) in zip(layers, nodes, strict=False):
        after_us = 0.0  # nothing comes after a result that nothing reads
        readers = layer.readers
        if readers and not layer.leaves:
            after_us = follows_us[readers[0]] if len(readers) == 1 else min([follows_us[at] for at in readers])
        follows_us.append(after_us + least_us)
        for device, us in of_node:
            if device not in busy_us:
                busy_us[device], behind_us[device] = us, after_us
                continue
            busy_us[device] += us
            if after_us < behind_us[device]:
                behind_us[device] = after_us
    before_us = _before_us(layers, nodes)
    return max([before_us[device] + us + behind_us[device] for device, us in busy_us.items()], default=0.0)


def _before_us(layers: Sequence[Layer], nodes: Sequence[_Node]) -> dict[str, float]:
    """By device, the minimum time that precedes any of its parts of a run; nodes from back to front."""
    found: dict[str, float] = {}
    size = len(nodes)
    ready_us = [0.0] * size
    for place in range(size - 1, -1, -1):
        before_us = 0.0
        for producer in layers[place].producers:
            if producer < size and ready_us[producer] > before_us:
                before_us = ready_us[producer]
        least_us, of_node, _, _ = nodes[place]
        ready_us[place] = before_us + least_us
        for device, _ in of_node:
            if device not in found or before_us < found[device]:
                found[device] = before_us
    return found


def _busiest_in_line_us(layers: Sequence[Layer], nodes: Sequence[_Node]) -> float:
    """`_busiest_us` of a line: what precedes a node is all that is in front of it."""
    busy_us: dict[str, float] = {}
    behind_us: dict[str, float] = {}
    to_end_us: dict[str, float] = {}  # by device, the shortest parts of its first node and all behind that
    after_us = total_us = 0.0
    for layer, (least_us, of_node, _, _) in zip(layers, nodes, strict=False):
        if layer.leaves:
            after_us = 0.0
        total_us += least_us
        for device, us in of_node:
            if device not in busy_us:
                busy_us[device], behind_us[device] = us, after_us
            else:
                busy_us[device] += us
                if after_us < behind_us[device]:
                    behind_us[device] = after_us
            to_end_us[device] = total_us
        after_us += least_us
    return max([total_us - to_end_us[at] + us + behind_us[at] for at, us in busy_us.items()], default=0.0)

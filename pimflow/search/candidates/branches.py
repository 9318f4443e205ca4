"""Concurrent branches: independent ones, some on the host while others run on another device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from pimflow.ir import Decision, Node, OnDevice, Parallel, Pipeline, SplitColumns, SplitK, SplitRows
from pimflow.ir.analysis.regions import node_columns, node_k, node_rows
from pimflow.ir.plan import Single
from pimflow.search.candidates import columns
from pimflow.search.candidates.base import MAX_REGION_NODES, Candidate, Destination, Scene, Varied
from pimflow.search.chain import Interval
from pimflow.search.joined_ways import Joined, UnitWays, Way
from pimflow.search.order import branches_of
from pimflow.search.parts import divides_by_k
from pimflow.search.policy import Space

MAX_BRANCHES = 4
Branches = tuple[tuple[Node, ...], ...]
"""The nodes of each of several branches, in order."""
Place = tuple[int, int, int]
"""Decisions first .. last-1 of a branch: branch, first, last."""


def branches(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """Stretches of whole units inside a fork-join, with their independent branches.

    In some of the branches every node that can leave the host does; in a small graph every choice of devices is a
    candidate.
    """
    for start, stop, split in _stretches(scene, space):
        choices = _every_choice if scene.exhaustive else _by_branch
        for leaving in choices(scene, split, destination):
            yield Candidate(start, stop, (_parallel(scene, split, leaving, destination),))


def versions(scene: Scene, space: Space, destination: Destination, most: int) -> int:
    """The number of choices of devices for concurrent branches; counting stops above `most`."""
    count = 0
    for _, _, split in _stretches(scene, space):
        count += 2 ** sum(scene.can_run(node, destination) for branch in split for node in branch)
        if count > most:
            break
    return count


def _stretches(scene: Scene, space: Space) -> Iterator[tuple[int, int, Branches]]:
    """The places of branches: start, stop, and the nodes of each."""
    for region in scene.fork_joins if space.concurrent else ():
        if region.stop - region.start > MAX_REGION_NODES:
            continue
        units = scene.units_within(region.start, region.stop)
        starts = [unit.start for unit in units if not scene.equivalents.shift(unit.start, unit.stop)]
        for start, stop in ((start, unit.stop) for start in starts for unit in units if start < unit.stop):
            split = branches_of(scene.graph, scene.order[start:stop])
            if 2 <= len(split) <= MAX_BRANCHES:
                yield start, stop, split


def _by_branch(scene: Scene, split: Branches, destination: Destination) -> Iterator[frozenset[str]]:
    """The names of the nodes that leave the host: in some branches all that can, in the others none."""
    able = [frozenset(node.name for node in branch if scene.can_run(node, destination)) for branch in split]
    for choice in product((False, True), repeat=len(split)):
        if any(leaves and not can for leaves, can in zip(choice, able, strict=True)) or len(set(choice)) < 2:
            continue
        yield frozenset().union(*(can for leaves, can in zip(choice, able, strict=True) if leaves))


def _every_choice(scene: Scene, split: Branches, destination: Destination) -> Iterator[frozenset[str]]:
    """Like `_by_branch`, for every combination of the nodes that can leave the host; some leave, and some stay."""
    nodes = [node for branch in split for node in branch]
    able = [node.name for node in nodes if scene.can_run(node, destination)]
    for choice in product((False, True), repeat=len(able)):
        if 0 < sum(choice) < len(nodes):
            yield frozenset(name for name, leaves in zip(able, choice, strict=True) if leaves)


def _parallel(scene: Scene, split: Branches, leaving: frozenset[str], destination: Destination) -> Parallel:
    return Parallel(
        tuple(
            tuple(
                OnDevice(node.name, destination.device, destination.choice)
                if node.name in leaving
                else OnDevice(node.name, scene.host)
                for node in branch
            )
            for branch in split
        )
    )


def parallel_of(scene: Scene, start: int, stop: int, items: Sequence[Single]) -> Parallel:
    """Decisions about positions start .. stop-1 as a `Parallel`, each in its branch, in the given order."""
    split = branches_of(scene.graph, scene.order[start:stop])
    branch_of = {node.name: branch for branch, nodes in enumerate(split) for node in nodes}
    return Parallel(
        tuple(tuple(item for item in items if branch_of[item.nodes[0]] == branch) for branch in range(len(split)))
    )


def variations(scene: Scene, chosen: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
    """Concurrent branches in which one unit is decided differently (whole on another device, or divided differently),
    or two are: one whole on another device, one on the host. Either of these two steps alone may take longer."""
    parallel = chosen.payload[0]
    if not isinstance(parallel, Parallel):
        return
    joined = Joined(parallel, scene.numbers)
    units = list(_units(scene, joined))
    for first, last, ways in units:
        for way in ways.others:
            yield Varied(chosen.start, chosen.stop, joined, ((first, last, way),))
    leaving = [(first, last, ways.away) for first, last, ways in units if ways.away is not None]
    staying = [(first, last, ways.home) for first, last, ways in units if ways.home is not None]
    for one, other in product(leaving, staying):
        if one[0] != other[0]:
            changes = (one, other) if one[0] < other[0] else (other, one)
            yield Varied(chosen.start, chosen.stop, joined, changes)


def _units(scene: Scene, joined: Joined) -> Iterator[tuple[int, int, UnitWays]]:
    """The units of joined decisions, as items first .. last-1 of these, with the other ways to decide each."""
    for branch, first, last in _places(scene, joined.parallel):
        start = joined.starts[branch]
        yield start + first, start + last, _ways(scene, joined.parallel.branches[branch][first:last])


def _ways(scene: Scene, items: tuple[Single, ...]) -> UnitWays:
    """The other ways to decide one unit, listed once."""
    key = tuple([scene.numbers[item] for item in items]), scene.sums
    found = scene.ways.get(key)
    if found is None:
        others = [Way(way, scene.numbers) for way in _other_ways(scene, items)]
        away, home = [Way(way, scene.numbers) if way else None for way in _exchanged(scene, items)]
        whole = [way for destination in _destinations(scene, items) for way in _whole_ways(scene, items, destination)]
        moves = [Way(way, scene.numbers) for way in whole]
        found = scene.ways[key] = UnitWays(others, away, home, moves)
    return found


def moves(
    scene: Scene, start: int, stop: int, parallel: Parallel, but: frozenset[str] = frozenset()
) -> Iterator[Candidate]:
    """Concurrent branches about positions start .. stop-1 with one unit whole on another device, except for units of
    the given nodes."""
    joined = Joined(parallel, scene.numbers)
    for first, last, ways in _units(scene, joined):
        for way in ways.moves:
            if way.items[0].nodes[0] not in but:
                yield Varied(start, stop, joined, ((first, last, way),))


def _places(scene: Scene, parallel: Parallel) -> Iterator[Place]:
    """The places of all units."""
    return ((at, *span) for at, branch in enumerate(parallel.branches) for span in unit_spans(scene, branch))


def items_at(parallel: Parallel, place: Place) -> tuple[Single, ...]:
    """The decisions at a place."""
    branch, first, last = place
    return parallel.branches[branch][first:last]


def with_decisions(parallel: Parallel, ways: Mapping[Place, tuple[Single, ...]]) -> Parallel:
    """The same branches with other decisions at some places."""
    branches = list(parallel.branches)
    for (branch, first, last), way in sorted(ways.items(), reverse=True):  # later places would shift otherwise
        branches[branch] = (*branches[branch][:first], *way, *branches[branch][last:])
    return Parallel(tuple(branches))


def unit_spans(scene: Scene, branch: Sequence[Single]) -> Iterator[tuple[int, int]]:
    """The ranges first .. last-1 of decisions about a node and the nodes fused into it."""
    starts: list[int] = []
    names: set[str] = set()
    for index, item in enumerate(branch):
        if scene.graph.node(item.nodes[0]).placement.fused_into not in names:
            starts.append(index)
            names = set()
        names.update(item.nodes)
    yield from zip(starts, (*starts[1:], len(branch)), strict=True)


def _other_ways(scene: Scene, items: Sequence[Single]) -> Iterator[tuple[Single, ...]]:
    """Other possible decisions about one unit."""
    now, names = items[0], [name for item in items for name in item.nodes]
    anchor, behind = scene.graph.node(names[0]), tuple(names[1:])
    for destination in _destinations(scene, items):
        yield from _whole_ways(scene, items, destination)
        yield from _divisions(scene, anchor, now, behind, destination)


def _whole_ways(scene: Scene, items: Sequence[Single], destination: Destination) -> Iterator[tuple[Single, ...]]:
    """One unit whole on the host or on another device, unless that is how it is decided."""
    names = [name for item in items for name in item.nodes]
    for way in (whole(scene, names, None), whole(scene, names, destination)):
        if way[0] != items[0]:
            yield way


def _exchanged(scene: Scene, items: Sequence[Single]) -> tuple[tuple[Single, ...], tuple[Single, ...]]:
    """One unit whole on another device, and whole on the host; () if that is how it is decided, or if it cannot
    leave."""
    names = [name for item in items for name in item.nodes]
    for destination in _destinations(scene, items):
        away, home = whole(scene, names, destination), whole(scene, names, None)
        return away if away[0] != items[0] else (), home if home[0] != items[0] else ()
    return (), ()


def _destinations(scene: Scene, items: Sequence[Single]) -> list[Destination]:
    """The devices that a unit could leave the host for, if it is decided by itself."""
    if isinstance(items[0], Pipeline):
        return []
    anchor = scene.graph.node(items[0].nodes[0])
    return [destination for destination in scene.destinations("auto") if scene.can_run(anchor, destination)]


def whole(scene: Scene, names: Sequence[str], destination: Destination | None) -> tuple[Single, ...]:
    """One unit whole on a device (None: the host), with its fused nodes on the host."""
    anchor, *behind = names
    where = (scene.host, "") if destination is None else (destination.device, destination.choice)
    return OnDevice(anchor, *where), *(OnDevice(name, scene.host) for name in behind)


def _divisions(
    scene: Scene, anchor: Node, now: Single, behind: tuple[str, ...], destination: Destination
) -> Iterator[tuple[Single, ...]]:
    """Slightly more or less on the host for a unit that is divided; quarters for one that is not."""
    device, choice = destination.device, destination.choice
    if not anchor.op.is_sparse:
        by_rows = now if isinstance(now, SplitRows) else SplitRows(anchor.name, 0, choice, behind, device)
        for count in _counts(by_rows.gpu_rows, node_rows(scene.graph, anchor), 1):
            yield (replace(by_rows, gpu_rows=count),)
    if columns.divides(scene, anchor):
        by_columns = now if isinstance(now, SplitColumns) else SplitColumns(anchor.name, 0, choice, behind, device)
        for count in _counts(by_columns.gpu_columns, node_columns(scene.graph, anchor), columns.ALIGNMENT):
            yield (replace(by_columns, gpu_columns=count),)
    if scene.sums and divides_by_k(scene.graph, anchor):
        by_k = now if isinstance(now, SplitK) else SplitK(anchor.name, 0, choice, device)
        followers = tuple(OnDevice(name, scene.host) for name in behind)
        for count in _counts(by_k.gpu_k, node_k(scene.graph, anchor), columns.ALIGNMENT):
            yield (replace(by_k, gpu_k=count), *followers)


def _counts(now: int, all_of_them: int, step: int) -> list[int]:
    """Numbers 1, 2 or 4 steps away from `now`; quarters of the total if it is 0."""
    near = [now + steps * step for steps in (-4, -2, -1, 1, 2, 4)]
    counts = near if now else [quarters * all_of_them // 4 // step * step for quarters in (1, 2, 3)]
    return [count for count in dict.fromkeys(counts) if 0 < count < all_of_them]

"""Concurrent branches: independent ones, some on the host while others run on another device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from pimflow.ir import Node, OnDevice, Parallel
from pimflow.search.candidates.base import Candidate, Destination, Scene
from pimflow.search.order import branches_of, fork_joins
from pimflow.search.policy import Space

MAX_REGION_NODES = 24
MAX_BRANCHES = 4


def branches(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """Stretches of whole units inside a fork-join, with their independent branches."""
    if not space.concurrent:
        return
    for region in fork_joins(scene.graph, scene.order):
        if region.stop - region.start > MAX_REGION_NODES:
            continue
        starts = [unit.start for unit in scene.units if region.start <= unit.start < region.stop]
        stops = [unit.stop for unit in scene.units if region.start < unit.stop <= region.stop]
        for start, stop in ((start, stop) for start in starts for stop in stops if start < stop):
            yield from _concurrent(scene, start, stop, destination)


def _concurrent(scene: Scene, start: int, stop: int, destination: Destination) -> Iterator[Candidate]:
    """The independent branches of a stretch, each with what can leave the host elsewhere or all on the host."""
    split = branches_of(scene.graph, scene.order[start:stop])
    if not 2 <= len(split) <= MAX_BRANCHES:
        return
    able = [any(scene.can_run(node, destination) for node in branch) for branch in split]
    for choice in product((False, True), repeat=len(split)):
        if any(leaves and not can for leaves, can in zip(choice, able, strict=True)) or len(set(choice)) < 2:
            continue
        placed = tuple(
            tuple(_placed(scene, node, leaves, destination) for node in branch)
            for leaves, branch in zip(choice, split, strict=True)
        )
        yield Candidate(start, stop, (Parallel(placed),))


def _placed(scene: Scene, node: Node, leaves: bool, destination: Destination) -> OnDevice:
    if leaves and scene.can_run(node, destination):
        return OnDevice(node.name, destination.device, destination.choice)
    return OnDevice(node.name, scene.host)

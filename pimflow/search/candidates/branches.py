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
Branches = tuple[tuple[Node, ...], ...]
"""The nodes of each of several branches, in order."""


def branches(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """Stretches of whole units inside a fork-join, with their independent branches.

    What can leave the host does in some of the branches; of a small graph every choice of devices is a candidate.
    """
    for start, stop, split in _stretches(scene, space):
        choices = _every_choice if scene.exhaustive else _by_branch
        for leaving in choices(scene, split, destination):
            yield Candidate(start, stop, (_parallel(scene, split, leaving, destination),))


def versions(scene: Scene, space: Space, destination: Destination, most: int) -> int:
    """How many choices of devices there are for concurrent branches; counting ends above `most`."""
    count = 0
    for _, _, split in _stretches(scene, space):
        count += 2 ** sum(scene.can_run(node, destination) for branch in split for node in branch)
        if count > most:
            break
    return count


def _stretches(scene: Scene, space: Space) -> Iterator[tuple[int, int, Branches]]:
    """Where branches are: start, stop, and the nodes of each."""
    for region in fork_joins(scene.graph, scene.order) if space.concurrent else ():
        if region.stop - region.start > MAX_REGION_NODES:
            continue
        starts = [unit.start for unit in scene.units if region.start <= unit.start < region.stop]
        stops = [unit.stop for unit in scene.units if region.start < unit.stop <= region.stop]
        for start, stop in ((start, stop) for start in starts for stop in stops if start < stop):
            split = branches_of(scene.graph, scene.order[start:stop])
            if 2 <= len(split) <= MAX_BRANCHES:
                yield start, stop, split


def _by_branch(scene: Scene, split: Branches, destination: Destination) -> Iterator[frozenset[str]]:
    """The names of what leaves the host: of some branches all that can, of others nothing."""
    able = [frozenset(node.name for node in branch if scene.can_run(node, destination)) for branch in split]
    for choice in product((False, True), repeat=len(split)):
        if any(leaves and not can for leaves, can in zip(choice, able, strict=True)) or len(set(choice)) < 2:
            continue
        yield frozenset().union(*(can for leaves, can in zip(choice, able, strict=True) if leaves))


def _every_choice(scene: Scene, split: Branches, destination: Destination) -> Iterator[frozenset[str]]:
    """The same of every node that can leave the host by itself; something leaves, and something stays."""
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

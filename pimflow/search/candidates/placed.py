"""Whole nodes on one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pimflow.ir import OnDevice
from pimflow.search.candidates.base import Candidate, Destination, Scene
from pimflow.search.policy import Space


def on_host(scene: Scene, spaces: Sequence[Space]) -> Iterator[Candidate]:
    """Every unit on the host, except those that a space forces onto another device."""
    forced = [destination for space in spaces if not space.host for destination in scene.destinations(space.choice)]
    for unit in scene.equivalents.firsts:
        if not any(scene.can_run(unit.anchor, destination) for destination in forced):
            yield Candidate(unit.start, unit.stop, scene.on_host(unit.nodes), certain=True)


def on_device(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """Every unit that can run there, followed by its fused nodes on the host."""
    for unit in scene.runnable_units(destination):
        behind = scene.on_host(unit.nodes[1:])
        decisions = (OnDevice(unit.anchor.name, destination.device, destination.choice), *behind)
        yield Candidate(unit.start, unit.stop, decisions, certain=not space.host)

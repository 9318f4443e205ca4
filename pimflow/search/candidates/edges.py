"""The edges of a sum over a graph divided between the host and another device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pimflow.ir import Decision, SplitEdges
from pimflow.search.candidates.base import Candidate, Destination, Scene
from pimflow.search.chain import Interval
from pimflow.search.policy import Space

MAX_DIVISIONS = 3
"""The maximum number of divisions listed per node: each makes two graphs, whose reuse is measured and whose edges are
packed. `variations` starts from the best."""


def edge_splits(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """The best divisions according to statistics of the edges; nodes fused into the node follow both parts."""
    if not space.edges:
        return
    for unit in scene.equivalents.firsts:
        if not unit.anchor.op.is_sparse:
            continue
        behind = scene.on_host(unit.nodes[1:])
        for way in scene.edge_divisions(unit.anchor, destination.device)[:MAX_DIVISIONS]:
            split = SplitEdges(unit.anchor.name, way.group, way.at_least, destination.choice, destination.device)
            yield Candidate(unit.start, unit.stop, (split, *behind))


def variations(scene: Scene, chosen: Interval[tuple[Decision, ...]]) -> Iterator[Candidate]:
    """A chosen division with the next denser or sparser groups on the other side."""
    split = chosen.payload[0]
    if not isinstance(split, SplitEdges):
        return
    divisions = scene.edge_divisions(scene.graph.node(split.node), split.device)
    levels = sorted(way.at_least for way in divisions)
    if split.at_least not in levels:
        return
    place = levels.index(split.at_least)
    for at_least in levels[max(place - 1, 0) : place + 2]:
        if at_least != split.at_least:
            yield Candidate(chosen.start, chosen.stop, (replace(split, at_least=at_least), *chosen.payload[1:]))

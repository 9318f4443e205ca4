"""Decisions of a cover about other stretches with the same nodes: what is found for one layer is tried for all like it.

Such stretches need not be equivalent (`equivalents`), as what is around them may differ: the first layer of a
transformer reads what no other reads. A search that goes from one choice to the next may find the best decisions for
one of them only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pimflow.ir import Decision, OnDevice
from pimflow.search.candidates.base import Candidate, Scene
from pimflow.search.chain import Interval

Decisions = tuple[Decision, ...]


def repeated(scene: Scene, chosen: Sequence[Interval[Decisions]], seen: set[Decisions]) -> Iterator[Candidate]:
    """The decisions of a cover about the first of every kind of stretches with the same nodes, except nodes by
    themselves on one device. Decisions that were `seen` before are left out."""
    kinds = scene.kinds
    for one in chosen:
        if isinstance(one.payload[0], OnDevice):
            continue
        shift = scene.equivalents.shift(one.start, one.stop)
        start, stop, decisions = one.start - shift, one.stop - shift, scene.moved(one.payload, -shift)
        if decisions in seen:
            continue
        seen.add(decisions)
        alike = [place for place in scene.firsts_of_kind.get(kinds[start], ()) if place != start]
        alike = [place for place in alike if kinds[place : place + stop - start] == kinds[start:stop]]
        text = scene.content_text(decisions) if alike else ""
        for place in alike:
            others = scene.moved(decisions, place - start)
            if scene.content_text(others) == text:
                yield Candidate(place, place + stop - start, others)

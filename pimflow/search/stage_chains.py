"""The parts of pipelines of two stages as two chains of parts, each of which waits for the one in front of it.

Where two devices share the rows of a node within a stage, the chain has the longer share only: without the other one, a
schedule is no longer. It has to be read by the part behind it, and to read the one in front. A part of several kernels
counts as several parts, because others may run between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pimflow.records import NamedTuple
from pimflow.search.part_prices import FREE, Part, PlacedPart
from pimflow.search.run_parts import End, Shares, Where
from pimflow.search.two_stages import Step, steps_of

Span = tuple[int, int]


class Divided(NamedTuple):
    """A node that devices share: its place in the run, and by stage the rows that the chain has of it; None if these
    are all rows of the stage."""

    place: int
    rows: Sequence[Span | None]


class Chains(NamedTuple):
    """The parts of the last nodes of a run that take time, by stage.

    Args:
        first, second: the chains of both stages.
        held: how many steps of the second stage wait for those that come in front of the first one.
        divided: the first node with a kernel of its own, if devices share its rows within a stage.
    """

    first: Step | None = None
    second: Step | None = None
    held: int = 0
    divided: Divided | None = None


def with_front(chains: Chains, end: End, place: int, where: Where, parts: Sequence[Part]) -> Chains | None:
    """The chains with the node at a place in front.

    Args:
        chains: those of the nodes behind it.
        end: the end of the run, in which these nodes form a chain.
        place: the node's place, counted from the end.
        where: its devices.
        parts: its parts by stage, or by share.

    Returns:
        None if a fused node or two nodes that follow each other are shared, or if the longer share is not a link of the
        chain.
    """
    divided = chains.divided
    if divided is not None and divided.place == place - 1 and not _feeds(end, place, divided):
        return None
    holds = place and (end.holds_next(place) if divided is None else _holds(end, place, divided))
    held = steps_of(chains.second) if holds else chains.held
    is_fused = end.layers[place].node.placement.fused_into is not None
    if isinstance(where, Shares):
        is_alone = divided is None and not is_fused
        return _with_shares(chains, end, place, where, parts, held) if is_alone else None
    (first, second), (device, other_device) = parts, (where, where) if isinstance(where, str) else where
    divided = divided if is_fused else None
    if first is FREE and second is FREE:  # most fused nodes
        same = held == chains.held and divided is chains.divided
        return chains if same else Chains(chains.first, chains.second, held, divided)
    return Chains(
        _in_front(chains.first, first, device, held), _in_front(chains.second, second, other_device), held, divided
    )


def _in_front(rest: Step | None, part: Part, device: str, held: int = 0) -> Step | None:
    """A chain with the kernels of a part in front, and with the copies around them."""
    if part.before or part.after:
        for resource, copy in reversed((*part.before, PlacedPart(device, part), *part.after)):
            rest = Step(copy.us, resource, rest, held) if copy.us > 0 else rest
        return rest
    if not part.kernels_us:
        us = part.us - part.avoidable_us
        return Step(us, device, rest, held) if us > 0 else rest
    launches_us = part.launches_us or (0.0,) * len(part.kernels_us)
    for us, launch_us in zip(reversed(part.kernels_us), reversed(launches_us), strict=True):
        if us > launch_us:
            rest = Step(us - launch_us, device, rest, held)
    return rest


def _with_shares(
    chains: Chains, end: End, place: int, where: Shares, parts: Sequence[Part], held: int
) -> Chains | None:
    """The chains with the longer share of each stage of a node in front, which holds `held` steps as a whole."""
    links: list[tuple[Part, str, Span | None]] = []
    for stage, (start, stop) in enumerate(end.layers[place].rows):
        shares = [
            (part, device, rows)
            for part, device, rows in zip(parts, where.devices, where.rows, strict=True)
            if start <= rows[0] and rows[1] <= stop
        ]
        part, device, rows = max(shares, key=lambda share: share[0].us)
        kept = None if len(shares) == 1 else rows
        if kept is not None and not end.reaches_next(place, stage, kept):
            return None
        links.append((part, device, kept))
    (first, device, first_rows), (second, other_device, second_rows) = links
    holds = held
    if first_rows is not None:
        behind = 0 if chains.first is None else chains.first.held
        holds = steps_of(chains.second) if end.reaches_next(place, 1, first_rows) else behind
    return Chains(
        _in_front(chains.first, first, device, holds),
        _in_front(chains.second, second, other_device),
        held,
        Divided(place, (first_rows, second_rows)),
    )


def _feeds(end: End, place: int, divided: Divided) -> bool:
    """Whether what the chains have of a divided node reads, in every stage, rows that the node in front of it makes in
    that stage."""
    made = end.layers[place].rows
    return all(rows is None or end.reads(place, rows, made[stage]) for stage, rows in enumerate(divided.rows))


def _holds(end: End, place: int, divided: Divided) -> bool:
    """Whether what the second chain has of the next node reads rows that the node at a place makes in the first
    stage."""
    if divided.place != place - 1 or divided.rows[1] is None:
        return end.holds_next(place)
    return end.reads(place, divided.rows[1], end.layers[place].rows[0])

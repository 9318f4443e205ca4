"""Adjusts the shares of channel groups to the groups' exact times, as closed forms err differently by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from pimflow.codegen.newton import Mapping, Share


def rebalanced(mapping: Mapping, cycles: Sequence[int], row_pixels: int) -> Mapping | None:
    """A mapping whose groups would end at the same time if each kept its pace; None if nothing can be moved.

    It moves pixels of the chunk run with most of the shared work between groups, in whole fills, or in whole output
    rows if windows share data.

    Args:
        mapping: the mapping to rebalance.
        cycles: cycles of the slowest channel of each group.
        row_pixels: pixels of an output row.
    """
    run = _shared_run(mapping)
    if (
        run is None
        or mapping.order == "latch"
        or not all(cycles)
        or any(group.weight_groups for group in mapping.groups)
    ):
        return None
    works = _works(mapping)
    paces = [spent / work for spent, work in zip(cycles, works, strict=True)]
    level = sum(works) / sum(1 / pace for pace in paces)
    chunk = mapping.runs[run]
    each = chunk.columns * chunk.count
    sharing = sorted(
        (share.start, share.stop - share.start + (level / paces[group] - works[group]) / each, group)
        for group, entry in enumerate(mapping.groups)
        for share in entry.shares
        if share.run == run
    )
    ends = _ends([wanted for _, wanted, _ in sharing], mapping, run, row_pixels)
    if any(before >= after for before, after in pairwise((0, *ends))):
        return None
    spans = {group: Share(run, *span) for (_, _, group), span in zip(sharing, pairwise((0, *ends)), strict=True)}
    groups = tuple(
        entry._replace(shares=tuple(spans[index] if share.run == run else share for share in entry.shares))
        for index, entry in enumerate(mapping.groups)
    )
    return None if groups == mapping.groups else replace(mapping, groups=groups)


def _works(mapping: Mapping) -> list[int]:
    """The work of each group: pixels times columns of K."""
    return [
        sum(
            (share.stop - share.start) * mapping.runs[share.run].columns * mapping.runs[share.run].count
            for share in group.shares
        )
        for group in mapping.groups
    ]


def _shared_run(mapping: Mapping) -> int | None:
    """The longest chunk run that several groups share, with one share each."""
    owners: dict[int, list[int]] = {}
    for index, group in enumerate(mapping.groups):
        for share in group.shares:
            owners.setdefault(share.run, []).append(index)
    shared = [run for run, groups in owners.items() if 1 < len(groups) == len(set(groups))]
    return max(shared, key=lambda run: mapping.runs[run].columns * mapping.runs[run].count, default=None)


def _ends(wanted: Sequence[float], mapping: Mapping, run: int, row_pixels: int) -> list[int]:
    """Where the groups' consecutive ranges of pixels end; the last one ends at the last pixel."""
    chunk = mapping.runs[run]
    pixels = max(share.stop for group in mapping.groups for share in group.shares if share.run == run)
    unit = row_pixels if chunk.step != chunk.columns else chunk.pixels
    return [*(round(end / unit) * unit for end in list(accumulate(wanted))[:-1]), pixels]

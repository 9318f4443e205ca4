"""Shares of channel groups moved by what the groups take by exact timing, as closed forms err by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from pimflow.codegen.newton import Mapping, Share


def rebalanced(mapping: Mapping, cycles: Sequence[int], row_pixels: int) -> Mapping | None:
    """A mapping whose groups would end together if every one kept its pace; None where nothing can be moved.

    Moved are pixels of the chunk run that most of the shared work is of, by whole fills, or by whole output rows where
    windows share data.

    Args:
        mapping: it.
        cycles: of the slowest channel of every group.
        row_pixels: of an output row.
    """
    works = _works(mapping)
    run = _shared_run(mapping)
    if (
        run is None
        or mapping.order == "latch"
        or not all(cycles)
        or any(group.weight_groups for group in mapping.groups)
    ):
        return None
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
    """Of every group, pixels times columns of K."""
    return [
        sum(
            (share.stop - share.start) * mapping.runs[share.run].columns * mapping.runs[share.run].count
            for share in group.shares
        )
        for group in mapping.groups
    ]


def _shared_run(mapping: Mapping) -> int | None:
    """The longest chunk run of which several groups have one share each."""
    owners: dict[int, list[int]] = {}
    for index, group in enumerate(mapping.groups):
        for share in group.shares:
            owners.setdefault(share.run, []).append(index)
    shared = [run for run, groups in owners.items() if 1 < len(groups) == len(set(groups))]
    return max(shared, key=lambda run: mapping.runs[run].columns * mapping.runs[run].count, default=None)


def _ends(wanted: Sequence[float], mapping: Mapping, run: int, row_pixels: int) -> list[int]:
    """Where the groups' stretches of the pixels end, one after the other; the last one at the end of all."""
    chunk = mapping.runs[run]
    pixels = max(share.stop for group in mapping.groups for share in group.shares if share.run == run)
    unit = row_pixels if chunk.step != chunk.columns else chunk.pixels
    return [*(round(end / unit) * unit for end in list(accumulate(wanted))[:-1]), pixels]

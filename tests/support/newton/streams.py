"""Streams, words and machines for the timing tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from pimflow.codegen.newton.commands import (
    ZERO,
    Affine,
    Command,
    CommandStream,
    Comp,
    GAct,
    GWrite,
    Item,
    Loop,
    ReadRes,
)
from pimflow.targets import PimSpec, load_target

PIM = load_target("pimflow").pim
SWEEP: tuple[Item, ...] = tuple(GAct(group, ZERO) for group in range(4))
COMP = Comp(ZERO, ZERO)
READRES = ReadRes(ZERO, ZERO)


def gwrite(elements: int = 512, buffer: int = 0) -> GWrite:
    return GWrite(ZERO, 1, ZERO, elements, elements, buffer)


def stream(*items: Item | tuple[Item, ...]) -> CommandStream:
    flat: list[Item] = []
    for item in items:
        flat.extend(item if isinstance(item, tuple) else (item,))
    return CommandStream(0, tuple(flat))


def comps(count: int, buffer: int = 0) -> Loop:
    return Loop("c", count, (Comp(ZERO, ZERO, buffer),))


def artifact_word(command: Command) -> str:
    if isinstance(command, GAct):
        return f"G_ACT{command.group}"
    return {GWrite: "GWRITE", Comp: "COMP", ReadRes: "READRES"}[type(command)]


def strict_word(command: Command) -> tuple[Any, ...]:
    if isinstance(command, GWrite):
        return ("GWRITE", command.buffer, 2 * command.elements)
    if isinstance(command, GAct):
        return ("G_ACT", command.group)
    return ("COMP", command.buffer) if isinstance(command, Comp) else ("READRES",)


def with_timing(timing: str, pim: PimSpec = PIM, /, **changes: int) -> PimSpec:
    """The machine with other timing parameters in one profile."""
    changed = dataclasses.replace(getattr(pim.timing, timing), **changes)
    return dataclasses.replace(pim, timing=pim.timing.with_tables(**{timing: changed}))


def nests(buffers: int = 1, depth: int = 3, stray: bool = False) -> st.SearchStrategy[CommandStream]:
    """Random loop nests of some 10 to 12,000 commands; all legal, or with stray READRES among them."""
    kinds = [
        st.just(SWEEP),
        st.permutations(SWEEP).map(tuple),
        st.integers(0, buffers - 1).map(lambda buffer: (Comp(ZERO, ZERO, buffer),)),
        st.integers(1, 40).map(lambda count: (comps(count),)),
        st.just((COMP, READRES)),
        st.just((*SWEEP, comps(32), READRES)),
        st.tuples(st.sampled_from((1, 16, 100, 512)), st.integers(0, buffers - 1)).map(lambda pair: (gwrite(*pair),)),
    ]
    commands = st.one_of(*kinds, *([st.sampled_from(((READRES,), (SWEEP[1],)))] if stray else []))
    parts = st.lists(commands, min_size=1, max_size=4).map(_joined)
    for level in range(depth):
        parts = st.lists(st.one_of(commands, _loops(level, parts)), min_size=1, max_size=4).map(_joined)
    start = tuple(gwrite(16, buffer) for buffer in range(buffers)) + SWEEP
    sizes = st.sampled_from((0, 4000, 12_000))
    whole = st.tuples(parts.filter(lambda items: 0 < _size(items) <= 12_000), sizes)
    return whole.map(lambda pair: CommandStream(0, (*start, Loop("whole", max(1, pair[1] // _size(pair[0])), pair[0]))))


def _loops(level: int, bodies: st.SearchStrategy[tuple[Item, ...]]) -> st.SearchStrategy[tuple[Item, ...]]:
    counts = st.sampled_from((0, 1, 2, 3, 5, 17, 60, 300))
    return st.tuples(counts, bodies).map(lambda pair: (Loop(f"v{level}", *pair),))


def _joined(parts: list[tuple[Item, ...]]) -> tuple[Item, ...]:
    return tuple(item for part in parts for item in part)


def _size(items: tuple[Item, ...]) -> int:
    return sum(item.count * _size(item.body) if isinstance(item, Loop) else 1 for item in items)


def row(base: int, *terms: tuple[str, int]) -> Affine:
    return Affine(base, terms)

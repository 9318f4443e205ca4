"""PIM command streams as loop nests with affine operands, one per channel.

A stream is a tree of `Loop`s over commands. Its size is that of the nest, not of its expansion. Operands are affine in
the loop variables: `Affine(base, ((var, stride), ...))`.

Every command carries its effect on values, so that a program can be executed from its streams alone: `GWrite` names the
elements of the source matrix that it gathers, `ReadRes` the destination of its results. The source is always a matrix
of P rows ("pixels") by K columns, seen through a `SourceView` (im2col for a convolution, identity for a matrix
product); the result is a matrix of P pixels by O output channels, seen through a `ResultView`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Union

from pimflow.records import NamedTuple, dataclass


class Affine(NamedTuple):
    """base + sum of stride * loop variable."""

    base: int
    terms: tuple[tuple[str, int], ...] = ()

    def at(self, variables: Mapping[str, int]) -> int:
        """The value for given loop variables."""
        return self.base + sum(stride * variables[name] for name, stride in self.terms)

    def plus(self, offset: int) -> Affine:
        """The same value, shifted by a constant."""
        return Affine(self.base + offset, self.terms)


ZERO = Affine(0)


@dataclass(frozen=True, slots=True)
class GWrite:
    """Fill global buffer `buffer` of the channel's own set (0 unless the target gives a channel several).

    Gathers the `k_count` columns from `k` on of `pixels` source rows from `pixel` on; row i is stored at element
    `i * pitch` of the buffer (pitch is a multiple of the multipliers per bank; the gap is zero). A pitch below
    `k_count` is a strip of windows: where two rows overlap, they hold the same elements. The buffer holds all of this
    `copies` times, `pixels * pitch` elements apart.
    """

    pixel: Affine
    pixels: int
    k: Affine
    k_count: int
    pitch: int
    buffer: int = 0
    copies: int = 1

    @property
    def elements(self) -> int:
        """Elements actually written."""
        return self.copies * ((self.pixels - 1) * min(self.pitch, self.k_count) + self.k_count)

    @property
    def span(self) -> int:
        """Elements from the buffer's start to the last one written."""
        return (self.copies * self.pixels - 1) * self.pitch + self.k_count


@dataclass(frozen=True, slots=True)
class GAct:
    """Activate row `row` in all banks of bank group `group` (ganged activation)."""

    group: int
    row: Affine


@dataclass(frozen=True, slots=True)
class Comp:
    """In every bank: latch += dot(buffer[slot], open row[column]), both in units of the multipliers per bank (16).

    On hardware whose COMP cannot pair any slot with any column, the slot equals the column.
    """

    column: Affine
    slot: Affine
    buffer: int = 0


@dataclass(frozen=True, slots=True)
class ReadRes:
    """Return one result per bank and clear the latches: bank b holds output channel `channel + b` of pixel `pixel`.

    With `add`, the results are added to the stored ones (partial sums of a long K); otherwise they replace them.
    """

    pixel: Affine
    channel: Affine
    add: bool = False


Command = GWrite | GAct | Comp | ReadRes
Item = Union[Command, "Loop"]


@dataclass(frozen=True, slots=True)
class Loop:
    """`count` executions of `body`, with `var` = 0, 1, .. count - 1. Variable names are unique along a path."""

    var: str
    count: int
    body: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class CommandStream:
    """The commands that one PIM channel executes, in order."""

    channel: int
    body: tuple[Item, ...]

    def expand(self) -> Iterator[tuple[Command, Mapping[str, int]]]:
        """Every command with its loop variables, in order, lazily. The mapping is reused: don't keep it."""
        yield from _expand(self.body, {})


def _expand(items: tuple[Item, ...], variables: dict[str, int]) -> Iterator[tuple[Command, Mapping[str, int]]]:
    for item in items:
        if not isinstance(item, Loop):
            yield item, variables
            continue
        for index in range(item.count):
            variables[item.var] = index
            yield from _expand(item.body, variables)
        variables.pop(item.var, None)


@dataclass(frozen=True, slots=True)
class CommandCounts:
    """Commands by kind. `g_act` counts ganged activations (four per opened row on a machine with four bank groups)."""

    gwrite: int = 0
    g_act: int = 0
    comp: int = 0
    readres: int = 0

    def __add__(self, other: CommandCounts) -> CommandCounts:
        return CommandCounts(
            self.gwrite + other.gwrite,
            self.g_act + other.g_act,
            self.comp + other.comp,
            self.readres + other.readres,
        )

    def times(self, factor: int) -> CommandCounts:
        """The counts of `factor` repetitions."""
        return CommandCounts(self.gwrite * factor, self.g_act * factor, self.comp * factor, self.readres * factor)

    def as_json(self) -> dict[str, int]:
        """The counts by the names of the commands."""
        return {"GWRITE": self.gwrite, "G_ACT": self.g_act, "COMP": self.comp, "READRES": self.readres}


def count_commands(items: tuple[Item, ...]) -> CommandCounts:
    """Commands in a nest, without expanding it."""
    total = CommandCounts()
    for item in items:
        if isinstance(item, Loop):
            total += count_commands(item.body).times(item.count)
        elif isinstance(item, GWrite):
            total += CommandCounts(gwrite=1)
        elif isinstance(item, GAct):
            total += CommandCounts(g_act=1)
        elif isinstance(item, Comp):
            total += CommandCounts(comp=1)
        else:
            total += CommandCounts(readres=1)
    return total

"""Emits the timing shapes of channels' programs: command codes and counted loops, without operands."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pimflow.codegen.newton.commands import ZERO, Comp, GAct, GWrite, ReadRes
from pimflow.codegen.newton.emit import Emitter, Fill, Made, RowBase, ShareWork, Terms, WeightGroups
from pimflow.codegen.newton.im2col import Geometry
from pimflow.codegen.newton.mapping import Mapping
from pimflow.codegen.newton.work_split import Visit
from pimflow.runtime.newton.timing.engine import Engine
from pimflow.runtime.newton.timing.nest import Repeat, ShapeItem
from pimflow.targets import PimSpec


def repeated(engine: Engine, items: tuple[ShapeItem, ...], count: int) -> tuple[ShapeItem, ...]:
    """The simplest equivalent form of a loop: empty, its items if executed once, or one loop."""
    if not items or count < 1:
        return ()
    if count == 1:
        return items
    if len(items) == 1 and isinstance(items[0], Repeat):
        return (Repeat(items[0].body, items[0].times * count),)
    return (Repeat(engine.sequence(items), count),)


class Codes:
    """The codes of an engine's commands, cached."""

    def __init__(self, engine: Engine, pim: PimSpec) -> None:
        self.engine = engine
        code = engine.rules.code
        self.acts: tuple[ShapeItem, ...] = tuple(code(GAct(group, ZERO)) for group in range(pim.bank_groups))
        self.readres = code(ReadRes(ZERO, ZERO))
        self._comps: dict[int, int] = {}
        self._gwrites: dict[tuple[int, int, int, Sequence[int]], tuple[ShapeItem, ...]] = {}
        self.blocks: dict[Hashable, tuple[ShapeItem, ...]] = {}

    def comp(self, buffer: int) -> int:
        """The code of a COMP from a buffer."""
        if buffer not in self._comps:
            self._comps[buffer] = self.engine.rules.code(Comp(ZERO, ZERO, buffer))
        return self._comps[buffer]

    def gwrites(self, depth: int, pitch: int, copies: int, counts: Sequence[int]) -> tuple[ShapeItem, ...]:
        """The codes of one GWRITE to each buffer in turn, of `counts[i]` pixels with `depth` elements of K each."""
        key = (depth, pitch, copies, counts)
        if key not in self._gwrites:
            writes = (GWrite(ZERO, count, ZERO, depth, pitch, at, copies) for at, count in enumerate(counts))
            self._gwrites[key] = tuple(map(self.engine.rules.code, writes))
        return self._gwrites[key]


class PlainEmitter(Emitter[Made]):
    """Emits without operands, so that most blocks (what visits compute on filled buffers) are equal.

    `blocks` caches them by everything that they depend on.
    """

    names_rows = False

    def __init__(
        self,
        mapping: Mapping,
        shape: Geometry,
        pim: PimSpec,
        groups: WeightGroups,
        blocks: dict[Hashable, tuple[Made, ...]],
    ) -> None:
        super().__init__(mapping, shape, pim, groups)
        self._blocks = blocks

    def block(
        self,
        work: ShareWork,
        visit: Visit,
        offset: int,
        terms: Terms,
        counts: Sequence[int],
        following: tuple[Made, ...] = (),
    ) -> tuple[Made, ...]:
        """As in `Emitter`, cached."""
        key = (visit.width, visit.pixels, visit.columns, counts, following, self.mapping.prefetch)
        known = self._blocks.get(key)
        if known is None:
            known = self._blocks[key] = super().block(work, visit, offset, terms, counts, following)
        return known

    def fill_and_tiles(self, work: ShareWork, offset: int, terms: Terms, counts: Sequence[int]) -> tuple[Made, ...]:
        """As in `Emitter`, cached."""
        run = work.run
        depth = self.written(run, work.slot)
        key = (work.visits, run.step, run.copies, run.pixels, depth, counts, self.mapping.acts_first)
        known = self._blocks.get(key)
        if known is None:
            known = self._blocks[key] = super().fill_and_tiles(work, offset, terms, counts)
        return known


class ShapeEmitter(PlainEmitter[ShapeItem]):
    """Emits the timing shape of a channel's program: command codes and counted loops, without operands."""

    def __init__(self, mapping: Mapping, shape: Geometry, pim: PimSpec, groups: WeightGroups, codes: Codes) -> None:
        super().__init__(mapping, shape, pim, groups, codes.blocks)
        self._codes = codes

    def loop(self, var: str, count: int, body: tuple[ShapeItem, ...]) -> tuple[ShapeItem, ...]:
        """The loop in its simplest equivalent form."""
        return repeated(self._codes.engine, body, count)

    def gwrites(self, work: ShareWork, offset: int, terms: Terms, counts: Sequence[int]) -> tuple[ShapeItem, ...]:
        """Codes by buffer and by amount written."""
        run = work.run
        return self._codes.gwrites(self.written(run, work.slot), run.step * self.pim.multipliers, run.copies, counts)

    def acts(self, visit: Visit, base: RowBase) -> tuple[ShapeItem, ...]:
        """One for each bank group."""
        return self._codes.acts

    def comps(
        self, work: ShareWork, visit: Visit, buffer: int, tile: tuple[int, int], pixel: tuple[int, int]
    ) -> tuple[ShapeItem, ...]:
        """A loop of COMPs from the buffer, one for each column."""
        low, high = visit.columns
        return self.loop("c", high - low, (self._codes.comp(buffer),))

    def readres(
        self, work: ShareWork, visit: Visit, fill: Fill, tile: tuple[int, int], pixels: tuple[int, int]
    ) -> ShapeItem:
        """The one code that all READRES share."""
        return self._codes.readres

"""Runs that grow, shrink and take over units from their neighbours, and pipelines in other stages.

Variations change a pipeline within its run. Here consecutive decisions become one pipeline, whole or in part. Every
unit keeps the share of its rows that is on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise

from pimflow.ir import Decision, OnDevice, Pipeline, Refusal, SplitRows
from pimflow.ir.analysis.regions import node_rows
from pimflow.ir.plan import Single
from pimflow.passes.rowwise.stages import Spans
from pimflow.records import dataclass
from pimflow.search.candidates.base import Candidate, Destination, Scene
from pimflow.search.candidates.branches import whole
from pimflow.search.candidates.divided import changing_devices
from pimflow.search.candidates.pipelines import cuttable, equal_stages, is_run
from pimflow.search.chain import Interval
from pimflow.search.order import Unit, names_of
from pimflow.search.policy import Space

Chosen = Sequence[Interval[tuple[Decision, ...]]]
MAX_MERGED = 3
"""The maximum number of consecutive decisions that become one pipeline at once."""


@dataclass(frozen=True)
class _Segment:
    """Consecutive units, and where their rows are made.

    Args:
        units: in order.
        shares: by unit, the share of its rows that the host makes in each stage.
        stage_rows: the rows of the last node that each stage makes; a single number without stages.
        device: the device beside the host; "" if the host makes all rows.
    """

    units: tuple[Unit, ...]
    shares: tuple[tuple[float, ...], ...]
    stage_rows: tuple[int, ...]
    device: str

    @cached_property
    def is_divided(self) -> bool:
        """Whether there are stages, or rows of one unit on both devices."""
        return len(self.stage_rows) > 1 or any(0 < share < 1 for shares in self.shares for share in shares)

    @cached_property
    def shares_units(self) -> bool:
        """Whether both devices make rows of one unit, in the same stage or not."""
        return any(0 < sum(shares) < len(shares) for shares in self.shares)


class Merger:
    """Makes pipelines of the decisions of covers over one graph. What is offered of a cover once is not offered again.

    Args:
        scene: the graph in its order.
        space: of pipelines of any run.
    """

    def __init__(self, scene: Scene, space: Space) -> None:
        self._scene = scene
        self._space = space
        self._destinations = {destination.device: destination for destination in scene.destinations(space.choice)}
        self._numbers: dict[Interval[tuple[Decision, ...]], int] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._seen_restaged: set[tuple[int, ...]] = set()
        self._segments: dict[tuple[Decision, ...], _Segment | None] = {}
        self._runs: dict[tuple[int, int], bool] = {}

    def candidates(self, chosen: Chosen) -> Iterator[Candidate]:
        """Pipelines of up to three consecutive decisions, of one and a part of its neighbour, of the first or last
        units of one, and one in other stages."""
        for window in self._windows(chosen, self._seen):
            yield from self._pipelines(window)

    def in_other_stages(self, chosen: Chosen) -> Iterator[Candidate]:
        """Pipelines with one stage more, cut at its quarters, and two or three consecutive decisions in any number of
        equal stages, if two devices share rows of a unit: the search has had the others."""
        for window in self._windows(chosen, self._seen_restaged):
            if len(window) == 1:
                yield from self._restaged_further(window[0])
            elif any(segment.shares_units for segment in window):
                yield from self._merge(window, equal=True)

    def pipelines(self, window: Chosen) -> Iterator[Candidate]:
        """Like `candidates`, for a single window of consecutive decisions."""
        segments = self._segments_of(window)
        if segments:
            yield from self._pipelines(segments)

    def apart(self, one: Interval[tuple[Decision, ...]]) -> tuple[Single, ...]:
        """The units of a chosen decision about rows, each whole on the device that makes most of its rows; () for a
        pipeline whose bottom rows come first."""
        segment = self._segment(one)
        return () if segment is None else self._apart(segment, 0, len(segment.units))

    def rest(
        self, one: Interval[tuple[Decision, ...]], start: int, stop: int, *, together: bool
    ) -> tuple[Decision, ...]:
        """The first or the last units of a chosen decision about rows, at positions start .. stop-1: in a pipeline
        (`together`, if they can be in one), or apart."""
        segment = self._segment(one)
        assert segment is not None, "pipelines are made of it"
        parts = chain(self._before(segment), self._from(segment)) if together else ()
        for part in parts:
            if (part.units[0].start, part.units[-1].stop) == (start, stop) and self._is_run(part.units):
                for pipeline in self._pipeline(part.units, part.shares, part.stage_rows, part.device):
                    return pipeline.decisions
        first, last = (sum(unit.start < place for unit in segment.units) for place in (start, stop))
        return self._apart(segment, first, last)

    def _apart(self, segment: _Segment, first: int, last: int) -> tuple[Single, ...]:
        """Units first .. last-1 of a segment by themselves."""
        destination = self._destinations[segment.device]
        found: list[Single] = []
        for unit, shares in zip(segment.units[first:last], segment.shares[first:last], strict=True):
            stays = sum(shares) >= len(shares) / 2 or not self._scene.can_run(unit.anchor, destination)
            found += whole(self._scene, [node.name for node in unit.nodes], None if stays else destination)
        return tuple(found)

    def _windows(self, chosen: Chosen, seen: set[tuple[int, ...]]) -> Iterator[list[_Segment]]:
        """The segments of one, then two, then three consecutive decisions that devices share, unless `seen`."""
        numbers = [self._numbers.setdefault(one, len(self._numbers)) for one in chosen]
        for size in range(1, MAX_MERGED + 1):
            for first in range(len(chosen) - size + 1):
                window = tuple(numbers[first : first + size])
                if window in seen:
                    continue
                seen.add(window)
                segments = self._segments_of(chosen[first : first + size])
                if segments:
                    yield segments

    def _segments_of(self, window: Chosen) -> list[_Segment]:
        """The segments of decisions that two devices share; none if one of them is not about rows."""
        segments = [segment for one in window if (segment := self._segment(one)) is not None]
        is_divided = len(segments) == len(window) and any(segment.is_divided for segment in segments)
        return segments if is_divided else []

    def _pipelines(self, segments: Sequence[_Segment]) -> Iterator[Candidate]:
        if len(segments) == 1:
            yield from self._restaged(segments[0])
            yield from self._parts(segments[0])
            return
        yield from self._merge(segments)
        if len(segments) == 2:
            yield from self._shifted(*segments)

    def _segment(self, chosen: Interval[tuple[Decision, ...]]) -> _Segment | None:
        """The segment of a chosen decision; None for decisions that are not about rows, or of which the host makes all
        stages."""
        if chosen.payload not in self._segments:
            self._segments[chosen.payload] = self._segment_of(chosen)
        return self._segments[chosen.payload]

    def _segment_of(self, chosen: Interval[tuple[Decision, ...]]) -> _Segment | None:
        units, (decision, *others) = self._scene.units_within(chosen.start, chosen.stop), chosen.payload
        if any(not isinstance(other, OnDevice) or other.device != self._scene.host for other in others):
            return None
        if isinstance(decision, OnDevice) and len(units) == 1:
            stays = decision.device == self._scene.host
            return _Segment(units, ((float(stays),),), (self._rows(units),), "" if stays else decision.device)
        if isinstance(decision, SplitRows):
            share = decision.gpu_rows / node_rows(self._scene.graph, units[0].anchor)
            behind = ((1.0,),) * (len(units) - 1)
            return _Segment(units, ((share,), *behind), (self._rows(units),), decision.device)
        return self._of_pipeline(units, decision) if isinstance(decision, Pipeline) else None

    def _of_pipeline(self, units: tuple[Unit, ...], pipeline: Pipeline) -> _Segment | None:
        made = self._scene.rows_made(pipeline.run, pipeline.stage_rows)
        device = next((device for device in pipeline.devices if device != self._scene.host), None)
        if isinstance(made, Refusal) or pipeline.bottom_first or device is None:
            return None
        counts = pipeline.host_rows or ((),) * len(pipeline.run)
        on_host = {
            name: divided or (rows if where == self._scene.host else (0,) * len(rows))
            for name, where, divided in zip(pipeline.run, pipeline.devices, counts, strict=True)
            for rows in (_counts(made[name]),)
        }
        shares = tuple(
            tuple(
                some / rows if rows else 0.0
                for some, rows in zip(on_host[unit.anchor.name], _counts(made[unit.anchor.name]), strict=True)
            )
            for unit in units
        )
        return _Segment(units, shares, pipeline.stage_rows, device)

    def _rows(self, units: Sequence[Unit]) -> int:
        """The rows of the last node."""
        return node_rows(self._scene.graph, units[-1].nodes[-1])

    def _merge(self, segments: Sequence[_Segment], *, equal: bool = False) -> Iterator[Candidate]:
        """All units in one pipeline, in the stages of one of the segments; in one stage, or in few equal ones, if none
        has any. With `equal`, in any number of equal stages."""
        devices = {segment.device for segment in segments} - {""}
        units = tuple(chain.from_iterable(segment.units for segment in segments))
        if len(devices) != 1 or not self._is_run(units):
            return
        rows = self._rows(units)
        options = [scaled for segment in segments if (scaled := _scaled(segment.stage_rows, rows))]
        staged = [option for option in options if len(option) > 1]
        shares = [some for segment in segments for some in segment.shares]
        counts = self._space.stages if equal else () if staged else (min(self._space.stages),)
        others = [stage_rows for count in counts for stage_rows in equal_stages(rows, count)[-1:]]
        for stage_rows in dict.fromkeys(others if equal else staged or (*options, *others)):
            yield from self._pipeline(units, shares, stage_rows, *devices)

    def _shifted(self, one: _Segment, other: _Segment) -> Iterator[Candidate]:
        """One of two segments with some units of its neighbour, from the boundary on."""
        for behind in self._from(one):
            yield from self._merge((behind, other))
        for before in self._before(other):
            yield from self._merge((one, before))

    def _parts(self, segment: _Segment) -> Iterator[Candidate]:
        """The first units and the last units by themselves, cut at any unit."""
        for part in chain(self._before(segment), self._from(segment)):
            if self._is_run(part.units):
                yield from self._pipeline(part.units, part.shares, part.stage_rows, part.device)

    def _before(self, segment: _Segment) -> Iterator[_Segment]:
        """The first units, cut at any unit, in the stages that they have in the segment."""
        staged = len(segment.stage_rows) > 1
        made = self._scene.rows_made(names_of(segment.units), segment.stage_rows) if staged else {}
        if isinstance(made, Refusal):
            return
        for cut in range(1, len(segment.units)):
            units, last = segment.units[:cut], segment.units[cut - 1].nodes[-1].name
            stage_rows = _counts(made[last]) if staged else (self._rows(units),)
            if min(stage_rows) > 0:
                yield _Segment(units, segment.shares[:cut], stage_rows, segment.device)

    def _from(self, segment: _Segment) -> Iterator[_Segment]:
        """The last units, cut at any unit."""
        for cut in range(1, len(segment.units)):
            yield _Segment(segment.units[cut:], segment.shares[cut:], segment.stage_rows, segment.device)

    def _restaged(self, segment: _Segment) -> Iterator[Candidate]:
        """The same units in other stages: two put together, or equal ones; also with one of few units on the host in
        the first or the last stage."""
        if len(segment.units) < 2:
            return
        rows = segment.stage_rows
        others = [(*rows[:at], rows[at] + rows[at + 1], *rows[at + 2 :]) for at in range(len(rows) - 1)]
        others += [equal for count in self._space.stages for equal in equal_stages(sum(rows), count)]
        for stage_rows in dict.fromkeys(others):
            if len(stage_rows) in self._space.stages:
                yield from self._pipeline(segment.units, segment.shares, stage_rows, segment.device)
        yield from changing_devices(self._scene, segment.units, self._space, self._destinations[segment.device])

    def _restaged_further(self, segment: _Segment) -> Iterator[Candidate]:
        """The same units with one stage cut in two at its quarters; `variations` has halves unless units are shared."""
        rows = segment.stage_rows
        if len(segment.units) < 2 or len(rows) + 1 not in self._space.stages:
            return
        for at, stage in enumerate(rows):
            middle = (stage // 2,) if segment.shares_units else ()
            for first in dict.fromkeys((stage // 4, *middle, stage - stage // 4)):
                if 0 < first < stage:
                    stage_rows = (*rows[:at], first, stage - first, *rows[at + 1 :])
                    yield from self._pipeline(segment.units, segment.shares, stage_rows, segment.device)

    def _is_run(self, units: Sequence[Unit]) -> bool:
        """Whether units are a run that can be cut into stages."""
        place = units[0].start, units[-1].stop
        if place not in self._runs:
            possible = is_run(self._scene, units, self._space.max_run)
            self._runs[place] = possible and any(cuttable(self._scene, [tuple(units)]))
        return self._runs[place]

    def _pipeline(
        self, units: Sequence[Unit], shares: Sequence[Sequence[float]], stage_rows: tuple[int, ...], device: str
    ) -> Iterator[Candidate]:
        """The pipeline in which units have these shares on the host, if both devices work on it."""
        names, destination = names_of(units), self._destinations[device]
        made = self._scene.rows_made(names, stage_rows)
        if isinstance(made, Refusal):
            return
        devices: list[str] = []
        host_rows: list[tuple[int, ...]] = []
        for unit, some in zip(units, shares, strict=True):
            counts = self._on_host(unit, some, _counts(made[unit.anchor.name]), destination)
            behind = len(unit.nodes) - 1
            devices += (self._scene.host if counts is None else device, *[self._scene.host] * behind)
            host_rows += (counts if counts and any(counts) else (), *[()] * behind)
        if len(set(devices)) == 2 and (any(host_rows) or len(stage_rows) > 1):
            divided = tuple(host_rows) if any(host_rows) else ()
            pipeline = Pipeline(names, tuple(devices), stage_rows, destination.choice, host_rows=divided)
            yield Candidate(units[0].start, units[-1].stop, (pipeline,))

    def _on_host(
        self, unit: Unit, shares: Sequence[float], rows: tuple[int, ...], destination: Destination
    ) -> tuple[int, ...] | None:
        """By stage, the rows of a unit on the host; None if these are all."""
        by_stage = _in_stages(shares, len(rows))
        counts = tuple([round(share * count) for share, count in zip(by_stage, rows, strict=True)])
        return None if counts == rows or not self._scene.can_run(unit.anchor, destination) else counts


def _counts(spans: Spans) -> tuple[int, ...]:
    return tuple([stop - start for start, stop in spans])


def _scaled(stage_rows: Sequence[int], rows: int) -> tuple[int, ...]:
    """The same stages of another number of rows; () if one would be empty."""
    total = sum(stage_rows)
    ends = [0, *(round(end * rows / total) for end in accumulate(stage_rows))]
    found = tuple([stop - start for start, stop in pairwise(ends)])
    return found if min(found) > 0 else ()


def _in_stages(shares: Sequence[float], stages: int) -> tuple[float, ...]:
    """Shares by stage for another number of stages: those of the stage that has the middle of each."""
    return tuple([shares[(2 * stage + 1) * len(shares) // (2 * stages)] for stage in range(stages)])

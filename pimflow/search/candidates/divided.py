"""Rows divided within the stages of a pipeline, and neighbours that are all divided without synchronisation between
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from pimflow.ir import Decision, Pipeline, Refusal
from pimflow.ir.analysis.regions import node_rows
from pimflow.passes.rowwise.stages import Spans
from pimflow.search.candidates.base import Candidate, Destination, Scene
from pimflow.search.candidates.pipelines import all_stages, cuttable, equal_stages, neighbours, placed_on
from pimflow.search.chain import Interval
from pimflow.search.order import Unit
from pimflow.search.policy import Space

LONGEST_RUN = 5
"""The maximum number of units in a run that is listed with rows divided within its stages."""


def divided_runs(scene: Scene, space: Space, destination: Destination) -> Iterator[Candidate]:
    """Runs of a few neighbours that can leave the host: all of them divided, in one stage; or one of them on the host
    in the first or the last stage, and all others on the unit.

    Rows are divided so that both devices take about the same time; stages are equal, and their number is the smallest
    that the space has. In a small graph, pairs are divided in all ways, and stages have any number of rows.
    `variations` finds others.
    """
    for run in _runs(scene, space):
        able = [scene.can_run(unit.anchor, destination) for unit in run]
        if all(able):
            yield from _neighbours_divided(scene, run, destination)
        if any(able):
            yield from _changing_devices(scene, run, able, space, destination, every=scene.every_division)


def versions(scene: Scene, space: Space, destination: Destination, most: int) -> int:
    """The number of these candidates in a small graph; counting stops above `most`."""
    count = 0
    for run in _runs(scene, space):
        able = [scene.can_run(unit.anchor, destination) for unit in run]
        if len(run) == 2 and all(able):
            count += len(_every_count(scene, run[0])) * len(_every_count(scene, run[1]))
        count += 2 * sum(able) * sum(1 for _ in _stages(scene, run, space, every=True))
        if count > most:
            break
    return count


def _runs(scene: Scene, space: Space) -> Iterator[tuple[Unit, ...]]:
    growing = neighbours(scene, LONGEST_RUN) if space.runs == "any" else ()
    return (run for run in cuttable(scene, growing) if len(run) <= LONGEST_RUN)


def _every_count(scene: Scene, unit: Unit) -> range:
    return range(1, node_rows(scene.graph, unit.anchor))


def _stages(scene: Scene, run: Sequence[Unit], space: Space, every: bool) -> Iterator[tuple[int, ...]]:
    rows, stages = node_rows(scene.graph, run[-1].nodes[-1]), min(space.stages)
    yield from all_stages(rows, stages) if every else equal_stages(rows, stages)[-1:]


def _neighbours_divided(scene: Scene, run: Sequence[Unit], destination: Destination) -> Iterator[Candidate]:
    """All units divided, in one stage."""
    names, devices = placed_on(scene, run, [destination.device] * len(run))
    rows = (node_rows(scene.graph, run[-1].nodes[-1]),)
    every = scene.every_division and len(run) == 2
    counts = [_every_count(scene, unit) if every else [scene.balanced_rows(unit.anchor, destination)] for unit in run]
    for chosen in product(*counts):
        divided = _by_node(run, [(count,) for count in chosen])
        pipeline = Pipeline(names, devices, rows, destination.choice, host_rows=divided)
        yield Candidate(run[0].start, run[-1].stop, (pipeline,))


def _changing_devices(
    scene: Scene, run: Sequence[Unit], able: Sequence[bool], space: Space, destination: Destination, *, every: bool
) -> Iterator[Candidate]:
    """One unit on the host in the first or the last stage, all others that can leave the host on the other device."""
    names, devices = placed_on(scene, run, [destination.device if can else scene.host for can in able])
    for stage_rows in _stages(scene, run, space, every):
        made = scene.rows_made(names, stage_rows)
        if isinstance(made, Refusal):
            continue
        for place, unit in enumerate(run):
            rows = _counts(made[unit.anchor.name]) if able[place] else ()
            for stage in (0, -1) if rows else ():
                counts = [0] * len(rows)
                counts[stage] = rows[stage]
                divided = _by_node(run, [tuple(counts) if other is unit else () for other in run])
                pipeline = Pipeline(names, devices, stage_rows, destination.choice, host_rows=divided)
                yield Candidate(run[0].start, run[-1].stop, (pipeline,))


def changing_devices(scene: Scene, run: Sequence[Unit], space: Space, destination: Destination) -> Iterator[Candidate]:
    """One unit of a run of a few on the host in the first or the last stage, for every number of equal stages but the
    smallest, for which `divided_runs` has them."""
    able = [scene.can_run(unit.anchor, destination) for unit in run]
    for stages in sorted(space.stages)[1:] if len(run) <= LONGEST_RUN else ():
        yield from _changing_devices(scene, run, able, replace(space, stages=(stages,)), destination, every=False)


def _by_node(run: Sequence[Unit], counts: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The counts of units as counts of their nodes: only the anchor has any, and the others follow it."""
    return tuple(
        of_unit if node is unit.anchor else () for unit, of_unit in zip(run, counts, strict=True) for node in unit.nodes
    )


def _counts(spans: Spans) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in spans)


def variations(scene: Scene, chosen: Interval[tuple[Decision, ...]], *, halves: bool = False) -> Iterator[Candidate]:
    """A chosen pipeline with the rows of one node divided differently in one stage.

    With `halves`, only halves, of the first and the last node that can leave the host, in the first and the last stage:
    that is where devices wait for each other.
    """
    pipeline = chosen.payload[0]
    if not isinstance(pipeline, Pipeline) or pipeline.bottom_first:
        return
    made = scene.rows_made(pipeline.run, pipeline.stage_rows)
    assert not isinstance(made, Refusal), "it has been priced"
    elsewhere = next((device for device in pipeline.devices if device != scene.host), scene.devices[0])
    destination = Destination(elsewhere, pipeline.choice)
    able = [place for place, name in enumerate(pipeline.run) if scene.can_run(scene.graph.node(name), destination)]
    for place in _ends(able) if halves else able:
        rows = _counts(made[pipeline.run[place]])
        now = _on_host(pipeline, place, rows, scene.host)
        for stage in _ends(range(len(rows))) if halves else range(len(rows)):
            for count in _half(now[stage], rows[stage]) if halves else _other_counts(now[stage], rows[stage]):
                counts = (*now[:stage], count, *now[stage + 1 :])
                divided = _divided(pipeline, place, counts, rows, (scene.host, elsewhere))
                if divided is not None:
                    yield Candidate(chosen.start, chosen.stop, (divided,))


def _ends(places: Sequence[int]) -> Sequence[int]:
    """The first and the last, each once."""
    return tuple(dict.fromkeys((*places[:1], *places[-1:])))


def _half(current: int, most: int) -> list[int]:
    """Half of the rows if all of them are on one device."""
    return [most // 2] if current in (0, most) and most > 1 else []


def _on_host(pipeline: Pipeline, place: int, rows: tuple[int, ...], host: str) -> tuple[int, ...]:
    """By stage, the rows of a node that the host makes."""
    counts = pipeline.host_rows[place] if pipeline.host_rows else ()
    return counts or (rows if pipeline.devices[place] == host else (0,) * len(rows))


def _other_counts(now: int, most: int) -> list[int]:
    """Counts of rows near the current one, and quarters if all rows are on one device."""
    near = [now + step for step in (-4, -2, -1, 1, 2, 4)]
    if now in (0, most):
        near += [quarters * most // 4 for quarters in range(5)]
    return [count for count in dict.fromkeys(near) if 0 <= count <= most and count != now]


def _divided(
    pipeline: Pipeline, place: int, counts: tuple[int, ...], rows: tuple[int, ...], devices: tuple[str, str]
) -> Pipeline | None:
    """A pipeline with `counts` rows of one node on the first of two devices, by stage; None if no pipeline is left."""
    host, elsewhere = devices
    host_rows = list(pipeline.host_rows or ((),) * len(pipeline.run))
    host_rows[place] = counts if any(counts) and counts != rows else ()
    if len(rows) == 1 and not any(host_rows):
        return None
    where = host if counts == rows else elsewhere
    placed = (*pipeline.devices[:place], where, *pipeline.devices[place + 1 :])
    return replace(pipeline, devices=placed, host_rows=tuple(host_rows) if any(host_rows) else ())

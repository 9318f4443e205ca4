"""The parts of pipelines, derived from the ends of their runs.

The rows of each stage follow from the end of a run (`passes/rowwise/stages.py`): a run with the same end that begins
earlier has the same parts plus those of its additional nodes. So thousands of runs share the results for a few hundred
ends, whatever their devices. `Pipelining` lays the same parts out when it writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from pimflow.ir import Graph, Node, Pipeline, Refusal, RowPart
from pimflow.ir.analysis.regions import node_rows, readings, row_parts
from pimflow.passes.rowwise.stages import Spans, StageRows
from pimflow.records import NamedTuple
from pimflow.search.layout_parts import keeps_places


class Shares(NamedTuple):
    """The parts of a node whose rows two devices share within a stage: their devices and their rows."""

    devices: tuple[str, ...]
    rows: tuple[tuple[int, int], ...]


Where = str | tuple[str, ...] | Shares
"""The device of a node of a run: in all stages, by stage, or by part."""


def by_stage(device: str | tuple[str, ...], stages: int) -> Sequence[str]:
    """The device in each stage."""
    return (device,) * stages if isinstance(device, str) else device


class Layer(NamedTuple):
    """What the stages compute of a node.

    Args:
        rows: by stage, the rows.
        made: by stage, the part that computes them; None where there are no rows.
        readers: the places of the nodes behind it that read it.
        producers: the places of the nodes in front of it that it reads.
        leaves: whether some of its rows are made for other readers.
        in_every_stage: whether every stage computes some of its rows.
    """

    node: Node
    rows: Spans
    made: Sequence[RowPart | None]
    readers: Sequence[int]
    producers: list[int]
    leaves: bool
    in_every_stage: bool


class Grid(NamedTuple):
    """The parts of a run: for its nodes, front to back, one per stage; some of them compute nothing.

    Args:
        reads: by part, the parts that it reads.
        written: the parts that compute rows, in the order in which they are written (stage by stage), with node and
            stage.
        complete: whether nothing else takes time.
        roots: by part, the part of the same stage that it is fused into, or itself.
    """

    reads: Sequence[Sequence[int]]
    written: Sequence[tuple[int, Node, int]]
    complete: bool
    roots: Sequence[int]


class RunParts:
    """The parts of all pipelines over one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ends: dict[tuple[str, tuple[int, ...], bool], End] = {}
        self._keeps_places = cache(lambda name: keeps_places(graph, graph.node(name)))

    def end(self, run: tuple[str, ...], stage_rows: tuple[int, ...], bottom_first: bool) -> End | None:
        """The end of a run, extended to the whole run; None if only a layout can determine its parts."""
        key = (run[-1], stage_rows, bottom_first)
        end = self._ends.get(key)
        if end is None:
            end = self._ends[key] = End(self._graph, *key, self._keeps_places)
        return end if end.reaches(run) else None


class End:
    """The parts of runs that end with a given node and stages, as far to the front as requested so far.

    Places count from the last node to the front: `layers` by place, `place` by name. `roots` are, by place, the nodes
    into which the nodes are fused; `closed` is, by place, whether no node up to there is fused into a node further to
    the front. `places_kept` is `keeps_places`, by name.
    """

    def __init__(
        self,
        graph: Graph,
        last: str,
        stage_rows: tuple[int, ...],
        bottom_first: bool,
        places_kept: Callable[[str], bool],
    ) -> None:
        node = graph.node(last)
        self.stages = len(stage_rows)
        self.layers: list[Layer] = []
        self.place: dict[str, int] = {}
        self.roots: list[str | None] = []
        self.closed: list[bool] = []
        self._graph = graph
        self._parts = row_parts(graph)
        self._rows = StageRows(graph, node, stage_rows, bottom_first)
        self._run: tuple[str, ...] = ()
        self._places_kept = places_kept
        self._readings = readings(graph)
        self._open_roots: set[str] = set()
        self._lines = 0
        self._complete: list[bool] = []
        self._chained: list[bool] = []
        self._holding: list[bool] = []
        self._behind: list[list[list[int]]] = []
        self._grids: dict[int, Grid] = {}
        fits = min(stage_rows, default=0) > 0 and sum(stage_rows) == node_rows(graph, node)
        self._is_derived = fits and self._add(node)

    def reaches(self, run: tuple[str, ...]) -> bool:
        """Whether this is the end of a run of two nodes or more whose parts can be derived."""
        if not self._is_derived or len(run) < 2:
            return False
        known = len(self._run)
        if run[-known:] != self._run[-len(run) :]:
            return False
        for name in reversed(run[:-known]):
            node = self._graph.node(name)
            if self._rows.extend(node) is not None or not self._add(node):
                return False
        return True

    def _add(self, node: Node) -> bool:
        """Add a node at the front; False if some of its rows cannot be computed by themselves."""
        rows = self._rows.fresh(node.name)
        made: list[RowPart | None] = []
        in_every_stage = True
        for start, stop in rows:
            in_every_stage &= start < stop
            part = None if start == stop else self._parts[node.name, start, stop]
            if isinstance(part, Refusal):
                return False
            made.append(part)
        reading = self._readings[node.name]
        readers = [self.place[name] for name in reading.readers if name in self.place]
        leaves = reading.is_output or len(readers) < len(reading.readers)
        for reader in readers:
            self.layers[reader].producers.append(len(self.layers))
        self.place[node.name] = len(self.layers)
        self.layers.append(Layer(node, rows, made, readers, [], leaves, in_every_stage))
        if self._lines == len(self.layers) - 1 and (not self._lines or readers == [self._lines - 1]):
            self._lines += 1
        self._run = (node.name, *self._run)
        self._open_roots.discard(node.name)
        root = node.placement.fused_into
        self.roots.append(root)
        if root is not None and root not in self.place:
            self._open_roots.add(root)
        self.closed.append(not self._open_roots)
        return True

    def where(self, name: str, places: Sequence[Where]) -> Where | None:
        """Where a node runs, given the devices of a run; None if it is not in the run."""
        place = self.place.get(name)
        return None if place is None or place >= len(places) else places[-1 - place]

    def is_line(self, size: int) -> bool:
        """Whether each of the last `size` nodes is read by the next one and by no other in the run."""
        return self._lines >= size

    def same_rows(self, place: int, other: int) -> Sequence[bool]:
        """By stage, whether the nodes at two places make the same rows."""
        return [rows == others for rows, others in zip(self.layers[place].rows, self.layers[other].rows, strict=True)]

    def is_chain(self, size: int) -> bool:
        """Whether the last `size` nodes read one another in turn, the parts of each stage those of the same stage."""
        for place in range(len(self._chained), size):
            self._chained.append(not place or (self._chained[-1] and self._feeds_next(place)))
        return self._chained[size - 1]

    def _feeds_next(self, place: int) -> bool:
        """Whether in every stage the next node reads rows that the one at a place makes in that stage."""
        operands = self._operands(place)
        made, rows = self.layers[place - 1].made, self.layers[place].rows
        return all(_reads(part, operands, own) for part, own in zip(made, rows, strict=True))

    def holds_next(self, place: int) -> bool:
        """Whether the second stage of the next node reads rows that the one at a place makes in the first stage."""
        for at in range(len(self._holding), place + 1):
            rows, made = self.layers[at].rows[0], self.layers[at - 1].made[1]
            self._holding.append(bool(at) and _reads(made, self._operands(at), rows))
        return self._holding[place]

    def reads(self, place: int, rows: tuple[int, int], made: tuple[int, int]) -> bool:
        """Whether some rows of the node behind a place are known to read some of the rows `made` of the one there."""
        part = self._parts[self.layers[place - 1].node.name, rows[0], rows[1]]
        return not isinstance(part, Refusal) and _reads(part, self._operands(place), made)

    def reaches_next(self, place: int, stage: int, rows: tuple[int, int]) -> bool:
        """Whether the next node that is not fused into the one at a place is known to read some rows of the latter in a
        stage, through the nodes in between; true if there is none."""
        at = place - 1
        while at >= 0 and self.layers[at].node.placement.fused_into == self.layers[place].node.name:
            at -= 1
        part: RowPart | Refusal | None = self.layers[at].made[stage] if at >= 0 else None
        while 0 <= at < place - 1 and isinstance(part, RowPart):
            at += 1
            spans = _spans(part, self._operands(at))
            part = self._parts[self.layers[at].node.name, spans[0][0], spans[0][1]] if len(spans) == 1 else None
        return at < 0 or (isinstance(part, RowPart) and _reads(part, self._operands(place), rows))

    def _operands(self, place: int) -> Sequence[int]:
        """Which operands of the next node the one at a place makes."""
        node, reader = self.layers[place].node, self.layers[place - 1].node
        return self._readings[node.name].readers.get(reader.name, ())

    def places(self, pipeline: Pipeline, host: str) -> Sequence[Where] | None:
        """The devices of the nodes of a run with this end; None if it has only one stage and nothing is divided in
        it."""
        if not pipeline.host_rows:
            return pipeline.devices if self.stages > 1 else None
        found: list[Where] = []
        for name, device, counts in zip(pipeline.run, pipeline.devices, pipeline.host_rows, strict=True):
            if not counts:
                found.append(device)
                continue
            rows = self.layers[self.place[name]].rows
            if any(0 < count < stop - start for count, (start, stop) in zip(counts, rows, strict=False)):
                found.append(_shares(rows, counts, device, host))
            else:
                found.append(tuple([host if count else device for count in counts]))
        return tuple(found)

    def grid(self, size: int) -> Grid:
        """The parts of the run of the last `size` nodes."""
        if size not in self._grids:
            for place in range(len(self._behind), size):
                self._link(place)
            layers = self.layers[:size][::-1]
            behind = [steps for of_layer in self._behind[:size][::-1] for steps in of_layer]
            reads = [[at - away for away in steps if away <= at] for at, steps in enumerate(behind)]
            written = [
                (place * self.stages + stage, layer.node, stage)
                for stage in range(self.stages)
                for place, layer in enumerate(layers)
                if layer.made[stage] is not None
            ]
            self._grids[size] = Grid(reads, written, all(self._complete[:size]), self._roots_of(layers))
        return self._grids[size]

    def _roots_of(self, layers: Sequence[Layer]) -> list[int]:
        at = {layer.node.name: place for place, layer in enumerate(layers)}
        roots = [at.get(layer.node.placement.fused_into or "", place) for place, layer in enumerate(layers)]
        return [root * self.stages + stage for root in roots for stage in range(self.stages)]

    def _link(self, place: int) -> None:
        """Record which parts of later nodes read which parts of a node, as the distance between the parts.

        Also record whether nodes fused with it read, in every stage, exactly the rows that it makes in that stage.
        """
        node, rows, *_ = self.layers[place]
        kernel, stays_fused = node.placement.fused_into or node.name, True
        self._behind.append([[] for _ in rows])
        for at in self.layers[place].readers:
            reader = self.layers[at]
            is_fused = reader.node.placement.fused_into == kernel
            operands = self._readings[node.name].readers[reader.node.name]
            for stage, part in enumerate(reader.made):
                for index in operands if part else ():
                    span = part.spans[index] if part else None
                    if not isinstance(span, tuple):
                        continue
                    stays_fused &= not is_fused or span == rows[stage]
                    self._behind[at][stage] += [
                        (place - at) * self.stages + stage - producer
                        for producer, (start, stop) in enumerate(rows[: stage + 1])
                        if start < span[1] and span[0] < stop and start < stop
                    ]
        self._complete.append(stays_fused and self._places_kept(node.name))


def _shares(rows: Spans, counts: Sequence[int], device: str, host: str) -> Shares:
    """The parts of a node of which the host makes the first `counts` rows of every stage."""
    parts: list[tuple[str, tuple[int, int]]] = []
    for (start, stop), count in zip(rows, counts, strict=True):
        parts += [(host, (start, start + count)), (device, (start + count, stop))]
    made = [(where, rows) for where, rows in parts if rows[0] < rows[1]]
    return Shares(tuple([where for where, _ in made]), tuple([rows for _, rows in made]))


def _reads(made: RowPart | None, operands: Sequence[int], rows: tuple[int, int]) -> bool:
    """Whether a part is known to read some of the given rows of one of its operands."""
    start, stop = rows
    spans = _spans(made, operands) if made else []
    return bool([span for span in spans if max(span[0], start) < min(span[1], stop)])


def _spans(part: RowPart, operands: Sequence[int]) -> list[tuple[int, int]]:
    """The rows that a part reads of some of its operands, as far as these are read by rows."""
    return [span for span in map(part.spans.__getitem__, operands) if isinstance(span, tuple)]

"""Lower bounds on the time of decisions, by arithmetic on rows: most candidates are ruled out before any is built.

The parts of a decision follow from its layout (`passes/rowwise`). Each part is priced once, however many candidates
contain it: on the host exactly; on a unit first with its backend's lower bound for the work, and exactly only if the
candidate is still competitive. No schedule of the parts is shorter than

- for each device and any set of its parts: the earliest start of any of them, plus the parts one after the other, plus
  the shortest tail that has to follow the last of them,
- the longest chain of parts in which each reads the one before.

Movements and copies over links only add to that. So a candidate whose bound exceeds the known cost of covering its
nodes is in no cheapest plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from pimflow.ir import (
    Concat,
    Decision,
    Graph,
    MovementVerdict,
    Node,
    OnDevice,
    Parallel,
    Pipeline,
    Placement,
    Refusal,
    Slice,
    SplitColumns,
    SplitEdges,
    SplitK,
    SplitRows,
    Value,
)
from pimflow.ir.analysis.regions import node_columns, node_k, node_rows, row_parts
from pimflow.ir.plan import Single, singles
from pimflow.passes.apply_plan import passes_of
from pimflow.passes.decision import device_refusal
from pimflow.passes.k_split import k_refusal
from pimflow.passes.rowwise.base import RowwisePass
from pimflow.runtime.timeline import Job, makespan_us
from pimflow.search.expanded_parts import expanded_steps
from pimflow.search.joined_parts import (
    JoinedItem,
    JoinedTimes,
    busiest_us,
    join_parts,
    joined_item,
    longest_chain_us,
)
from pimflow.search.joined_ways import Changes, Joined, Way
from pimflow.search.layout_parts import LayoutPart, LayoutParts, layout_parts
from pimflow.search.part_prices import FREE, REFUSED, Costs, Part, PartPrices
from pimflow.search.part_steps import Steps, independent_steps, least_makespan_us, with_copies
from pimflow.search.parts import divides_by_columns
from pimflow.search.run_parts import End, Layer, RunParts, Shares, Where, by_stage


class Bounds:
    """Lower bounds on the time of decisions over the nodes of one graph."""

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self._graph = graph
        self._costs = costs
        self._host = costs.target.host
        self._all_devices = (self._host, *costs.units)
        self._row_parts = row_parts(graph)
        self._known: dict[tuple[Decision, ...], Sequence[Steps]] = {}
        self._prices = PartPrices(graph, costs)
        self.runs = RunParts(graph)
        self._joined_items: dict[tuple[Single, str], JoinedItem] = {}
        self._items: dict[Single, JoinedItem] = {}
        """Those of decisions that do not depend on where another node runs."""
        self._ways: dict[Way, Sequence[JoinedItem]] = {}
        self._varied: Joined | None = None
        self._varied_times: JoinedTimes | None = None
        """The times of the decisions that were varied last."""
        self._own: dict[tuple[End, int, str, str], Sequence[Part]] = {}
        self._fused: dict[tuple[End, int, Where, Where, str], Sequence[Part]] = {}

    def lower_bound_us(self, decisions: tuple[Decision, ...]) -> float:
        """A lower bound on the time of the decisions, by arithmetic alone; infinite if they cannot be carried out."""
        return sum(map(least_makespan_us, self._steps_of(decisions)))

    def split_us(self, split: SplitRows) -> float:
        """A lower bound on the time of a split from the parts of its node alone, without laying them out."""
        return max((part.us - part.avoidable_us + part.copies_us for part in self._shares(split)), default=0.0)

    def shares_us(self, node: Node, on_host: int, device: str, choice: str) -> tuple[float, float]:
        """Lower bounds on the host's time for the first rows of a node and on a unit's time for the others; 0 for rows
        that cannot be computed on their own."""
        host_rows, unit_rows = (0, on_host), (on_host, node_rows(self._graph, node))
        return self._rows_us(node, host_rows, self._host, choice), self._rows_us(node, unit_rows, device, choice)

    def _rows_us(self, node: Node, rows: tuple[int, int], device: str, choice: str) -> float:
        """A lower bound on the time of some rows of a node on their own; 0 if they cannot be computed on their own."""
        part = self._rows_part(node, rows, device, choice)
        return part.us - part.avoidable_us

    def _rows_part(self, node: Node, rows: tuple[int, int], device: str, choice: str) -> Part:
        """Some rows of a node on their own; free if they cannot be computed on their own."""
        made = None if rows[0] == rows[1] else self._row_parts[node.name, rows[0], rows[1]]
        if made is None or isinstance(made, Refusal):
            return FREE
        return self._prices.of_rows(node, rows, made, device, choice)

    def least_mj(self, decisions: tuple[Decision, ...]) -> float:
        """A lower bound on the energy of the decisions without static power; the energy of units counts once it is
        priced. If the time follows from the parts (`time_from_parts_us`), so does the energy, and this is it."""
        return sum(self._prices.spent_mj(part) for steps in self._steps_of(decisions) for part in steps.parts)

    def joined_us(self, parallel: Parallel) -> float:
        """A lower bound on the time of joined decisions before they are put together, from the bounds that each had
        when it was first asked for: the busiest device, or the longest chain of their parts."""
        items = []
        where: dict[str, str] = {}
        for decision in parallel.decisions:
            item = self._items.get(decision)
            if item is None:
                where = where or self._devices((parallel,))
                item = self._joined_item(decision, where)
            items.append(item)
        return max(busiest_us(items), longest_chain_us(items))

    def varied_us(self, joined: Joined, changes: Changes) -> float:
        """`joined_us` for a variation of joined decisions, without putting it together."""
        if self._varied is not joined:  # the variations of some decisions are adjacent
            self._varied, self._varied_times = joined, self._joined_times(joined)
        if self._varied_times is None:
            return self.joined_us(joined.with_ways(changes))
        return self._varied_times.least_us([(first, last, self._way_items(way)) for first, last, way in changes])

    def _joined_times(self, joined: Joined) -> JoinedTimes | None:
        """The times of joined decisions; None if a node is fused into one of them outside its unit: the bounds of other
        units then depend on the device of that one."""
        nodes = set(joined.parallel.nodes)
        unit: set[str] = set()
        for item in joined.items:
            root = None if item is None else self._graph.node(item.nodes[0]).placement.fused_into
            if root not in unit:
                if root in nodes:
                    return None
                unit.clear()
            unit.update(() if item is None else item.nodes)
        where = self._devices((joined.parallel,))
        return JoinedTimes([None if item is None else self._joined_item(item, where) for item in joined.items])

    def _way_items(self, way: Way) -> Sequence[JoinedItem]:
        """The items of a way to decide a unit within joined decisions, cached."""
        known = self._ways.get(way)
        if known is None:
            where = self._devices(way.items)
            known = self._ways[way] = [self._joined_item(item, where) for item in way.items]
        return known

    def listed_mj(self, decision: Decision) -> float:
        """Like `least_mj`, but before rows are laid out and joined decisions are put together; 0 if the rows of stages
        cannot be derived."""
        if isinstance(decision, Parallel):
            where = self._devices((decision,))
            items = [self._joined_item(item, where) for item in decision.decisions]
            parts = [part for item in items for part in item.parts]
        elif isinstance(decision, Pipeline):
            end = self.runs.end(decision.run, decision.stage_rows, decision.bottom_first)
            places = None if end is None else end.places(decision, self._host)
            if end is None or places is None:
                return 0.0
            parts = self._run_parts(end, places, decision.choice)
        elif isinstance(decision, SplitRows):
            parts = [*self._shares(decision)]
        else:
            return self.least_mj((decision,))
        return sum(map(self._prices.spent_mj, parts))

    def _shares(self, split: SplitRows) -> Iterator[Part]:
        """The parts of a split node by themselves; none if it is fused into another or a share is empty."""
        node = self._graph.node(split.node)
        rows = node_rows(self._graph, node)
        if 0 < split.gpu_rows < rows and node.placement.fused_into is None:
            yield self._rows_part(node, (0, split.gpu_rows), self._host, split.choice)
            yield self._rows_part(node, (split.gpu_rows, rows), split.device, split.choice)

    def least_busy_us(self, decisions: tuple[Decision, ...]) -> dict[str, float]:
        """A lower bound on how long the decisions keep each device busy; infinite if they cannot be carried out."""
        busy_us: dict[str, float] = {}
        for steps in self._steps_of(decisions):
            for device, part in zip(steps.devices, steps.parts, strict=True):
                busy_us[device] = busy_us.get(device, 0.0) + part.us - part.saved_us
        return busy_us

    def time_from_parts_us(self, decisions: tuple[Decision, ...]) -> float | None:
        """The time of the decisions if it follows from their parts; None if they have to be carried out to find it.

        It follows if bringing rows from part to part is free, so that a timeline consists of the parts alone.
        """
        steps = self._steps_of(decisions)
        follows = all(some.parts and (some.complete or len(some.parts) == 1) for some in steps)
        if not follows or not self._places_are_free:
            return None
        parts = [part for some in steps for part in some.parts]
        if not all(part.complete for part in parts):
            return None
        for part in parts:
            if part.pending is not None:
                self._prices.price(part)
        taken_us = [some.parts[0].us if len(some.parts) == 1 else self._scheduled_us(some) for some in steps]
        return None if None in taken_us else sum(us for us in taken_us if us is not None)

    @cached_property
    def _places_are_free(self) -> bool:
        """Whether the cost model charges nothing for Slices and Concats that are marked free."""
        rows, free = (1, 1, 2, 2), MovementVerdict(True, "")
        values = {name: Value(name, rows, "float32") for name in ("x", "part", "all")}
        placement = Placement(self._host, movement=free)
        nodes = (
            Node(Slice(2, 0, 2), ("x",), ("part",), "slice", placement),
            Node(Concat(2), ("part",), ("all",), "concat", placement),
        )
        graph = Graph("places", ("x",), ("all",), nodes, values, {})
        return not any(self._costs.node_cost(graph, node).time_us for node in nodes)

    def _scheduled_us(self, steps: Steps) -> float | None:
        """The makespan of the parts, scheduled as the jobs of a timeline; None if a kernel waits for a part that is
        written after it, because a timeline then has the parts in another order.

        A part that takes no time is not a job: its successors wait for its predecessors instead. Launches are as in the
        cost model: saved where a kernel is running already, or ahead of the operands where they are queued.
        """
        jobs: list[Job] = []
        last: dict[int, set[int]] = {}
        added = steps.epilogue_reads()
        running = self._running_kernels(steps)
        for at, node, stage in steps.written:
            part, awaited = steps.parts[at], added.get(at, ())
            if not all(map(last.__contains__, (*steps.reads[at], *awaited))):
                return None
            before = {job for source in steps.reads[at] for job in last[source]}
            kernels_us = part.kernels_us or (part.us,)
            launches_us = part.launches_us or (0.0,) * len(kernels_us)
            for kernel, (us, launch_us) in enumerate(zip(kernels_us, launches_us, strict=True), 1):
                is_running = False
                if kernel == len(kernels_us):  # only the last kernel: the Pad before it does not wait
                    before = before.union(*[last[source] for source in awaited])
                    is_running = at in running
                left_us = us - launch_us if is_running else us
                if left_us <= 0:
                    continue
                for source in before:
                    jobs[source].successors.append(len(jobs))
                ahead_us = launch_us if self._costs.queues_launches and not is_running else 0.0
                jobs.append(Job(node, steps.devices[at], left_us, stage, [], len(before), ahead_us))
                before = {len(jobs) - 1}
            last[at] = before
        return makespan_us(jobs)

    def _running_kernels(self, steps: Steps) -> set[int]:
        """The parts that are later stages of a kernel of the host that is running already."""
        if not self._costs.saves_launches:
            return set()
        stages: dict[int, tuple[str, int]] = {}
        first: dict[str, int] = {}
        for at, node, stage in steps.written:
            if stage is None or steps.devices[at] != self._host or node.op.is_movement or steps.parts[at] is FREE:
                continue
            stages[at] = node.name, stage
            first[node.name] = min(stage, first.get(node.name, stage))
        return {at for at, (name, stage) in stages.items() if first[name] < stage}

    def tighten(self, decisions: tuple[Decision, ...]) -> float:
        """Price work of units exactly, the longest first, until the lower bound of the decisions has risen, and return
        it.

        `lower_bound_us` returns the same bound afterwards. If it has not risen, nothing is left to price.
        """
        steps = self._steps_of(decisions)
        before = after = sum(map(least_makespan_us, steps))
        while after <= before:
            pending = [part for some in steps for part in some.parts if part.pending is not None]
            if not pending:
                break
            self._prices.price(max(pending, key=lambda part: part.us))
            after = sum(map(least_makespan_us, steps))
        return after

    def _steps_of(self, decisions: tuple[Decision, ...]) -> Sequence[Steps]:
        """The parts of decisions, cached; the times of the parts are updated in place as they are priced."""
        known = self._known.get(decisions)
        if known is None:
            where = self._devices(decisions)
            known = self._known[decisions] = [self._with_copies(decision, where) for decision in decisions]
        return known

    def _devices(self, decisions: Sequence[Decision]) -> dict[str, str]:
        """The device of every node that the decisions place as a whole."""
        single = [item for decision in decisions for item in singles(decision)]
        return {item.node: item.device for item in single if isinstance(item, OnDevice)}

    def _with_copies(self, decision: Decision, where: Mapping[str, str]) -> Steps:
        """The parts of a decision, and the copies around them."""
        if isinstance(decision, Parallel):
            return join_parts([self._joined_item(item, where) for item in decision.decisions])
        return with_copies(self._steps(decision, where))

    def _steps(self, decision: Single, where: Mapping[str, str]) -> Steps:
        """The parts of a decision; empty for a kind of decision whose parts are not modelled here."""
        if isinstance(decision, OnDevice):
            return self._placed_steps(decision, where)
        if isinstance(decision, Pipeline):
            return self._run_steps(decision)
        if isinstance(decision, SplitRows):
            return self._row_steps(decision)
        if isinstance(decision, SplitColumns):
            return independent_steps(self._column_parts(decision))
        if isinstance(decision, SplitK):
            return self._k_steps(decision)
        if isinstance(decision, SplitEdges):
            return independent_steps([(decision.device, Part(self._dense_us(decision), complete=False))])
        return Steps()

    def _joined_item(self, decision: Single, where: Mapping[str, str]) -> JoinedItem:
        """A decision in a `Parallel`, cached; for a fused node on one device it depends on the device of its root."""
        root = self._graph.node(decision.node).placement.fused_into if isinstance(decision, OnDevice) else None
        key = (decision, "" if root is None else where.get(root, self._host))
        known = self._joined_items.get(key)
        if known is None:
            steps = self._steps(decision, where)
            known = self._joined_items[key] = joined_item(self._graph, decision, steps, self._all_devices)
            if root is None:
                self._items[decision] = known
        return known

    def _dense_us(self, split: SplitEdges) -> float:
        """A lower bound on a unit's time for its part of the edges; 0 for a division that the cost model does not
        offer."""
        offered = self._costs.edge_divisions(self._graph, self._graph.node(split.node), split.device)
        dense = (split.group, split.at_least)
        return next((way.lower_bound_us for way in offered if (way.group, way.at_least) == dense), 0.0)

    def _placed_steps(self, placed: OnDevice, where: Mapping[str, str]) -> Steps:
        """The node as a single part, or the parts of an operator that is written out."""
        written_out = expanded_steps(self._graph, placed, self._host, self._prices)
        if written_out is not None:
            return written_out
        device, part = self._node_part(placed, where)
        return Steps([device], [part], [()], [(0, self._graph.node(placed.node), None)], [0], True)

    def _node_part(self, placed: OnDevice, where: Mapping[str, str]) -> tuple[str, Part]:
        node = self._graph.node(placed.node)
        root = node.placement.fused_into
        if root is not None and not self._prices.has_kernel(node, root, where.get(root, self._host)):
            return placed.device, FREE
        return placed.device, self._prices.of_node(placed)

    def _row_steps(self, decision: SplitRows | Pipeline) -> Steps:
        """The parts of a layout, each with the parts that it reads."""
        layout = self._layout_parts(decision)
        if layout is None:
            return independent_steps([(self._host, REFUSED)])
        devices = [part.device for part in layout.parts]
        parts = [
            self._row_part(part, device, "" if part.root is None else devices[part.root], decision.choice)
            for part, device in zip(layout.parts, devices, strict=True)
        ]
        written = [(at, part.node, part.stage) for at, part in enumerate(layout.parts)]
        roots = [at if part.root is None else part.root for at, part in enumerate(layout.parts)]
        return Steps(devices, parts, [part.reads for part in layout.parts], written, roots, layout.complete)

    def _run_steps(self, pipeline: Pipeline) -> Steps:
        """The parts of a pipeline, from the shared end of its run if possible, otherwise from its layout."""
        end = self.runs.end(pipeline.run, pipeline.stage_rows, pipeline.bottom_first)
        places = (None if end is None else end.places(pipeline, self._host)) or ()
        whole = [by_stage(where, end.stages) for where in places if end and not isinstance(where, Shares)]
        if end is None or not places or len(whole) < len(places):
            return self._row_steps(pipeline)
        grid = end.grid(len(pipeline.run))
        devices = [device for by_stages in whole for device in by_stages]
        parts = self._run_parts(end, places, pipeline.choice)
        return Steps(devices, parts, grid.reads, grid.written, grid.roots, grid.complete)

    def _run_parts(self, end: End, places: Sequence[Where], choice: str) -> list[Part]:
        """The parts of a run, by node, front to back, and by stage."""
        behind = range(len(places) - 1, -1, -1)
        return [part for place in behind for part in self.node_parts(end, place, places, choice)]

    def node_parts(self, end: End, place: int, devices: Sequence[Where], choice: str) -> Sequence[Part]:
        """The parts of the node at a place counted from the end of a run, by stage; free where the node is part of
        another's kernel.

        For a node whose rows are divided within a stage these are its shares, and the nodes fused into it count as
        free.
        """
        device, root = devices[-1 - place], end.roots[place]
        if root is None:
            return self._own_parts(end, place, device, choice)
        where = end.where(root, devices)
        if where is None or isinstance(where, Shares) or isinstance(device, Shares):
            return [FREE] * end.stages
        key = (end, place, device, where, choice)
        known = self._fused.get(key)
        if known is None:
            known = self._fused[key] = self._fused_parts(end, (place, end.place[root]), device, where, choice)
        return known

    def _fused_parts(
        self,
        end: End,
        places: tuple[int, int],
        device: str | tuple[str, ...],
        where: str | tuple[str, ...],
        choice: str,
    ) -> Sequence[Part]:
        """The parts of the first of two nodes, on a device, that is fused into the second one, which is elsewhere."""
        node, root = (end.layers[place].node for place in places)
        same_rows = end.same_rows(*places)
        roots = [self._prices.has_kernel(node, root.name, root_device) for root_device in by_stage(where, end.stages)]
        if not any(roots) and all(same_rows):
            return [FREE] * end.stages
        own = self._own_parts(end, places[0], device, choice)
        return [
            part if own_kernel or not same else FREE
            for part, own_kernel, same in zip(own, roots, same_rows, strict=True)
        ]

    def _own_parts(self, end: End, place: int, device: Where, choice: str) -> Sequence[Part]:
        """The parts of a node as kernels of its own; free in stages that compute no rows of it."""
        if isinstance(device, Shares):
            shared = zip(device.devices, device.rows, strict=True)
            return [self._rows_part(end.layers[place].node, rows, where, choice) for where, rows in shared]
        if not isinstance(device, str):
            return [self._own_parts(end, place, where, choice)[stage] for stage, where in enumerate(device)]
        key = (end, place, device, choice if device != self._host else "")
        known = self._own.get(key)
        if known is None:
            known = self._own[key] = self._parts_by_stage(end.layers[place], device, choice)
        return known

    def _parts_by_stage(self, layer: Layer, device: str, choice: str) -> Sequence[Part]:
        """The parts of a node on one device as kernels of its own."""
        if device_refusal(layer.node, device, self._host) is not None:
            return [REFUSED] * len(layer.rows)
        return [
            FREE if part is None else self._prices.of_rows(layer.node, rows, part, device, choice)
            for rows, part in zip(layer.rows, layer.made, strict=True)
        ]

    def _layout_parts(self, decision: SplitRows | Pipeline) -> LayoutParts | None:
        """The layout of a decision, None if it has none."""
        (cut,) = passes_of(decision, self._host)
        assert isinstance(cut, RowwisePass)
        layout = cut.layout(self._graph)
        return None if isinstance(layout, Refusal) else layout_parts(self._graph, layout.jobs)

    def _row_part(self, part: LayoutPart, device: str, root_device: str, choice: str) -> Part:
        """The cost of a part; `root_device` runs the part that it is fused into, if there is one."""
        node, root = part.node, part.node.placement.fused_into
        if part.fused_outside or (
            part.root is not None and root and not self._prices.has_kernel(node, root, root_device)
        ):
            return FREE
        return self._prices.of_rows(node, (part.start, part.stop), part.part, device, choice)

    def _column_parts(self, split: SplitColumns) -> list[tuple[str, Part]]:
        """The two parts of a node; its followers are left out."""
        node, most = self._graph.node(split.node), node_columns(self._graph, self._graph.node(split.node))
        if not divides_by_columns(self._graph, node) or not 0 < split.gpu_columns < most:
            return [(self._host, REFUSED)]
        counts = ((self._host, split.gpu_columns), (split.device, most - split.gpu_columns))
        return [(device, self._prices.of_columns(node, count, device, split.choice)) for device, count in counts]

    def _k_steps(self, split: SplitK) -> Steps:
        """The two parts of a split sum, and the host's kernel that adds them up."""
        node = self._graph.node(split.node)
        if k_refusal(self._graph, node) is not None or not 0 < split.gpu_k < node_k(self._graph, node):
            return independent_steps([(self._host, REFUSED)])
        parts = [
            self._prices.of_k(node, 0, split.gpu_k, self._host, ""),
            self._prices.of_k(node, split.gpu_k, node_k(self._graph, node), split.device, split.choice),
            self._prices.of_addition(node),
        ]
        return Steps([self._host, split.device, self._host], parts, [(), (), (0, 1)])

    def added_us(self, split: SplitK) -> float:
        """A lower bound on the host's time for adding up both parts of a split sum."""
        added = self._prices.of_addition(self._graph.node(split.node))
        return added.us - added.avoidable_us

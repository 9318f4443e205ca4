"""Runs a compiled graph with spilled activations, event by event, in the arena that the spill plan assigns.

Kernels read and write when they end, and so do stores (read) and loads (write), but their memory is occupied from
before until after. As in `arena`, buffers are poisoned when they are allocated and freed. So if two live buffers
overlap, or a kernel runs again on data that has been overwritten, a value comes out wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pimflow.ir import Array, Graph
from pimflow.runtime.execute.arena import POISON, ArenaInference, Kernels, UnitExecute
from pimflow.runtime.execute.ort import NodeKernels, check_inputs
from pimflow.runtime.memory import MemoryPlan, ValuePlace
from pimflow.runtime.offload.run import Moment
from pimflow.runtime.offload.spill import Spill, Stay
from pimflow.runtime.timeline import regions


def run_spilled(
    graph: Graph,
    memory: MemoryPlan,
    spill: Spill,
    inputs: Mapping[str, Array],
    *,
    kernels: Kernels | None = None,
    unit_execute: UnitExecute | None = None,
) -> dict[str, Array]:
    """The graph's outputs.

    Args:
        graph: the graph that was scheduled.
        memory: its memory plan, for the places of values in their regions.
        spill: the spill plan of the regions.
        inputs: arrays by the names of the graph's inputs.
        kernels, unit_execute: as for `run_in_arena`.

    Raises:
        InputDataError: an input is missing, unknown, or has another shape or element type.
    """
    check_inputs(graph, inputs)
    return _SpilledRun(graph, memory, spill, kernels or NodeKernels(graph), unit_execute).outputs(inputs)


class _SpilledRun:
    """One run. `there` holds the current offset of each buffer in the arena, `away` the bytes of stored buffers."""

    def __init__(
        self, graph: Graph, memory: MemoryPlan, spill: Spill, kernels: Kernels, unit_execute: UnitExecute | None
    ) -> None:
        self.memory, self.spill = memory, spill
        self.steps = regions(graph)
        self.places: dict[str, ValuePlace] = dict(memory.places)
        plan = replace(memory, arena_bytes=spill.arena_bytes, places=self.places)
        self.inference = ArenaInference(graph, plan, kernels, unit_execute)
        self.values: dict[int, list[str]] = {}
        for name, spot in memory.places.items():
            self.values.setdefault(spot.region, []).append(name)
        self.offsets: dict[int, int] = {}
        self.stored: dict[int, Array] = {}

    def outputs(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Executes all events; outputs are read before the last step frees them."""
        stays = {(stay.first, stay.buffer): stay for stay in self.spill.stays}
        given, last = self.spill.trace.input_kernels, len(self.spill.trace.kernels) - 1
        found: dict[str, Array] = {}
        for place, moment in enumerate(self.spill.found.run.log):
            if moment.what == "allocate":
                self._begin(stays[place, moment.which])
            elif moment.what == "run" and moment.which < given:
                self.inference.write_inputs(inputs)
            elif moment.what == "run" and moment.which == last:
                found = self.inference.outputs()
            else:
                self._apply(moment)
        return found

    def _apply(self, moment: Moment) -> None:
        if moment.what in ("run", "again"):
            step = self.spill.step_of(moment.which)
            for node in () if step is None else self.steps[step]:
                self.inference.execute_node(node)
        elif moment.what == "stored" and moment.which in self.offsets:  # otherwise the store is useless and ends late
            self.stored[moment.which] = self._bytes(moment.which).copy()
        elif moment.what == "loaded":
            self._bytes(moment.which)[:] = self.stored[moment.which]
        elif moment.what == "free":
            self._bytes(moment.which)[:] = POISON
            del self.offsets[moment.which]

    def _begin(self, stay: Stay) -> None:
        """Allocates a buffer that contains only its padding."""
        region = self.memory.regions[stay.buffer]
        for name in self.values.get(stay.buffer, ()):
            spot = self.memory.places[name]
            self.places[name] = replace(spot, offset=spot.offset - region.offset + stay.offset)
        self.offsets[stay.buffer] = stay.offset
        self.inference.begin([replace(region, offset=stay.offset)])

    def _bytes(self, buffer: int) -> Array:
        start = self.offsets[buffer]
        return self.inference.memory[start : start + self.memory.regions[buffer].bytes]

"""`CompiledResult`: the results of a compilation, and everything derived from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pimflow.bundle.source import ModelSource
from pimflow.bundle.verification import Check
from pimflow.codegen.newton import PimProgram
from pimflow.codegen.newton.commands import CommandStream
from pimflow.compiled.machine import Machine
from pimflow.compiled.original import inputs_bound
from pimflow.ir import Array, Graph, Plan
from pimflow.options import Options
from pimflow.passes import PlaceFeatures
from pimflow.records import dataclass
from pimflow.report.basis import gpu_basis
from pimflow.report.chrome_trace import chrome_trace, slice_facts
from pimflow.report.node_data import node_data
from pimflow.report.plan_report import PlanReport
from pimflow.report.records import Row
from pimflow.runtime.memory import MemoryPlan, plan_memory
from pimflow.runtime.memory.tiers import HostTable, gpu_memory_text, host_tables
from pimflow.runtime.offload.fitting import Fitted, fit_activations, overflows
from pimflow.runtime.spending import schedule
from pimflow.runtime.timeline import Timeline
from pimflow.search.policy import spill_way
from pimflow.targets import TargetRecord
from pimflow.version import __version__

if TYPE_CHECKING:
    from pimflow.report.network import Network
    from pimflow.report.steady import SteadyReport
    from pimflow.runtime.memory.in_flight import MemoryInFlight
    from pimflow.runtime.offload.schedule import SpilledSchedule
    from pimflow.runtime.offload.spill import Spill
    from pimflow.runtime.steady_state import SteadyState


@dataclass(frozen=True, eq=False, repr=False)
class CompiledResult:
    """The results of a compilation, and everything derived from them.

    Args:
        source: the original model.
        options: the options of the compilation.
        machine: the target and its cost model.
        plan: what runs where.
        graph: the rewritten graph, with a device on every node.
        programs: the units' programs for every node that leaves the host: for PIM channels the command streams, with
            weight layout and mapping.
        report: times, energy and commands per node of the original, and in total.
        notes: what the passes left unchanged, and why: each "pass: node: reason". A folder does not store them.
        command: the command line that requested it, without its output folder; None if there was none.
        network: the graph that a graph network was compiled for; None for any other model.
        output_sha256: identifies the folder that it was read from; None if it was not read.
        checks: comparisons with the original that are stored in that folder.
    """

    source: ModelSource
    options: Options
    machine: Machine
    plan: Plan
    graph: Graph
    programs: Mapping[str, Any]
    report: PlanReport
    notes: tuple[str, ...] = ()
    command: str | None = None
    network: Network | None = None
    output_sha256: str | None = None
    checks: tuple[Check, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: the fields, without what is derived from them on demand."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @property
    def _title(self) -> str:
        return f"{self.source.text} on {self.machine.target.name}, policy {self.plan.policy}"

    @property
    def _speedup(self) -> str:
        return f"{self.report.speedup:.2f}x over the {self.machine.target.host.upper()} alone"

    def records(self) -> list[Row]:
        """The nodes of the original as rows of plain values: where each runs, its times, energy and commands.

        `pandas.DataFrame(compiled.records())` makes a table of them.
        """
        return [row.record() for row in self.report.nodes]

    @property
    def streams(self) -> Mapping[str, tuple[CommandStream, ...]]:
        """One command stream per PIM channel, by node name."""
        return {name: program.streams for name, program in self.programs.items() if isinstance(program, PimProgram)}

    @property
    def gpu_basis(self) -> str:
        """What the GPU's times, and hence the speedups, are based on; "" for a machine without a GPU."""
        return gpu_basis(self.machine.target, measured=self.machine.measured is not None)

    @cached_property
    def timeline(self) -> Timeline:
        """When every node runs; its makespan is the time that the summary reports."""
        return schedule(self.graph, self.machine.costs.serving(self.graph)).timeline

    @cached_property
    def memory(self) -> MemoryPlan:
        """Where every activation is placed, and which Slices, Pads and Concats cost nothing."""
        return plan_memory(self.graph, self.machine.costs.serving(self.graph).workspaces(self.graph))

    @cached_property
    def steady_state(self) -> SteadyState | None:
        """When every node of several inferences in flight runs; None if the plan is not for throughput."""
        if self.plan.interval_us is None:
            return None
        from pimflow.runtime.steady_state import steady_state

        costs = self.machine.costs.serving(self.graph)
        return steady_state(self.graph, self.machine.target, costs, self.plan.rest_us)

    @cached_property
    def memory_in_flight(self) -> MemoryInFlight | None:
        """Where the values of all inferences in flight are placed; None if the plan is not for throughput."""
        steady = self.steady_state
        if steady is None:
            return None
        from pimflow.runtime.memory.in_flight import plan_in_flight

        return plan_in_flight(self.graph, steady, self.memory)

    @property
    def _in_flight(self) -> tuple[SteadyState, MemoryInFlight] | None:
        steady, memory = self.steady_state, self.memory_in_flight
        return None if steady is None or memory is None else (steady, memory)

    @cached_property
    def steady_report(self) -> SteadyReport | None:
        """The report on the steady state; None if the plan is not for throughput."""
        parts = self._in_flight
        if parts is None:
            return None
        from pimflow.report.steady import SteadyReport

        return SteadyReport.of(*parts, self.report)

    @cached_property
    def _bound(self) -> Mapping[str, Array]:
        """The original's inputs that the graph replaces, and those that are fixed."""
        adjacency = None if self.network is None else self.network.adjacency
        return inputs_bound(self.source, adjacency, self.options)

    @property
    def about(self) -> list[tuple[str, str]]:
        """What the model was compiled for, and with which version: (label, text)."""
        machine = TargetRecord.of(self.machine.target)
        digests = f"model {self.source.sha256[:12]}, target {machine.sha256[:12]} (SHA-256)"
        made_by = f"pimflow {__version__}{f': {self.command}' if self.command else ''}"
        graph = [] if self.network is None else [("graph", self.network.text)]
        checked = [("verified" if check.passed else "WRONG", check.told) for check in self.checks]
        return [
            *machine.lines(),
            *graph,
            *self._convolutions,
            *self._tier_lines,
            ("digests", digests),
            ("made by", made_by),
            *checked,
        ]

    @cached_property
    def _spilled(self) -> Fitted | None:
        return fit_activations(self.graph, self.memory, self.machine.costs.serving(self.graph), spill_way(self.options))

    @property
    def spill(self) -> Spill | None:
        """How activations that exceed the GPU's memory are handled; None if all fit, or nothing is planned."""
        return None if self._spilled is None else self._spilled.spill

    @property
    def spilled_schedule(self) -> SpilledSchedule | None:
        """When everything runs with the spill, including stores and loads, and the energy of that."""
        return None if self._spilled is None else self._spilled.schedule

    @property
    def _tier_lines(self) -> list[tuple[str, str]]:
        tiers = self.machine.target.memory
        if tiers is None:
            return []
        from pimflow.report.spill import spill_text, spilled_memory_text

        is_over, prefix = overflows(self.memory, self.machine.costs), f"{PlaceFeatures.name}: everything: "
        refused = [note.removeprefix(prefix) for note in self.notes if note.startswith(prefix) and is_over]
        tables = [table.text for table in self.host_tables] or refused
        taken = gpu_memory_text(tiers.gpu, self.memory, self._in_flight)
        if self.spill is not None and self.spill.fits:
            taken, tables = spilled_memory_text(self.spill, self.memory), []
        return [
            ("GPU memory", taken),
            *([] if self.spill is None else [("activations", spill_text(self.spill))]),
            *(("tables", text) for text in tables),
        ]

    @cached_property
    def host_tables(self) -> tuple[HostTable, ...]:
        """The tables that are stored in the host's memory, and how their rows are loaded from there."""
        return host_tables(self.graph, self.machine.costs.serving(self.graph))

    @property
    def _convolutions(self) -> list[tuple[str, str]]:
        """The number of convolutions per algorithm, unless the library runs them all, and the largest workspace."""
        costs = self.machine.costs.serving(self.graph)
        ways = Counter(costs.algorithms(self.graph).values())
        if not ways:
            return []
        largest = max(costs.workspaces(self.graph).values(), default=0)
        taken = f"; workspace at most {largest / 1e6:,.2f} MB" if largest else ""
        counts = ", ".join(f"{count} by {way}" for way, count in sorted(ways.items()))
        return [("convolutions", f"{counts}{taken}")]

    def document(self, output_dir: str | None = None, *, lazily: bool = False) -> dict[str, Any]:
        """The result as one JSON document, as `pimflow compile --json` prints it.

        `lazily` makes "nodes" an iterator.
        """
        tiers = self.machine.target.memory
        return {
            "pimflow": __version__,
            "command": self.command,
            "model": self.source.text,
            "model_sha256": self.source.sha256,
            "target": self.machine.target.name,
            "machine": TargetRecord.of(self.machine.target).as_json(),
            "policy": self.plan.policy,
            "gpu_basis": self.gpu_basis,
            **({} if self.network is None else {"graph": self.network.as_json()}),
            **self.report.as_json(lazily=lazily),
            **({} if self.steady_report is None else {"steady_state": self.steady_report.as_json()}),
            "search": {
                "candidates": self.plan.candidates,
                "complete": self.plan.complete,
                "seconds": self.plan.search_seconds,
            },
            "memory": {
                "peak_bytes": self.memory.arena_bytes,
                "bytes_without_reuse": self.memory.bytes_without_reuse,
                "weight_bytes": self.memory.weight_bytes,
                **({} if tiers is None else {"gpu_capacity_bytes": tiers.gpu.usable_bytes}),
                **({} if self._spilled is None else {"spill": _spill_json(*self._spilled)}),
                **({"in_host": [table.as_json() for table in self.host_tables]} if self.host_tables else {}),
            },
            "output_dir": output_dir,
        }

    def chrome_trace(self) -> dict[str, Any]:
        """The schedule in the format of Perfetto and chrome://tracing: timeline.json of an output folder.

        For a throughput plan it shows one inference alone, and several in flight next to it. If not all activations
        fit, it shows the schedule with all of them kept, and next to it the one in which they leave and return.
        """
        trace = self.trace_in_pieces()
        return {**trace, "traceEvents": list(trace["traceEvents"])}

    def trace_in_pieces(self) -> dict[str, Any]:
        """Like `chrome_trace`, with an iterator over its entries: those of a long model are larger than the model."""
        costs = self.machine.costs.serving(self.graph)
        return chrome_trace(
            self.timeline,
            self.machine.costs.titles,
            self.source.name,
            schedule(self.graph, costs).events,
            facts=slice_facts(self.graph, self.report, costs),
            memory=self.memory,
            graph=self.graph,
            steady=self.steady_state,
            spilled=self._spilled,
        )

    def node_data(self) -> dict[str, Any]:
        """The time of every node of model.onnx in us, coloured by device, in the format of Model Explorer."""
        return node_data(self.graph, self.timeline, self.machine.costs.titles)


def _spill_json(spill: Spill, schedule: SpilledSchedule) -> dict[str, Any]:
    from pimflow.report.spill import spill_json

    return spill_json(spill, schedule)

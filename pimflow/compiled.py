"""`CompiledModel`: what a compilation made, in memory and as a folder."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnx
import onnxruntime

from pimflow.bundle.files import a_path, read_json, sha256_of, write_json, write_records
from pimflow.bundle.folder import find_output, new_output
from pimflow.bundle.graphs import read_graph, write_graph
from pimflow.bundle.manifest import MANIFEST, VERIFICATION, change_since
from pimflow.bundle.original import copy_model, find_original
from pimflow.bundle.programs import ProgramTable, read_programs
from pimflow.bundle.source import ZOO_PREFIX, ModelSource, model_source, onnx_bytes
from pimflow.bundle.verification import Check, keep_check, kept_checks, output_digest
from pimflow.codegen.newton import PimProgram
from pimflow.codegen.newton.commands import CommandStream
from pimflow.data import Limits, decode, encode, pick, read_file
from pimflow.errors import (
    ArgumentError,
    DataError,
    GraphDataError,
    InputDataError,
    ModelError,
    OptionError,
    OutputError,
    did_you_mean,
    kind_of,
    one_line,
)
from pimflow.frontend import bound_inputs
from pimflow.ir import Array, Graph, Plan
from pimflow.onnxio import save_onnx
from pimflow.onnxio.export import SplitModel
from pimflow.onnxio.npz import read_npz
from pimflow.options import Options, read_argument
from pimflow.passes import PlaceFeatures
from pimflow.report.basis import gpu_basis
from pimflow.report.chrome_trace import chrome_trace, slice_facts
from pimflow.report.network import Network
from pimflow.report.node_data import node_data
from pimflow.report.plan_report import PlanReport, origin_of
from pimflow.report.records import Row, flat, html_table
from pimflow.report.spill import spill_json, spill_text, spilled_memory_text
from pimflow.report.steady import SteadyReport
from pimflow.report.summary import summary_text
from pimflow.runtime.costs import CostModel
from pimflow.runtime.execute.beside import beside
from pimflow.runtime.execute.ort import OrtRunner
from pimflow.runtime.gpu.measured import MeasuredTable, read_table
from pimflow.runtime.memory import MemoryPlan, plan_memory
from pimflow.runtime.memory.in_flight import MemoryInFlight, plan_in_flight
from pimflow.runtime.memory.tiers import HostTable, gpu_bytes, gpu_memory_text, host_tables
from pimflow.runtime.offload.spill import Spill, channel_of, require_drives, spilled
from pimflow.runtime.spending import schedule
from pimflow.runtime.steady_state import SteadyState, steady_state
from pimflow.runtime.timeline import Timeline
from pimflow.search.kept_runs import KeptRuns
from pimflow.search.progress import telling
from pimflow.search.solver import kept_runs, kept_streams
from pimflow.sparse import Graph as Adjacency
from pimflow.targets import Target, TargetRecord, parse_target, to_toml
from pimflow.targets.overrides import with_convolutions
from pimflow.verify.compare import Verification, verify_compiled
from pimflow.verify.running import check_compiled
from pimflow.version import __version__, format_of

FORMAT = "pimflow/6"
ORIGINAL = "original"
PROGRAM = "model.onnx"
SPARSE_PROGRAM = "model.pimir"
GRAPH = "graph.npz"
_WRITTEN = frozenset(
    {PROGRAM, SPARSE_PROGRAM, GRAPH}
    | {"config.json", "memory.json", "plan.json", "streams.json.gz", "target.toml", "timeline.json"}
)
"""What `save` writes beside the original, whose digest is part of config.json."""
_VERIFY_FORMS = {
    "seed": Annotated[int, Limits(least=0)] | None,
    "rtol": Annotated[float, Limits(above=0)] | None,
    "pim": Literal["ort", "values"],
    "operand": Literal["fp16", "bf16", "fp32"] | None,
}
"""What `verify` takes, where Python does not say it."""
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Machine:
    """A target with the cost model that prices graphs for it."""

    target: Target
    measured: MeasuredTable | None = None

    @classmethod
    def of(cls, options: Options) -> Machine:
        """The target of the options, with the measured kernel times that they name.

        Raises:
            InputDataError: those cannot be read.
            OptionError: it has no GPU whose convolutions could be run in other ways.
            TargetError: it has no SSDs for activations to be offloaded to.
        """
        if options.spill == "offload":
            require_drives(options.target)
        measured = None if options.profile is None else MeasuredTable(read_table(options.profile))
        return cls(with_convolutions(options.target, options.convolutions, options.workspace_mib), measured)

    @cached_property
    def costs(self) -> CostModel:
        """The machine with all units in use; `costs.host_only()` is the baseline."""
        return CostModel(self.target, measured=self.measured)


@dataclass(frozen=True, eq=False, repr=False)
class CompiledModel:
    """A compiled model.

    Args:
        source: the original model.
        options: what the compilation was asked for.
        machine: the target and its cost model.
        plan: what runs where.
        graph: the rewritten graph, a device on every node.
        programs: what the units execute for every node that leaves the host: for PIM channels the command streams, with
            weight layout and mapping.
        report: times, energy and commands by node of the original, and in all.
        notes: what the passes left as it was, and why: each "pass: node: reason". A folder does not keep them.
        command: the command line that asked for it, its output folder left out; None if none did.
        network: the graph that a graph network was compiled for; None for any other model.
        output_sha256: what identifies the folder that it was read from; None of one that was not read.
        checks: what that folder keeps of comparisons with the original.
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

    def __repr__(self) -> str:
        return one_line("CompiledModel", f"{self._title}: {self.report.result.time_us:,.1f} us, {self._speedup}")

    @property
    def _title(self) -> str:
        return f"{self.source.text} on {self.machine.target.name}, policy {self.plan.policy}"

    @property
    def _speedup(self) -> str:
        return f"{self.report.speedup:.2f}x over the {self.machine.target.host.upper()} alone"

    def _repr_html_(self) -> str:
        machine = TargetRecord.of(self.machine.target)
        result = self.report.result
        about = [
            *machine.lines(),
            ("time", f"{result.time_us:,.1f} us, {self._speedup}"),
            ("energy", f"{result.energy_mj:,.2f} mJ"),
            ("nodes", f"{len(self.report.nodes)}, of which {len(self.programs)} parts leave the host"),
        ]
        from pimflow.report.page.gantt import Schedule
        from pimflow.report.page.notebook import MOST_EVENTS, notebook_charts

        names = {node.name: origin_of(node) for node in self.graph.nodes}
        schedule = Schedule(self.machine.costs.titles, self.timeline, {}, names, {}, MOST_EVENTS)
        table = html_table([{"": what, "value": text} for what, text in about], self._title)
        return table + notebook_charts(schedule, self.report, self.plan.policy)

    def records(self) -> list[Row]:
        """The nodes of the original as rows of plain values: where each runs, its times, energy and commands.

        `pandas.DataFrame(compiled.records())` is their table.
        """
        return [flat(row.as_json()) for row in self.report.nodes]

    @property
    def streams(self) -> Mapping[str, tuple[CommandStream, ...]]:
        """One command stream per PIM channel, by node name."""
        return {name: program.streams for name, program in self.programs.items() if isinstance(program, PimProgram)}

    @property
    def gpu_basis(self) -> str:
        """What the GPU's times stand on, over which the speedups are; "" for a machine without GPU."""
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
        """When every node of several inferences in flight runs; None of a plan that is not for throughput."""
        if self.plan.interval_us is None:
            return None
        costs = self.machine.costs.serving(self.graph)
        return steady_state(self.graph, self.machine.target, costs, self.plan.rest_us)

    @cached_property
    def memory_in_flight(self) -> MemoryInFlight | None:
        """Where the values of all inferences in flight are placed; None of a plan that is not for throughput."""
        steady = self.steady_state
        return None if steady is None else plan_in_flight(self.graph, steady, self.memory)

    @property
    def _in_flight(self) -> tuple[SteadyState, MemoryInFlight] | None:
        steady, memory = self.steady_state, self.memory_in_flight
        return None if steady is None or memory is None else (steady, memory)

    @cached_property
    def steady_report(self) -> SteadyReport | None:
        """What the steady state comes to; None of a plan that is not for throughput."""
        parts = self._in_flight
        return None if parts is None else SteadyReport.of(*parts, self.report)

    @cached_property
    def _runner(self) -> OrtRunner:
        return OrtRunner(self.graph)

    @cached_property
    def _bound(self) -> Mapping[str, Array]:
        """The original's inputs that the graph takes the place of."""
        if self.network is None:
            return {}
        return bound_inputs(self.source.content, self.network.adjacency)

    def _own_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs without those of the graph, which have to be the graph's."""
        given = dict(inputs)
        if self.network is None:
            return given
        for name in given.keys() - set(self.graph.inputs) & self._bound.keys():
            if not np.array_equal(given[name], self._bound[name]):
                raise InputDataError(
                    f"the input {name!r} is not that of the graph that the model was compiled for",
                    "leave it out, or compile the model for this graph",
                )
            del given[name]
        return given

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The rewritten model's outputs by name, computed by ONNX Runtime: arrays, or lists for sequences.

        Sparse ops are computed by numpy and scipy.

        Args:
            inputs: by the model's input names: arrays, lists of arrays for sequences, None for an absent optional.
                Those of the graph that the model was compiled for may be left out.

        Raises:
            ArgumentError: the inputs are not arrays by name.
            InputDataError: an input is missing, unknown, or of another shape or element type, or of another graph.
        """
        if not isinstance(inputs, Mapping):
            names = ", ".join(f"{name!r}: array" for name in self.graph.inputs[:3])
            raise ArgumentError(f"'inputs' is {kind_of(inputs)}", f"give arrays by input name, as in {{{names}}}")
        return self._runner.run(self._own_inputs(inputs))

    def verify(
        self,
        *,
        inputs: str | Path | Mapping[str, Array] | None = None,
        seed: int | None = None,
        rtol: float | None = None,
        pim: str = "ort",
        operand: str | None = None,
        arena: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> Verification:
        """Runs the original and the compiled model on the same inputs and compares all outputs.

        Of a plan for throughput several inferences run in flight as well, on other random inputs, in their arena.

        Args:
            inputs: arrays by input name, or an npz file of them; otherwise seeded random ones.
            seed: of the random inputs; by default the compilation's.
            rtol: largest error allowed, over the largest magnitude of the output; by default 1e-4, and where the model
                or the machine rounds to fewer digits twice what that does to the model's own outputs, which is measured
                (never more than half of what other inputs change).
            pim: how nodes on PIM are executed: "ort" (by ONNX Runtime) or "values" (from their programs, by value).
            operand: "fp16", "bf16" or "fp32" operands of "values"; by default the target's.
            arena: run inside the planned memory arena.
            progress: receives a line of text now and then.

        Raises:
            ArgumentError: the inputs are neither arrays by name nor a file.
            InputDataError: the inputs do not fit the model.
            OptionError: another value is of the wrong type, or out of range.
        """
        if inputs is not None and not isinstance(inputs, (str, os.PathLike, Mapping)):
            raise ArgumentError(f"'inputs' is {kind_of(inputs)}", "give arrays by input name, or an npz file")
        given = {"seed": seed, "rtol": rtol, "pim": pim, "operand": operand}
        for name, form in _VERIFY_FORMS.items():
            read_argument(name, form, given[name])
        if inputs is not None:
            inputs = self._own_inputs(inputs if isinstance(inputs, Mapping) else read_npz(inputs))
        return verify_compiled(
            self.source.content,
            self.graph,
            bound=self._bound,
            inputs=inputs,
            seed=self.options.seed if seed is None else seed,
            rtol=rtol,
            programs=self.programs if pim == "values" else None,
            units=self.machine.costs.units,
            operand=operand,
            memory=self.memory if arena else None,
            in_flight=self._in_flight,
            host=self.machine.costs.serving(self.graph).host,
            progress=telling(progress),
        )

    def keep(self, folder: str | Path, found: Verification) -> CompiledModel:
        """Keeps in the folder that the model was read from what `verify` found; `load` then has it among `checks`.

        Returns:
            The model with that.

        Raises:
            OutputError: the model was not read from a folder, or that holds another output meanwhile, or cannot be
                written.
        """
        folder = a_path(folder, "folder")
        if self.output_sha256 is None:
            raise OutputError("the model was not read from a folder", "save it, and verify what `load` gives")
        versions = {"pimflow": __version__, "onnxruntime": onnxruntime.__version__}
        check = Check(vars(found.how), found.passed, found.clause, versions, found.as_json())
        keep_check(folder, self.output_sha256, check)
        return replace(self, checks=(*(other for other in self.checks if other.how != check.how), check))

    def trace(self, node: str, channel: int) -> Iterator[str]:
        """The commands of one PIM channel for one node as lines of text.

        Raises:
            OptionError: no such node runs on PIM, or there is no such channel.
        """
        node, channel = read_argument("node", str, node), read_argument("channel", int, channel)
        placed = node if node in self.programs else self._part_of(node)
        unit, program = self.machine.costs.units[self.graph.node(placed).device or ""], self.programs[placed]
        if not 0 <= channel < unit.parts(program):
            raise OptionError(
                f"channel {channel} does not exist", f"the target has channels 0 to {unit.parts(program) - 1}"
            )
        return unit.trace(program, channel)

    def _part_of(self, node: str) -> str:
        """The one node with a program that was made from the original node of this name."""
        made = [name for name in self.programs if self.graph.node(name).placement.origin == node]
        if len(made) == 1:
            return made[0]
        if made:
            raise OptionError(f"no node {node!r} runs on PIM", f"parts of it on PIM are {', '.join(made)}")
        if node in {row.name for row in self.report.nodes}:
            raise OptionError(f"node {node!r} does not run on PIM", self._nodes_off_the_host())
        hint = did_you_mean(node, self.programs, 3)
        raise OptionError(f"no node {node!r} runs on PIM", hint or self._nodes_off_the_host())

    def _nodes_off_the_host(self) -> str:
        """A hint: the first of them."""
        names = list(self.programs)
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return f"those that do are {', '.join(names[:_NAMES_SHOWN])}{more}" if names else "none does"

    def summary(self, verbose: bool = False, by: str | None = None) -> str:
        """A human-readable table of where every node runs and what it costs, and the totals.

        Args:
            verbose: print more.
            by: "energy" or "time": what that is spent on, by part, by kind of op and by node, in place of the table.

        Raises:
            OptionError: `by` is neither.
        """
        by = read_argument("by", str | None, by)
        parts = (self.plan, self.report, self.memory, self.notes)
        return summary_text(
            self._title,
            self.machine.target.devices,
            *parts,
            about=self.about,
            basis=self.gpu_basis,
            verbose=verbose,
            by=by,
            steady=self.steady_report,
            spilled_us=None if self.spill is None else self.spill.found.run.time_us,
        )

    @property
    def about(self) -> list[tuple[str, str]]:
        """What it was compiled for, and by what: (what, text)."""
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
    def spill(self) -> Spill | None:
        """What becomes of activations that the GPU's memory does not hold; None where it does or none is planned."""
        tiers = self.machine.target.memory
        if tiers is None or gpu_bytes(self.memory) <= tiers.gpu.usable_bytes or self.host_tables or self.memory.outside:
            return None
        if self.options.spill == "never" or self._in_flight is not None:
            return None
        room = tiers.gpu.usable_bytes - self.memory.weight_bytes
        channel = channel_of(self.machine.target)
        return spilled(self.graph, self.memory, self.timeline, room, channel, self.options.spill)

    @property
    def _tier_lines(self) -> list[tuple[str, str]]:
        tiers = self.machine.target.memory
        if tiers is None:
            return []
        fits, said = gpu_bytes(self.memory) <= tiers.gpu.usable_bytes, f"{PlaceFeatures.name}: everything: "
        refused = [note.removeprefix(said) for note in self.notes if note.startswith(said) and not fits]
        told = [table.text for table in self.host_tables] or refused
        taken = gpu_memory_text(tiers.gpu, self.memory, self._in_flight)
        if self.spill is not None and self.spill.fits:
            taken, told = spilled_memory_text(self.spill, self.memory), []
        return [
            ("GPU memory", taken),
            *([] if self.spill is None else [("activations", spill_text(self.spill))]),
            *(("tables", text) for text in told),
        ]

    @cached_property
    def host_tables(self) -> tuple[HostTable, ...]:
        """Tables that lie in the host's memory, and how rows of them come from there."""
        return host_tables(self.graph, self.machine.costs.serving(self.graph))

    @property
    def _convolutions(self) -> list[tuple[str, str]]:
        """How many convolutions the host runs in which way, where not all by its library, and the largest workspace."""
        costs = self.machine.costs.serving(self.graph)
        ways = Counter(costs.algorithms(self.graph).values())
        if not ways:
            return []
        largest = max(costs.workspaces(self.graph).values(), default=0)
        taken = f"; workspace at most {largest / 1e6:,.2f} MB" if largest else ""
        counts = ", ".join(f"{count} by {way}" for way, count in sorted(ways.items()))
        return [("convolutions", f"{counts}{taken}")]

    def document(self, output_dir: str | None = None) -> dict[str, Any]:
        """The result as one JSON document, as `pimflow compile --json` prints it."""
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
            **self.report.as_json(),
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
                **({} if self.spill is None else {"spill": spill_json(self.spill)}),
                **({"in_host": [table.as_json() for table in self.host_tables]} if self.host_tables else {}),
            },
            "output_dir": output_dir,
        }

    def save(self, folder: str | Path) -> Path:
        """Writes the compiled model as a folder, whole or not at all (see docs/file-formats.md).

        Raises:
            OutputError: the folder cannot be written, or holds something that is not an unchanged output of ours.
            ModelError: the rewritten model does not run.
        """
        folder = a_path(folder, "folder")
        digests: dict[str, str] = {}
        with new_output(folder, digests) as scratch:
            self._save_program(scratch)
            with beside(partial(self._check, scratch / PROGRAM, digests), self.options.jobs):
                self._save_records(scratch, digests)
        return folder

    def _save_records(self, folder: Path, digests: dict[str, str]) -> None:
        """All files but the program; the original's digest, if it is a file, is among `digests` then."""
        original = self._save_original(folder)
        if self.source.path is not None:
            digests[original] = self.source.sha256
        write_records(folder / "plan.json", self._saved_plan(), depth=3)
        write_records(folder / "memory.json", {"format": format_of("memory"), **self.memory.as_json()}, depth=2)
        write_json(
            folder / "timeline.json",
            self.chrome_trace(),
            indent=None,
        )
        self._write_streams(folder / "streams.json.gz")
        (folder / "target.toml").write_text(to_toml(self.machine.target), encoding="utf-8")
        write_json(folder / "config.json", self._config(original))

    def _save_program(self, folder: Path) -> None:
        """The rewritten graph as ONNX. With sparse ops, which ONNX has as patterns alone, as text too, for `load`; and
        as ONNX only where a pattern fits."""
        if self.network is None:
            save_onnx(self.graph, folder / PROGRAM)
        else:
            write_graph(self.graph, folder / SPARSE_PROGRAM)
            self.network.adjacency.save(folder / GRAPH)
            with suppress(ModelError):
                save_onnx(self.graph, folder / PROGRAM)

    def _check(self, program: Path, digests: dict[str, str]) -> None:
        """Runs what was written once; if no earlier run did, and the options ask for it. Its weights are made of the
        original's. Its digest is among `digests` then."""
        if not self.options.check or not program.exists():
            return
        digests[PROGRAM] = sha256_of(program)
        runs = kept_runs(self.options) if self.network is None else KeptRuns(None)
        model = (self.source.sha256, digests[PROGRAM], self.options.seed)
        if not runs.has(*model) and check_compiled(program, self.graph, self.options.seed):
            runs.keep(*model)

    def chrome_trace(self) -> dict[str, Any]:
        """The schedule as Perfetto and chrome://tracing open it: timeline.json of an output folder.

        Of a plan for throughput it is that of one inference alone, and beside it that of several in flight.
        """
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
        )

    def node_data(self) -> dict[str, Any]:
        """What every node of model.onnx takes, in us and coloured by device, as Model Explorer opens it."""
        return node_data(self.graph, self.timeline, self.machine.costs.titles)

    def _write_streams(self, path: Path) -> None:
        """What units execute; taken from an earlier run that wrote the same."""
        units = self.machine.costs.units
        table = ProgramTable(self.programs, _devices(self.graph, units), units)
        kept = kept_streams(self.options, table.made_of and f"{FORMAT} {table.made_of}")
        packed = kept.packed
        if packed is None:
            packed = table.packed(FORMAT)
            kept.keep(packed)
        path.write_bytes(packed)

    def _saved_plan(self) -> dict[str, Any]:
        """The document and the plan, without what differs from run to run: the same input gives the same bytes."""
        document = self.document()
        del document["search"]["seconds"], document["output_dir"]
        plan = encode(replace(self.plan, search_seconds=0.0), tagged=True)
        return {"format": format_of("plan"), **document, "plan": plan}

    def _save_original(self, folder: Path) -> str:
        if self.source.zoo is not None:
            return self.source.text
        content = self.source.content
        if isinstance(content, str):
            return copy_model(content, folder / ORIGINAL).relative_to(folder).as_posix()
        copy = folder / ORIGINAL / "model.onnx"
        copy.parent.mkdir()
        assert not isinstance(content, SplitModel)  # of the zoo
        copy.write_bytes(onnx_bytes(content))
        return copy.relative_to(folder).as_posix()

    def _config(self, original: str) -> dict[str, Any]:
        header = _Header(
            format=FORMAT,
            versions={
                "pimflow": __version__,
                "python": platform.python_version(),
                "onnx": onnx.__version__,
                "onnxruntime": onnxruntime.__version__,
                "numpy": np.__version__,
            },
            model=self.source.text,
            name=self.source.name,
            original=original,
            original_sha256=self.source.sha256,
            command=self.command,
            machine=TargetRecord.of(self.machine.target),
            graph_is_estimate=None if self.network is None else self.network.is_estimate,
        )
        return {**encode(header), **encode(replace(self.options, policy=self.plan.policy))}


@dataclass(frozen=True)
class _Header:
    """What config.json says beside the options."""

    format: str
    versions: Mapping[str, str]
    model: str
    name: str
    original: str
    original_sha256: str
    command: str | None
    machine: TargetRecord
    graph_is_estimate: bool | None = None
    """Of a graph network: whether its graph is a random one; None for other models."""


def load(folder: str | Path) -> CompiledModel:
    """Reads an output folder of `CompiledModel.save`.

    Raises:
        ModelError: it is not one, or files in it are missing, changed or damaged.
        OutputError: a killed run had moved it aside, and it cannot be put back.
        ArgumentError: it is no path.
    """
    folder = a_path(folder, "folder")
    if not find_output(folder):
        raise ModelError(f"{folder} is not an output folder of pimflow", "make one with `pimflow compile MODEL -o DIR`")
    with _part(folder, MANIFEST):
        digest = output_digest(folder)
    _check_unchanged(folder)
    header, options = _read_config(folder)
    original = _original_of(folder, header)
    machine = Machine.of(options)
    network = None
    if header.graph_is_estimate is not None:
        with _part(folder, GRAPH) as path:
            network = Network(Adjacency.load(path), header.graph_is_estimate)
    graph = read_graph(folder / (PROGRAM if network is None else SPARSE_PROGRAM))
    with _part(folder, "plan.json") as path:
        document = read_json(path)
        plan = decode(Plan, pick(document, "plan")[0], tagged=True, path="plan")
        report = PlanReport.from_json(document, options.target.devices)
    with _part(folder, VERIFICATION):
        checks = kept_checks(folder, digest)
    return CompiledModel(
        source=original,
        options=options,
        machine=machine,
        plan=plan,
        graph=graph,
        programs=_read_streams(folder, graph, machine),
        report=report,
        command=header.command,
        network=network,
        output_sha256=digest,
        checks=checks,
    )


def _check_unchanged(folder: Path) -> None:
    """Holds what is in the files against the digests in the manifest. What else is in the folder does not matter."""
    try:
        name = change_since(folder, _WRITTEN)
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror}", "check its permissions") from None
    if name is not None:
        raise ModelError(
            f"{folder} is damaged: {name} is missing, was changed or added since", "compile the model again"
        )


def _original_of(folder: Path, header: _Header) -> ModelSource:
    if header.original.startswith(ZOO_PREFIX):
        return replace(model_source(header.original), name=header.name)
    source = ModelSource(header.name, path=find_original(folder, header.original))
    with _part(folder, header.original):
        if source.sha256 != header.original_sha256:
            raise DataError("it is not the model that was compiled")
    return source


@contextmanager
def _part(folder: Path, name: str) -> Iterator[Path]:
    """A file of an output folder, for as long as it is read: whatever damage to it raises becomes one line."""
    try:
        yield folder / name
    except OSError as error:
        raise ModelError(f"{folder} is damaged: {name}: {error.strerror}", "compile the model again") from None
    except (ValueError, DataError, GraphDataError) as error:
        raise ModelError(f"{folder} is damaged: {name}: {error}", "compile the model again") from None


def _read_config(folder: Path) -> tuple[_Header, Options]:
    with _part(folder, "config.json") as path:
        config = decode(Mapping[str, Any], read_json(path))
        form, versions = pick(config, "format", "versions")
        if form != FORMAT:
            (version,) = pick(versions, "pimflow")
            raise ModelError(f"{folder} was written by pimflow {version}", "compile the model again")
        names = {field.name for field in fields(_Header)}
        header = decode(_Header, {key: value for key, value in config.items() if key in names})
        options = decode(Options, {key: value for key, value in config.items() if key not in names})
    with _part(folder, "target.toml") as path:
        target = parse_target(read_file(path).decode("utf-8"), str(path))
    return header, replace(options, target=header.machine.restored(target))


def _read_streams(folder: Path, graph: Graph, machine: Machine) -> dict[str, Any]:
    units = machine.costs.units
    with _part(folder, "streams.json.gz") as path:
        return read_programs(path, _devices(graph, units), units)


def _devices(graph: Graph, units: Container[str]) -> dict[str, str]:
    """The devices of the nodes that run on one of some units, by node."""
    return {node.name: node.device for node in graph.nodes if node.device is not None and node.device in units}

"""`CompiledModel`: a compiled model, to run, verify, inspect and save."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from pimflow.bundle.files import path_argument
from pimflow.bundle.verification import Check, store_check
from pimflow.compiled.result import CompiledResult
from pimflow.data import Limits, read_argument
from pimflow.errors import (
    ArgumentError,
    InputDataError,
    OptionError,
    OutputError,
    did_you_mean,
    kind_of,
    one_line,
)
from pimflow.ir import Array
from pimflow.onnxio.runtime import runtime_version
from pimflow.records import dataclass
from pimflow.report.measures import origin_of
from pimflow.report.records import html_table
from pimflow.report.summary import summary_text
from pimflow.runtime.execute.ort import OrtRunner, read_inputs
from pimflow.search.progress import receiver_of
from pimflow.targets import TargetRecord
from pimflow.version import __version__

if TYPE_CHECKING:
    from pimflow.verify.verification import Verification

_VERIFY_FORMS = {
    "seed": Annotated[int, Limits(least=0)] | None,
    "rtol": Annotated[float, Limits(above=0)] | None,
    "pim": Literal["ort", "values"],
    "operand": Literal["fp16", "bf16", "fp32"] | None,
    "arena": bool,
}
"""The valid arguments of `verify`, where its signature does not say it."""
_NAMES_SHOWN = 5


@dataclass(frozen=True, eq=False, repr=False)
class CompiledModel(CompiledResult):
    """A compiled model, to run, verify, inspect and save."""

    def __repr__(self) -> str:
        return one_line("CompiledModel", f"{self._title}: {self.report.result.time_us:,.1f} us, {self._speedup}")

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
        from pimflow.report.page.notebook import MAX_EVENTS, notebook_charts

        names = {node.name: origin_of(node) for node in self.graph.nodes}
        schedule = Schedule(self.machine.costs.titles, self.timeline, {}, names, {}, MAX_EVENTS)
        table = html_table([{"": what, "value": text} for what, text in about], self._title)
        return table + notebook_charts(schedule, self.report, self.plan.policy)

    @cached_property
    def _runner(self) -> OrtRunner:
        return OrtRunner(self.graph)

    def _own_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs without those that hold the graph, which must be equal to it."""
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
        """Runs the rewritten model with ONNX Runtime and returns its outputs by name: arrays, or lists for sequences.

        Sparse ops are computed by numpy and scipy.

        Args:
            inputs: by the model's input names: arrays, lists of arrays for sequences, None for an absent optional.
                The inputs that hold the graph it was compiled for may be left out.

        Raises:
            ArgumentError: the inputs are not arrays by name.
            InputDataError: an input is missing or unknown, has the wrong shape or element type, or is of another graph.
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

        For a throughput plan, several inferences also run in flight, on different random inputs, in their arena.

        Args:
            inputs: arrays by input name as for `run`, or an npz file of them, where `NAME[0]`, `NAME[1]`, .. are the
                elements of a sequence; otherwise seeded random ones.
            seed: of the random inputs; by default the compilation's.
            rtol: largest error allowed, relative to the largest magnitude of the output. By default 1e-4 or, where the
                model or the machine rounds to fewer digits, twice the measured effect of that on the model's own
                outputs (never more than half of what other inputs change).
            pim: how to execute nodes on PIM: "ort" (with ONNX Runtime) or "values" (by value, from their programs).
            operand: operand type for "values": "fp16", "bf16" or "fp32"; by default the target's.
            arena: run inside the planned memory arena, including planned moves out of it and back.
            progress: called with a line of text from time to time.

        Raises:
            ArgumentError: the inputs are neither arrays by name nor a file.
            InputDataError: the inputs do not fit the model.
            ModelError: the original is gone, or was changed since it was compiled.
            OptionError: another value is of the wrong type, or out of range.
        """
        from pimflow.verify.compare import Execution, verify_compiled

        if inputs is not None and not isinstance(inputs, (str, os.PathLike, Mapping)):
            raise ArgumentError(f"'inputs' is {kind_of(inputs)}", "give arrays by input name, or an npz file")
        given = {"seed": seed, "rtol": rtol, "pim": pim, "operand": operand, "arena": arena}
        seed, rtol, pim, operand, arena = (
            read_argument(name, form, given[name]) for name, form in _VERIFY_FORMS.items()
        )
        if inputs is not None:
            inputs = self._own_inputs(inputs if isinstance(inputs, Mapping) else read_inputs(self.graph, inputs))
        self.source.check_unchanged()
        execution = Execution(
            units=self.machine.costs.units,
            programs=self.programs if pim == "values" else None,
            operand=operand,
            host=self.machine.costs.serving(self.graph).host,
            memory=self.memory if arena else None,
            spill=self.spill,
        )
        return verify_compiled(
            *(self.source.content, self.graph, execution),
            bound=self._bound,
            inputs=inputs,
            seed=self.options.seed if seed is None else seed,
            rtol=rtol,
            in_flight=self._in_flight,
            progress=receiver_of(progress),
        )

    def keep(self, folder: str | Path, found: Verification) -> CompiledModel:
        """Saves a result of `verify` in the folder that the model was read from; `load` then has it in `checks`.

        Returns:
            The model with this result.

        Raises:
            ArgumentError: `found` is not a result of `verify`.
            OutputError: the model was not read from a folder, or the folder holds another output by now or cannot be
                written.
        """
        from pimflow.verify.verification import Verification

        folder = path_argument(folder, "folder")
        if not isinstance(found, Verification):
            raise ArgumentError(f"'found' is {kind_of(found)}", "give what `verify` returns")
        if self.output_sha256 is None:
            raise OutputError("the model was not read from a folder", "save it, and verify what `load` gives")
        versions = {"pimflow": __version__, "onnxruntime": runtime_version()}
        check = Check(vars(found.how), found.passed, found.clause, versions, found.as_json())
        store_check(folder, self.output_sha256, check)
        return replace(self, checks=(*(other for other in self.checks if other.how != check.how), check))

    def save(self, folder: str | Path, *, progress: Callable[[str], None] | None = None) -> Path:
        """Writes the compiled model to a folder, whole or not at all (see docs/file-formats.md).

        Args:
            folder: the output folder.
            progress: called with a line of text for every file.

        Raises:
            OutputError: the folder cannot be written, or holds something other than an unchanged output of pimflow.
            ModelError: the rewritten model does not run; or the original is gone, or was changed since it was compiled.
        """
        from pimflow.compiled.writing import save

        return save(self, folder, receiver_of(progress))

    def trace(self, node: str, channel: int) -> Iterator[str]:
        """The commands of one PIM channel for one node, as lines of text.

        Raises:
            OptionError: the node does not run on PIM, or there is no such channel.
        """
        node, channel = read_argument("node", str, node), read_argument("channel", int, channel)
        placed = node if node in self.programs else self._part_of(node)
        device = self.graph.node(placed).device or ""
        unit, program, count = self.machine.costs.units[device], self.programs[placed], self._channels(placed)
        if not count:
            raise OptionError(f"node {node!r} runs on {device.upper()}, not on PIM", self._nodes_with_commands())
        if not 0 <= channel < count:
            raise OptionError(f"channel {channel} does not exist", f"the target has channels 0 to {count - 1}")
        return unit.trace(program, channel)

    def _channels(self, node: str) -> int:
        """The number of traces of a node that has a program; 0 if its unit executes no commands, like a CPU."""
        return self.machine.costs.units[self.graph.node(node).device or ""].parts(self.programs[node])

    def _part_of(self, node: str) -> str:
        """The only node with a program that stems from the original node of this name."""
        made = [name for name in self.programs if self.graph.node(name).placement.origin == node]
        if len(made) == 1:
            return made[0]
        if made:
            raise OptionError(f"no node {node!r} runs on PIM", f"parts of it on PIM are {', '.join(made)}")
        if node in {row.name for row in self.report.nodes}:
            raise OptionError(f"node {node!r} does not run on PIM", self._nodes_with_commands())
        hint = did_you_mean(node, self.programs, 3)
        raise OptionError(f"no node {node!r} runs on PIM", hint or self._nodes_with_commands())

    def _nodes_with_commands(self) -> str:
        """A hint with the first nodes that have commands."""
        names = [name for name in self.programs if self._channels(name)]
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return f"those that do are {', '.join(names[:_NAMES_SHOWN])}{more}" if names else "none does"

    def summary(self, verbose: bool = False, by: str | None = None) -> str:
        """A table of where every node runs and what it costs, followed by the totals.

        Args:
            verbose: show all nodes, with reasons.
            by: "energy" or "time": show a breakdown of it by part, kind of op and node instead of the table.

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
            spilled=self.spilled_schedule,
        )

"""Timing of traces: the report of `pimflow simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pimflow.codegen.answers import TraceReport
from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.report.records import Records, Row, flat
from pimflow.report.tables import number, render_table, significant
from pimflow.runtime.backends import units_of
from pimflow.targets import Target, TargetRecord


@dataclass(frozen=True, repr=False)
class TracesReport(Records):
    """The cost of traces on the first device other than the host, one row per file.

    Args:
        machine: the machine.
        traces: the files with their reports.
    """

    machine: TargetRecord
    traces: tuple[tuple[str, TraceReport], ...]

    @property
    def title(self) -> str:
        """The number of traces, and the machine."""
        return f"{counted(len(self.traces), 'trace')} on {self.machine.name}"

    def records(self) -> list[Row]:
        """A row per file."""
        return [flat({"file": file, **trace.as_json()}) for file, trace in self.traces]

    def as_json(self) -> dict[str, Any]:
        """The machine, and one object per file."""
        traces = [{"file": file, **trace.as_json()} for file, trace in self.traces]
        return {"target": self.machine.name, "machine": self.machine.as_json(), "traces": traces}

    def text(self) -> str:
        """A table with a line per file, and the machine."""
        counters = tuple(dict.fromkeys(name for _, trace in self.traces for name in trace.counters))
        violations = tuple(dict.fromkeys(name for _, trace in self.traces for name in trace.violations))
        rows = [
            (
                file,
                number(trace.cycles, 0),
                number(trace.time_us, 2),
                *(number(trace.counters.get(name), 0) for name in counters),
                *(number(trace.violations.get(name), 0) for name in violations),
                significant(trace.energy_mj),
            )
            for file, trace in self.traces
        ]
        checks = (name.replace("_", " ") for name in violations)
        header = ("file", "cycles", "time (us)", *counters, *checks, "energy (mJ)")
        about = "\n".join(f"{what:<9} {text}" for what, text in self.machine.lines())
        return f"{render_table(header, rows, right=range(1, len(header)))}\n\n{about}"


def report_traces(
    files: Sequence[str], target: Target, *, reopens_rows: bool = False, operand: str = ""
) -> TracesReport:
    """Executes traces, plain or gzip, of any length.

    Args:
        files: one trace each.
        target: the machine.
        reopens_rows, operand: as in `Backend.replay`.

    Raises:
        TraceError: a file cannot be read, or a line is malformed; names file, line and column.
        CommandOrderError: the machine would refuse a command; names file, line and the command's index.
        OptionError: the programs of the target's first device other than the host have no text form, or no such
            operands.
    """
    unit = next(iter(units_of(target).values()))
    played = ((file, unit.replay(file, reopens_rows=reopens_rows, operand=operand)) for file in files)
    return TracesReport(TargetRecord.of(target), tuple(played))

"""Runs passes in order: verifies between them, prints, times, checks values, and names the pass at fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pimflow.errors import GraphError, OptionError, PassError, PimflowError, choose_one
from pimflow.ir import Graph
from pimflow.ir.text import print_graph
from pimflow.ir.verify import verify_graph
from pimflow.passes.base import Pass, PassResult

Check = Callable[[Graph, Graph], "str | None"]
"""Compares the values of the graph before and after a pass; returns how they differ, or None."""

Show = Callable[[str], None]

_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a faulty pass raises. A PimflowError is the user's and goes through as it is."""


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: how long it took, whether it changed the graph, and what it says about it."""

    name: str
    seconds: float
    changed: bool
    nodes: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ManagerResult:
    """The graph after all passes, and one record for each that ran."""

    graph: Graph
    records: tuple[PassRecord, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes, each "pass: note"."""
        return tuple(f"{record.name}: {note}" for record in self.records for note in record.notes)

    def times_table(self) -> str:
        """Pass times for people, one line a pass."""
        rows = [f"{r.seconds * 1e3:9.2f} ms  {r.nodes:6d} nodes  {r.name}" for r in self.records]
        total = sum(record.seconds for record in self.records)
        return "\n".join([*rows, f"{total * 1e3:9.2f} ms  in all"])


@dataclass(frozen=True)
class PassManager:
    """Runs passes in order.

    Args:
        passes: the passes; a name may occur twice.
        disabled: names of passes to leave out.
        print_before: names of passes before which the graph is shown.
        print_after: names of passes after which the graph is shown.
        print_after_all: show the graph after every pass.
        show: receives the text; needed if anything is to be shown.
        verify: verify the structure of the graph after every pass.
        check: compares values before and after every pass that changed the graph.
        known: further names that `disabled` and `print_*` may mention: passes of other managers of the same program.

    Raises (when made):
        OptionError: a name in `disabled`, `print_before` or `print_after` is not a pass.
    """

    passes: tuple[Pass, ...]
    disabled: tuple[str, ...] = ()
    print_before: tuple[str, ...] = ()
    print_after: tuple[str, ...] = ()
    print_after_all: bool = False
    show: Show | None = None
    verify: bool = True
    check: Check | None = None
    known: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = dict.fromkeys((*(one.name for one in self.passes), *self.known))
        for name in (*self.disabled, *self.print_before, *self.print_after):
            if name not in names:
                raise OptionError(f"unknown pass {name!r}", choose_one(name, names))

    def run(self, graph: Graph) -> ManagerResult:
        """Runs all passes that are not disabled.

        Raises:
            PassError: a pass failed, broke the graph, or changed a value; the message names it.
            PimflowError: as a pass raised it.
        """
        records: list[PassRecord] = []
        for one in self.passes:
            if one.name in self.disabled:
                continue
            if one.name in self.print_before:
                self._print(f"before {one.name}", graph)
            start = time.perf_counter()
            result = self._run_one(one, graph)
            seconds = time.perf_counter() - start
            self._judge(one, graph, result)
            graph = result.graph
            records.append(PassRecord(one.name, seconds, result.changed, len(graph.nodes), result.notes))
            if self.print_after_all or one.name in self.print_after:
                self._print(f"after {one.name}", graph)
        return ManagerResult(graph, tuple(records))

    def _run_one(self, one: Pass, graph: Graph) -> PassResult:
        try:
            return one.run(graph)
        except PimflowError:
            raise
        except _BUGS as error:
            raise PassError(f"pass {one.name!r} failed: {error}") from error

    def _judge(self, one: Pass, before: Graph, result: PassResult) -> None:
        if self.verify:
            try:
                verify_graph(result.graph)
            except GraphError as error:
                raise PassError(f"pass {one.name!r} broke the graph: {error}") from error
        difference = self.check(before, result.graph) if self.check is not None and result.changed else None
        if difference is not None:
            raise PassError(f"pass {one.name!r} changed a value: {difference}")

    def _print(self, moment: str, graph: Graph) -> None:
        if self.show is not None:
            self.show(f"// IR {moment}\n{print_graph(graph)}")

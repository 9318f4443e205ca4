"""Runs passes in order: verifies, prints, times and checks values between them, and names the pass at fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from pimflow.errors import GraphError, OptionError, PassError, PimflowError, choose_one, kind_of
from pimflow.ir import Graph
from pimflow.ir.text import print_graph
from pimflow.ir.verify import verify_graph
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass

Check = Callable[[Graph, Graph], "str | None"]
"""Compares the values of the graph before and after a pass; returns how they differ, or None."""

Show = Callable[[str], None]

_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a faulty pass raises. A PimflowError is the user's mistake and is passed on unchanged."""


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: its time, whether it changed the graph, the number of nodes afterwards, and its notes."""

    name: str
    seconds: float
    changed: bool
    nodes: int
    notes: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class ManagerResult(PassResult):
    """The graph after all passes, with one record per pass that ran, including those of nested managers."""

    records: tuple[PassRecord, ...] = ()

    def __repr__(self) -> str:
        changed = sum(record.changed for record in self.records)
        return f"<ManagerResult of {len(self.records)} passes, {changed} of which changed the graph: {self.graph!r}>"


def notes_of(records: Sequence[PassRecord]) -> tuple[str, ...]:
    """What the passes left unchanged, and why: each "pass: node: reason"."""
    return tuple(f"{record.name}: {note}" for record in records for note in record.notes)


def times_table(records: Sequence[PassRecord]) -> str:
    """Pass times in human-readable form, one line per pass."""
    rows = [f"{record.seconds * 1e3:9.2f} ms  {record.nodes:6d} nodes  {record.name}" for record in records]
    total = sum(record.seconds for record in records)
    return "\n".join([*rows, f"{total * 1e3:9.2f} ms  total"])


@dataclass(frozen=True)
class PassManager(Pass):
    """Runs passes in order. It is itself a pass: nested in another manager, its passes run with the options of both.

    Args:
        passes: the passes; a name may occur twice.
        disabled: names of passes to leave out.
        print_before: names of passes before which the graph is shown.
        print_after: names of passes after which the graph is shown.
        print_after_all: show the graph after every pass.
        show: receives the text; needed if anything is to be shown.
        verify: verify the structure of the graph after every pass.
        check: compares values before and after every pass that changed the graph.
        known: finds further passes that `disabled` and `print_*` may name, those of other managers of the same program,
            once something is named.

    Raises (on construction):
        OptionError: `disabled`, `print_before` or `print_after` name an unknown pass, or a required one is disabled.
    """

    name: ClassVar[str] = "pass-manager"

    passes: tuple[Pass, ...]
    disabled: tuple[str, ...] = ()
    print_before: tuple[str, ...] = ()
    print_after: tuple[str, ...] = ()
    print_after_all: bool = False
    show: Show | None = None
    verify: bool = True
    check: Check | None = None
    known: Callable[[], tuple[type[Pass], ...]] = tuple

    def __post_init__(self) -> None:
        named = (*self.disabled, *self.print_before, *self.print_after)
        if not named:
            return
        kinds = {kind.name: kind for kind in self._kinds()}
        for name in named:
            if name not in kinds:
                raise OptionError(f"unknown pass {name!r}", choose_one(name, kinds))
        for name in self.disabled:
            if kinds[name].required:
                optional = ", ".join(name for name, kind in kinds.items() if not kind.required)
                raise OptionError(
                    f"pass {name!r} is required and cannot be disabled", f"passes that can be disabled: {optional}"
                )

    def _kinds(self) -> tuple[type[Pass], ...]:
        """The passes that may be named."""
        return (*(type(leaf) for leaf in self._leaves()), *self.known())

    def _leaves(self) -> Iterator[Pass]:
        """All passes that are not managers, in order."""
        for child in self.passes:
            if isinstance(child, PassManager):
                yield from child._leaves()
            else:
                yield child

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))

    def run(self, graph: Graph) -> ManagerResult:
        """Run all passes that are not disabled.

        Raises:
            PassError: a pass failed, broke the graph, or changed a value; the message names it.
            PimflowError: as raised by a pass.
        """
        before = graph
        records: list[PassRecord] = []
        for child in self.passes:
            if isinstance(child, PassManager):
                nested = child._within(self).run(graph)
                graph = nested.graph
                records.extend(nested.records)
            elif child.name not in self.disabled:
                result, seconds = self._run_one(child, graph)
                graph = result.graph
                records.append(PassRecord(child.name, seconds, result.changed, len(graph.nodes), result.notes))
        notes = tuple(note for record in records for note in record.notes)
        return ManagerResult(graph, graph is not before, notes, records=tuple(records))

    def _within(self, outer: PassManager) -> PassManager:
        """This manager with the options of an enclosing manager added to its own."""
        return replace(
            self,
            disabled=(*self.disabled, *outer.disabled),
            print_before=(*self.print_before, *outer.print_before),
            print_after=(*self.print_after, *outer.print_after),
            print_after_all=self.print_after_all or outer.print_after_all,
            show=self.show or outer.show,
            verify=self.verify or outer.verify,
            check=self.check or outer.check,
            known=lambda: (*self.known(), *outer._kinds()),
        )

    def _run_one(self, child: Pass, graph: Graph) -> tuple[PassResult, float]:
        """A pass's result, after all checks, and the time of the pass alone in seconds."""
        if child.name in self.print_before:
            self._print(f"before {child.name}", graph)
        start = time.perf_counter()
        try:
            result = child.run(graph)
        except PimflowError:
            raise
        except _BUGS as error:
            raise PassError(f"pass {child.name!r} failed: {error}") from error
        seconds = time.perf_counter() - start
        if not isinstance(result, PassResult):
            raise PassError(f"pass {child.name!r} returned {kind_of(result)}, not a PassResult")
        self._judge(child, graph, result)
        if self.print_after_all or child.name in self.print_after:
            self._print(f"after {child.name}", result.graph)
        return result, seconds

    def _judge(self, child: Pass, before: Graph, result: PassResult) -> None:
        if self.verify:
            try:
                verify_graph(result.graph, before)
            except GraphError as error:
                raise PassError(f"pass {child.name!r} broke the graph: {error}") from error
        check = self.check if child.keeps_values and result.changed else None
        difference = check(before, result.graph) if check is not None else None
        if difference is not None:
            raise PassError(f"pass {child.name!r} changed a value: {difference}")

    def _print(self, moment: str, graph: Graph) -> None:
        if self.show is not None:
            self.show(f"// IR {moment}\n{print_graph(graph)}")

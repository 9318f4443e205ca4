"""Every file in cases/ holds a graph, passes, and their result: a graph, notes, or an error.

A new case is a file with its first three sections (what it shows; passes; before); `--update-golden` writes the others.
In every case, the graph must compute the same values before and after, unless a pass declares that it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pimflow.errors import PimflowError
from pimflow.ir import Graph, parse_graph, print_graph
from pimflow.ir.verify import verify_graph
from pimflow.passes import PASSES, ApplyPlan, PassManager, parse_pipeline
from pimflow.passes.decision import DecisionPass
from support.golden import Golden
from support.values import assert_same_values

CASES = Path(__file__).parent / "cases"
FILES = sorted(CASES.glob("*.case"))


@dataclass(frozen=True)
class Case:
    """A case's sections: `shows` is the text before the first mark."""

    shows: str
    passes: str
    before: str
    after: str = ""
    notes: str = ""
    error: str = ""

    def text(self) -> str:
        """The file's text."""
        sections = {name: getattr(self, name) for name in ("passes", "before", "after", "notes", "error")}
        marked = [f"--- {name}\n{text}" for name, text in sections.items() if text]
        return "\n".join([self.shows, *marked])


def read_case(path: Path) -> Case:
    shows, *sections = path.read_text(encoding="utf-8").split("\n--- ")
    named = dict(section.split("\n", 1) for section in sections)
    return Case(shows.strip() + "\n", **{name: text.strip() + "\n" for name, text in named.items()})


def run(case: Case) -> tuple[Case, Graph, Graph | None]:
    """The case with its passes' results, the graph before, and the one after (None if they refuse it)."""
    before = parse_graph(case.before)
    verify_graph(before)
    blank = replace(case, after="", notes="", error="")
    try:
        result = PassManager(parse_pipeline(case.passes)).run(before)
    except PimflowError as error:
        return replace(blank, error=f"{type(error).__name__}: {error}\n"), before, None
    after = print_graph(result.graph) if result.changed else "the same\n"
    notes = "".join(f"{record.name}: {note}\n" for record in result.records for note in record.notes)
    return replace(blank, after=after, notes=notes), before, result.graph


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case(path: Path, golden: Golden) -> None:
    case, before, after = run(read_case(path))
    replace(golden, folder=CASES).check(path.name, case.text())
    if after is not None and all(step.keeps_values for step in parse_pipeline(case.passes)):
        assert_same_values(before, after)


def test_every_pass_has_a_case_and_every_decision_a_refusal() -> None:
    cases = [read_case(path) for path in FILES]
    for kind in PASSES.values():
        named = [case for case in cases if case.passes.strip().split("{")[0] == kind.name]
        assert any(case.after not in ("", "the same\n") for case in named), (
            f"{kind.name}: no case in which it changes the graph"
        )
        refuses = issubclass(kind, (DecisionPass, ApplyPlan))
        assert any(case.error for case in named) or not refuses, f"{kind.name}: no case in which it refuses"

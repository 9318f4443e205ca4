"""The manager: verifies, prints, times, checks, and names the pass that broke something."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from pimflow.errors import OptionError, PassError, PlanError
from pimflow.ir import Builder, Elementwise, Graph, OnDevice
from pimflow.ir.compare import graphs_equal
from pimflow.ir.text import parse_graph
from pimflow.passes import ApplyPlan, Pass, PassManager, PassResult, RemoveDeadCode, RemoveIdentity, times_table
from pimflow.runtime.execute.ort import random_inputs
from support.passes import plan_of
from support.values import run_in_ort


def graph() -> Graph:
    build = Builder()
    out = build.relu(build.conv(build.input(1, 2, 4, 4), 2, name="conv"), name="relu")
    build.relu(out, name="dead")
    return build.graph(out)


@dataclass(frozen=True)
class RenameEverything(Pass):
    """Breaks the graph."""

    name = "rename-everything"

    def run(self, graph: Graph) -> PassResult:
        return PassResult(graph.replace(nodes=[replace(node, outputs=("?",)) for node in graph.nodes]), True)


@dataclass(frozen=True)
class DivideByZero(Pass):
    """Has a bug."""

    name = "divide-by-zero"

    def run(self, graph: Graph) -> PassResult:
        return PassResult(graph, 1 // 0 == 0)


@dataclass(frozen=True)
class ReluToAbs(Pass):
    """Keeps the graph valid, but not its values."""

    name = "relu-to-abs"

    def run(self, graph: Graph) -> PassResult:
        nodes = [replace(n, op=Elementwise("Abs")) if n.kind == "Relu" else n for n in graph.nodes]
        return PassResult(graph.replace(nodes=nodes), True, ("relu: is Abs now",))


def differs(before: Graph, after: Graph) -> str | None:
    inputs = random_inputs(before, seed=0)
    expected, actual = run_in_ort(before, inputs), run_in_ort(after, inputs)
    for name, array in expected.items():
        if not np.allclose(array, actual[name]):
            return f"output {name!r}"
    return None


def test_records() -> None:
    result = PassManager((RemoveIdentity(), RemoveDeadCode(), ReluToAbs())).run(graph())
    assert [(r.name, r.changed, r.nodes) for r in result.records] == [
        ("remove-identity", False, 3), ("remove-dead-code", True, 2), ("relu-to-abs", True, 2),
    ]  # fmt: skip
    assert all(record.seconds >= 0 for record in result.records)
    assert result.notes == ("relu: is Abs now",)
    assert [line.split()[-1] for line in times_table(result.records).splitlines()] == [
        "remove-identity", "remove-dead-code", "relu-to-abs", "total",
    ]  # fmt: skip


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    with pytest.raises(PassError, match="pass 'rename-everything' broke the graph"):
        PassManager((RemoveDeadCode(), RenameEverything())).run(graph())


def test_a_pass_that_fails_is_named_and_its_cause_kept() -> None:
    with pytest.raises(PassError, match="pass 'divide-by-zero' failed") as caught:
        PassManager((DivideByZero(),)).run(graph())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_pass_that_returns_something_else_is_named() -> None:
    @dataclass(frozen=True)
    class Careless(Pass):
        name = "careless"

        def run(self, graph: Graph) -> PassResult:
            return graph  # type: ignore[return-value]

    with pytest.raises(PassError, match="pass 'careless' returned a Graph, not a PassResult"):
        PassManager((Careless(),)).run(graph())


def test_a_users_mistake_is_not_a_bug_of_the_pass() -> None:
    with pytest.raises(PlanError):
        PassManager((ApplyPlan(plan_of(OnDevice("conv", "gpu"))),)).run(graph())


def test_the_first_pass_that_changes_a_value_is_named() -> None:
    passes = (RemoveIdentity(), RemoveDeadCode(), ReluToAbs(), RemoveIdentity())
    with pytest.raises(PassError, match="pass 'relu-to-abs' changed a value: output 'relu_out'"):
        PassManager(passes, check=differs).run(graph())
    assert PassManager(passes[:2], check=differs).run(graph()).records


def test_the_check_is_asked_after_changes_only() -> None:
    checked: list[int] = []
    passes = (RemoveIdentity(), RemoveDeadCode())
    PassManager(passes, check=lambda before, after: checked.append(len(after.nodes))).run(graph())
    assert checked == [2]


def test_disabled_passes_do_not_run() -> None:
    result = PassManager((RemoveDeadCode(), ReluToAbs()), disabled=("relu-to-abs",)).run(graph())
    assert [record.name for record in result.records] == ["remove-dead-code"]


def test_printing() -> None:
    shown: list[str] = []
    passes = (RemoveIdentity(), RemoveDeadCode())
    PassManager(passes, print_before=("remove-dead-code",), print_after_all=True, show=shown.append).run(graph())
    assert [text.splitlines()[0] for text in shown] == [
        "// IR after remove-identity", "// IR before remove-dead-code", "// IR after remove-dead-code",
    ]  # fmt: skip
    parsed = parse_graph(shown[0], constants=graph().constants)
    assert graphs_equal(parsed, graph())
    shown.clear()
    PassManager(passes, print_after=("remove-identity",), show=shown.append).run(graph())
    assert len(shown) == 1


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match="did you mean 'remove-dead-code'"):
        PassManager((RemoveDeadCode(),), disabled=("remove-deadcode",))
    with pytest.raises(OptionError, match=r"unknown pass .*choose one of remove-dead-code"):
        PassManager((RemoveDeadCode(),), print_before=("xyz",))
    PassManager((RemoveDeadCode(),), print_before=("apply-plan",), known=lambda: (ApplyPlan,))


def test_a_required_pass_cannot_be_disabled() -> None:
    with pytest.raises(OptionError, match=r"'apply-plan' is required and .* can be disabled: remove-dead-code"):
        PassManager((RemoveDeadCode(),), disabled=("apply-plan",), known=lambda: (ApplyPlan,))


def test_a_manager_is_a_pass() -> None:
    """Its passes run in its place, under its own options and those of the enclosing manager."""
    shown: list[str] = []
    inner = PassManager((RemoveDeadCode(), ReluToAbs()), disabled=("relu-to-abs",))
    outer = PassManager(
        (RemoveIdentity(), inner, RemoveIdentity()), print_after=("remove-dead-code",), show=shown.append
    )
    result = outer.run(graph())
    assert [record.name for record in result.records] == ["remove-identity", "remove-dead-code", "remove-identity"]
    assert result.changed
    assert [text.splitlines()[0] for text in shown] == ["// IR after remove-dead-code"]
    disabled = PassManager((inner,), disabled=("remove-dead-code",)).run(graph())
    assert not disabled.records
    assert not disabled.changed


def test_a_fault_in_a_nested_pass_is_found_and_named() -> None:
    with pytest.raises(PassError, match="pass 'relu-to-abs' changed a value"):
        PassManager((PassManager((ReluToAbs(),)),), check=differs).run(graph())

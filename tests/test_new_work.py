"""A unit whose work is not a matrix product, defined entirely in this file, is searched, executed, verified and saved.

The unit applies functions from a table to elements: logistic functions and running sums. One is a typed op, which can
be split by rows; the other is an op that pimflow has no type for. docs/extending.md points here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import pimflow
import pimflow.data
from pimflow.api.models import inspect
from pimflow.codegen.backend import Backend
from pimflow.codegen.work import MatmulProblem, Work
from pimflow.errors import OptionError
from pimflow.ir import Array, Builder, Graph, Node, OnnxOp, Refusal
from pimflow.ir.registry import scratch_registrations
from pimflow.onnxio import to_onnx
from pimflow.report.layer import report_layer
from pimflow.report.targets import targets_text
from pimflow.runtime.backends import UNITS
from pimflow.targets import Target, parse_target, target_text
from pimflow.targets.schema import KINDS, Unit
from pimflow.targets.schema.unit import Positive


@dataclass(frozen=True)
class VectorSpec(Unit):
    """`[vector]` of a target of this family."""

    kind: ClassVar[str] = "vector"

    elements_per_us: Positive


@dataclass(frozen=True)
class VectorWork(Work):
    """A function of a number of elements."""

    function: str
    elements: int


@dataclass(frozen=True)
class VectorCost:
    time_us: float
    energy_mj: float
    cycles: int
    counters: Mapping[str, int]

    @property
    def energy_parts_mj(self) -> dict[str, float]:
        return {"apply": self.energy_mj}


class VectorBackend(Backend[VectorWork, VectorWork]):
    """A backend whose programs are the work itself."""

    title = "Vector unit"
    counters: ClassVar[tuple[str, ...]] = ("APPLY",)

    def work(self, graph: Graph, node: Node) -> VectorWork | Refusal:
        if node.kind not in ("Sigmoid", "CumSum"):
            return Refusal(f"there is no table of {node.kind}")
        return VectorWork(node.kind, graph.value(node.output).elements)

    def cost(self, work: VectorWork, choice: str) -> VectorCost:
        return VectorCost(work.elements / self.spec.elements_per_us, 0.0, work.elements, {"APPLY": work.elements})

    def program(self, work: VectorWork, choice: str) -> VectorWork:
        return work

    def execute(
        self, program: VectorWork, graph: Graph, node: Node, inputs: Sequence[Array | None], operand: str
    ) -> Array:
        source = inputs[0]
        assert source is not None
        assert program.elements == source.size
        return (
            np.cumsum(source, axis=3)
            if program.function == "CumSum"
            else np.reciprocal(1 + np.exp(np.negative(source)))
        )

    def encode(self, program: VectorWork) -> Any:
        return pimflow.data.encode(program)

    def decode(self, data: Any) -> VectorWork:
        return pimflow.data.decode(VectorWork, data)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(KINDS, "vector", VectorSpec)
    with scratch_registrations():
        UNITS.add("vector", VectorBackend)
        yield


# ---- everything below only checks


def machine(elements_per_us: float = 1e6) -> Target:
    text = target_text("pimflow")
    table = f'[vector]\nkind = "vector"\nelements_per_us = {elements_per_us}\n'
    return parse_target(text[: text.index("\n[pim]")] + table, "machine.toml")


def model(rows: int = 64) -> Any:
    """sigmoid -> running sum -> convolution -> relu, the last fused into the convolution."""
    build = Builder()
    gate = build.sigmoid(build.input(1, 8, rows, 64, name="x"), name="gate")
    axis = build.constant(np.array(3, np.int64))
    total = build.onnx("CumSum", gate, axis, name="total")
    out = build.relu(build.conv(total, 8, name="conv"), name="relu")
    return to_onnx(build.graph(out))


@pytest.mark.parametrize("policy", ["pim", "pimflow", "auto"])
def test_the_search_places_exactly_the_accepted_ops_on_it(policy: str, tmp_path: Path) -> None:
    target = machine()
    compiled = pimflow.compile(model(), target=target, policy=policy, use_cache=False)
    placed = {node.name: node.device for node in compiled.graph.nodes}
    assert placed == {"gate": "vector", "total": "vector", "conv": "gpu", "relu": "gpu"}
    assert isinstance(compiled.graph.node("total").op, OnnxOp)
    assert compiled.programs == {"gate": VectorWork("Sigmoid", 8 * 64 * 64), "total": VectorWork("CumSum", 8 * 64 * 64)}
    assert compiled.report.speedup > 1
    assert compiled.plan.predicted_us == pytest.approx(compiled.timeline.makespan_us)
    assert sum(row.commands["APPLY"] for row in compiled.report.nodes) == 2 * 8 * 64 * 64
    assert compiled.verify(pim="values").passed
    again = pimflow.load(compiled.save(tmp_path / "out"))
    assert again.programs == compiled.programs
    assert again.verify(pim="values", arena=True).passed


def test_a_plan_stays_on_the_host_where_that_is_faster() -> None:
    compiled = pimflow.compile(model(), target=machine(1.0), policy="auto", use_cache=False)
    assert {node.device for node in compiled.graph.nodes} == {"gpu"}


def test_its_rows_can_be_shared_with_the_host() -> None:
    compiled = pimflow.compile(model(4096), target=machine(6e4), policy="md-dp", use_cache=False)
    (gate,) = [row for row in compiled.report.nodes if row.name == "gate"]
    assert gate.mode == "md-dp"
    assert 0 < gate.fractions["vector"] < 1
    assert compiled.verify(pim="values").passed


def test_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pimflow.compile(model(), target=machine(), policy="pim", use_cache=False)
    right = VectorBackend.execute
    monkeypatch.setattr(VectorBackend, "execute", lambda *given: right(*given) * np.float32(1.01))
    assert not compiled.verify(pim="values").passed


def test_verdicts_name_unsupported_and_fused_ops() -> None:
    rows = {row.name: row for row in inspect(model(), target=machine()).nodes}
    assert rows["gate"].leaves_host
    assert rows["conv"].reasons == {"vector": "there is no table of Conv"}
    build = Builder()
    fused = build.sigmoid(build.conv(build.input(1, 8, 8, 8), 8, name="conv"), name="fused")
    *_, last = inspect(to_onnx(build.graph(fused)), target=machine()).nodes
    assert last.reasons == {"vector": "Sigmoid is fused into conv"}


def test_a_unit_without_a_description_is_listed_by_its_kind() -> None:
    assert "VECTOR: a unit of kind vector" in targets_text([machine()])


def test_a_layer_needs_a_unit_that_multiplies_matrices() -> None:
    with pytest.raises(OptionError, match="no unit of target 'pimflow' multiplies matrices"):
        report_layer(MatmulProblem(1, 8, 8), machine())

"""A family of machines defined entirely in this file, supported end to end without a change to the package.

The family is a unit that multiplies matrices at a fixed number of multiply-accumulates per microsecond. It needs a
schema for its table in a target, a backend, and two registrations. docs/extending.md points here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import pimflow
import pimflow.data
from pimflow.api.models import compare, inspect
from pimflow.codegen.matrix import MatrixBackend
from pimflow.codegen.work import ConvProblem, MatrixProblem
from pimflow.errors import DataError, OptionError
from pimflow.ir import Array, Builder, Refusal
from pimflow.ir.registry import scratch_registrations
from pimflow.onnxio import to_onnx
from pimflow.report.layer import report_layer
from pimflow.report.targets import targets_json, targets_text
from pimflow.runtime.backends import UNITS
from pimflow.targets import Target, load_target, parse_target, target_text, to_toml
from pimflow.targets.schema import KINDS, Unit
from pimflow.targets.schema.unit import Amount, Count, Positive
from pimflow.version import document
from support.schemas import check


@dataclass(frozen=True)
class MultiplierSpec(Unit):
    """`[tensor]` of a target of this family."""

    kind: ClassVar[str] = "multiplier"

    macs_per_us: Positive
    start_us: Amount
    mac_pj: Amount
    longest_product: Count  # elements of one dot product

    @property
    def summary(self) -> str:
        return f"{self.macs_per_us:g} MACs a microsecond"


@dataclass(frozen=True)
class MultiplierCost:
    start_us: float
    multiply_us: float
    energy_mj: float
    cycles: int
    counters: Mapping[str, int]

    @property
    def time_us(self) -> float:
        return self.start_us + self.multiply_us

    @property
    def energy_parts_mj(self) -> dict[str, float]:
        return {"multiply": self.energy_mj}


class MultiplierBackend(MatrixBackend[MatrixProblem]):
    """A backend whose programs are the work itself; `wide` doubles the rate with half as many, larger steps."""

    title = "Multiplier"
    choices: ClassVar[tuple[str, ...]] = ("plain", "wide", "auto")
    default_choice = "plain"
    counters: ClassVar[tuple[str, ...]] = ("MAC", "START")

    def cost(self, work: MatrixProblem, choice: str) -> MultiplierCost | Refusal:
        if work.depth > self.spec.longest_product:
            return Refusal("the dot product is too long", work.depth, self.spec.longest_product, "elements")
        rate = self.spec.macs_per_us * (1 if choice == "plain" else 2)
        energy_mj = work.macs * self.spec.mac_pj * 1e-9
        counters = {"MAC": work.macs, "START": 1}
        return MultiplierCost(self.spec.start_us, work.macs / rate, energy_mj, work.macs, counters)

    def time_parts_us(self, work: MatrixProblem, choice: str) -> dict[str, float]:
        cost = self.cost(work, choice)
        assert not isinstance(cost, Refusal)
        return {"start": cost.start_us, "multiply": cost.multiply_us}

    def program(self, work: MatrixProblem, choice: str) -> MatrixProblem | Refusal:
        cost = self.cost(work, choice)
        return cost if isinstance(cost, Refusal) else work

    def multiply(self, program: MatrixProblem, left: Array, right: Array, operand: str) -> Array:
        if not isinstance(program, ConvProblem):
            return np.asarray(np.matmul(left, right))
        top, west, bottom, east = program.pads
        weights = right.astype(np.float32)
        padded = np.pad(left.astype(np.float32), ((0, 0), (0, 0), (top, bottom), (west, east)))
        result = np.zeros((program.batch, program.out_channels, program.out_h, program.out_w), np.float32)
        for row in range(program.kernel[0]):
            for column in range(program.kernel[1]):
                rows = slice(row, row + program.out_h * program.strides[0], program.strides[0])
                columns = slice(column, column + program.out_w * program.strides[1], program.strides[1])
                window = padded[:, :, rows, columns]
                result += np.tensordot(window, weights[:, :, row, column], ((1,), (1,))).transpose(0, 3, 1, 2)
        return result

    def encode(self, program: MatrixProblem) -> Any:
        return pimflow.data.encode(program, tagged=True)

    def decode(self, data: Any) -> MatrixProblem:
        work: MatrixProblem = pimflow.data.decode(MatrixProblem, data, tagged=True)
        if work.depth > self.spec.longest_product:
            raise DataError("a program of another machine")
        return work

    def parts(self, program: MatrixProblem) -> int:
        return 1

    def trace(self, program: MatrixProblem, part: int) -> Iterator[str]:
        yield f"MAC {program.macs}\n"


TABLE = """
[tensor]
kind = "multiplier"
macs_per_us = 2e6
start_us = 0.5
mac_pj = 0.25
longest_product = 4096
"""


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(KINDS, "multiplier", MultiplierSpec)
    with scratch_registrations():
        UNITS.add("multiplier", MultiplierBackend)
        yield


# ---- everything below only checks


def machine() -> Target:
    text = target_text("pimflow")
    start = text.index("\n[pim]")
    return parse_target(text[:start].replace('name = "pimflow"', 'name = "multiplier"') + TABLE, "machine.toml")


def test_the_target_is_read_strictly_and_written_back() -> None:
    target = machine()
    assert target.devices == ("gpu", "tensor")
    assert parse_target(to_toml(target), "again.toml") == target
    text = to_toml(target)
    for broken, message in (
        (text.replace("start_us", "start_s"), "unknown key 'tensor.start_s'; did you mean 'start_us'"),
        (text.replace("longest_product = 4096", ""), "missing key 'tensor.longest_product'"),
        (text.replace("macs_per_us = 2000000.0", "macs_per_us = 0"), "'tensor.macs_per_us' is 0"),
        (text.replace('"multiplier"\nmacs', '"multiplyer"\nmacs'), "'tensor.kind' is 'multiplyer'"),
        (text.replace('kind = "multiplier"\n', ""), "unknown key 'tensor'"),
    ):
        with pytest.raises(pimflow.PimflowError) as caught:
            parse_target(broken, "broken.toml")
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "modes"),
    [("pim", {"tensor"}), ("md-dp", {"tensor", "md-dp"}), ("auto", {"tensor", "pipeline", "md-dp"}), ("gpu", set())],
)
def test_a_model_is_supported_end_to_end(policy: str, modes: set[str], tmp_path: Path) -> None:
    compiled = pimflow.compile("zoo:toy", target=machine(), policy=policy, use_cache=False)
    used = {row.mode for row in compiled.report.nodes} - {"gpu"}
    assert used <= modes
    assert bool(used) == bool(modes)
    on_unit = [node for node in compiled.graph.nodes if node.device == "tensor"]
    assert set(compiled.programs) == {node.name for node in on_unit}
    document = compiled.document()
    check({"format": "pimflow-compile/1", **document})
    assert list(document["result"]["busy_parts_us"].get("tensor", {})) == (["start", "multiply"] if used else [])
    assert "energy" in compiled.summary(by="energy")
    macs = sum(row["commands"]["MAC"] for row in document["nodes"])
    assert macs == sum(program.macs for program in compiled.programs.values())
    assert {"gpu_us", "tensor_us", "tensor_fraction", "tensor_cycles"} <= set(document["nodes"][0])
    assert "TENSOR us" in compiled.summary()
    assert "GPU alone" in compiled.summary()
    result = compiled.verify(pim="values")
    assert result.passed
    assert result.output_std > 0
    compiled.save(tmp_path / "out")
    again = pimflow.load(tmp_path / "out")
    assert again.report.as_json() == compiled.report.as_json()
    assert again.plan == compiled.plan
    assert again.programs == compiled.programs
    assert again.verify(pim="values", arena=True).passed
    tracks = json.loads((tmp_path / "out" / "timeline.json").read_text())["traceEvents"]
    assert "Multiplier" in [event["args"].get("name") for event in tracks if event["name"] == "thread_name"]
    for node in on_unit:
        assert list(again.trace(node.name, 0)) == [f"MAC {compiled.programs[node.name].macs}\n"]


def test_a_large_layer_is_split_between_both() -> None:
    build = Builder()
    graph = build.graph(build.conv(build.input(1, 128, 56, 56), 128, 3, pad=1, name="conv"))
    compiled = pimflow.compile(to_onnx(graph), target=machine(), policy="md-dp", use_cache=False)
    assert [row.mode for row in compiled.report.nodes] == ["md-dp"]
    assert 0 < compiled.report.nodes[0].fractions["tensor"] < 1
    assert "GPU + TENSOR" in compiled.summary()
    assert compiled.report.speedup > 1.1
    assert compiled.verify(pim="values").passed


def test_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pimflow.compile("zoo:toy", target=machine(), policy="pim", use_cache=False)
    right = MultiplierBackend.multiply
    monkeypatch.setattr(MultiplierBackend, "multiply", lambda *given: right(*given) * np.float32(1.01))
    assert not compiled.verify(pim="values").passed


def test_search_uses_choices_and_refusals() -> None:
    target = machine()
    report = inspect("zoo:toy", target=target)
    assert any(node.leaves_host for node in report.nodes)
    assert {"can_tensor", "tensor_us"} <= set(report.nodes[0].as_json())
    work = ConvProblem(1, 512, 64, 7, 7, (3, 3))
    with pytest.raises(OptionError, match="too long"):
        report_layer(work, target)
    layer = ConvProblem(1, 64, 64, 7, 7, (3, 3))
    check(document("layer", report_layer(layer, target).as_json()))
    times = [report_layer(layer, target, choice).as_json()["time_us"] for choice in ("plain", "wide", "")]
    assert times[0] > times[1] == times[2]
    with pytest.raises(OptionError, match="unknown choice 'newton'"):
        report_layer(layer, target, "newton")
    results = compare("zoo:toy", target=target, use_cache=False, policies=["gpu", "md-dp", "auto"]).policies
    assert results[-1].speedup >= results[1].speedup >= 1
    with pytest.raises(OptionError, match=r"newton\+"):
        pimflow.compile("zoo:toy", target=target, policy="newton+", use_cache=False)


def test_it_is_listed_in_its_own_words() -> None:
    shown = [load_target("pimflow"), machine()]
    *_, line = targets_text(shown).splitlines()
    assert line.split("  ")[:2] == ["multiplier", "TENSOR: 2e+06 MACs a microsecond"]
    assert targets_json(shown)[1]["units"]["tensor"] == "2e+06 MACs a microsecond"


def test_other_machines_do_not_see_it() -> None:
    assert load_target("pimflow").devices == ("gpu", "pim")

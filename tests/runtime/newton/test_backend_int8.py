"""8-bit operands: half the bytes, twice the elements per COMP, exact sums; everything else is the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import pimflow
from pimflow.codegen.newton import PimProgram
from pimflow.codegen.work import ConvProblem, MatmulProblem, NarrowProblem
from pimflow.errors import CommandOrderError, OptionError
from pimflow.frontend import load_model
from pimflow.ir import Array, NarrowOperands, Refusal
from pimflow.passes.narrow_products import NarrowProducts
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.layer import NewtonLayer
from pimflow.targets import load_target
from support.expansions import bytes_in, drawn
from support.int8 import with_int8
from support.opaque_models import CONTRIB, integers, opaque_model
from support.quantised_models import qdq_model

INT8 = with_int8()


def own_operands(target: pimflow.Target) -> pimflow.Target:
    """The machine without its 8-bit multipliers."""
    return target.with_units(pim=replace(target.pim, int8=None))


def operands_of(compiled: pimflow.CompiledModel) -> list[str]:
    """The operand type of every program."""
    return [program.pim.operand for program in compiled.programs.values()]


def time_us(compiled: pimflow.CompiledModel) -> float:
    return compiled.timeline.makespan_us


def pim_us(compiled: pimflow.CompiledModel) -> float:
    return sum(event.end_us - event.start_us for event in compiled.timeline.events if event.resource == "pim")


@pytest.mark.parametrize("policy", ["pim", "auto"])
@pytest.mark.parametrize("timing", ["strict", "artifact"])
def test_a_quantised_network_runs_in_bytes(policy: str, timing: str, tmp_path: Path) -> None:
    target, model = with_int8(timing=timing), qdq_model()
    compiled = pimflow.compile(model, target=target, policy=policy, use_cache=False)
    before = pimflow.compile(model, target=own_operands(target), policy=policy, use_cache=False)
    assert operands_of(compiled) == ["int8"] * 4
    assert operands_of(before) == ["fp16"] * 4
    assert pim_us(compiled) < 0.9 * pim_us(before)
    assert time_us(compiled) < time_us(before)
    assert compiled.plan.predicted_us == pytest.approx(time_us(compiled))
    result = compiled.verify(pim="values")
    assert result.passed, result.text()
    assert result.programs is not None
    assert result.programs.largest_error < 1e-6
    assert "int8 operands" in result.text()
    loaded = pimflow.load(compiled.save(tmp_path / "out"))
    for name, program in compiled.programs.items():
        assert (loaded.programs[name].streams, loaded.programs[name].pim) == (program.streams, program.pim)
    assert loaded.graph.nodes == compiled.graph.nodes
    assert loaded.verify(pim="values", seed=1).passed


def test_a_machine_without_the_table_is_unchanged() -> None:
    assert pimflow.load_target("pimflow").pim.int8 is None
    marked = pimflow.compile(qdq_model(), policy="pim", use_cache=False)
    assert all(node.placement.narrow is None for node in marked.graph.nodes)
    with pytest.raises(ValueError, match="cannot multiply 8-bit operands"):
        _ = marked.machine.target.pim.in_int8


def test_a_wrong_step_or_weight_is_a_wrong_value() -> None:
    compiled = pimflow.compile(qdq_model(), target=INT8, policy="pim", use_cache=False)
    node = next(node for node in compiled.graph.nodes if node.device == "pim")
    narrow = node.placement.narrow
    assert narrow is not None
    wrong = node.placed(narrow=NarrowOperands(narrow.dtype, narrow.step * 1.02))
    nodes = [wrong if other is node else other for other in compiled.graph.nodes]
    assert not replace(compiled, graph=compiled.graph.replace(nodes=nodes)).verify(pim="values").passed
    program = compiled.programs[node.name]
    assert isinstance(program, PimProgram)
    streams = tuple(replace(stream, body=stream.body[:-1]) for stream in program.streams)
    broken = {**compiled.programs, node.name: program.with_streams(streams)}
    assert not replace(compiled, programs=broken).verify(pim="values").passed


def convolution(kind: str, zero: int) -> onnx.ModelProto:
    constants: dict[str, Array] = {
        "x_scale": np.array(0.02, np.float32),
        "x_zero": np.array(120, np.uint8),
        "w": integers(32, 8, 3, 3, dtype="uint8" if zero else "int8"),
        "w_scale": np.linspace(0.01, 0.03, 1 if zero else 32).astype(np.float32).reshape(() if zero else -1),
        "w_zero": np.array(zero, np.uint8) if zero else np.zeros(32, np.int8),
        "y_scale": np.array(0.5, np.float32),
        "y_zero": np.array(110, np.uint8),
        "b": np.arange(-500, 500, 1000 / 32).astype(np.int32),
    }
    if kind == "ConvInteger":
        constants = {"w": constants["w"], "x_zero": constants["x_zero"], "w_zero": constants["w_zero"]}
    model = opaque_model(kind, {"x": (1, 16, 9, 9)}, constants, pads=[1] * 4, group=2)
    return bytes_in(model, TensorProto.INT32 if kind == "ConvInteger" else TensorProto.UINT8)


def product(kind: str) -> onnx.ModelProto:
    constants: dict[str, Array] = {
        "a_scale": np.array(0.02, np.float32),
        "a_zero": np.array(120, np.uint8),
        "b": integers(48, 600) if kind == "QGemm" else integers(600, 48),
        "b_scale": np.linspace(0.01, 0.03, 48).astype(np.float32),
        "b_zero": np.zeros(48, np.int8),
        "y_scale": np.array(50.0, np.float32),
        "y_zero": np.array(110, np.uint8),
    }
    if kind == "MatMulInteger":
        constants = {name: constants[name] for name in ("b", "a_zero", "b_zero")}
        return bytes_in(opaque_model(kind, {"a": (8, 600)}, constants), TensorProto.INT32)
    if kind == "MatMulIntegerToFloat":
        order = ["a", "b", "a_scale", "b_scale", "a_zero", "b_zero"]
        constants = {name: constants[name] for name in order[1:]}
        return bytes_in(opaque_model(kind, {"a": (8, 600)}, constants, order, domain=CONTRIB))
    if kind == "QGemm":
        added: dict[str, Array] = {"c": np.arange(-2400, 2400, 100).astype(np.int32)}
        names = ("a_scale", "a_zero", "b", "b_scale", "b_zero")
        constants = {name: constants[name] for name in names} | added
        model = opaque_model(kind, {"a": (600, 8)}, constants, domain=CONTRIB, transA=1, transB=1, alpha=0.5)
        return bytes_in(model)
    return bytes_in(opaque_model(kind, {"a": (2, 8, 600)}, constants), TensorProto.UINT8)


OPERATORS = {
    "QLinearConv": convolution("QLinearConv", 0),
    "QLinearConv of unsigned weights": convolution("QLinearConv", 128),
    "ConvInteger": convolution("ConvInteger", 128),
    **{kind: product(kind) for kind in ("MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "QGemm")},
}


@pytest.mark.parametrize("name", list(OPERATORS))
def test_operators_of_bytes(name: str) -> None:
    model = OPERATORS[name]
    compiled = pimflow.compile(model, target=INT8, policy="pim", use_cache=False)
    before = pimflow.compile(model, policy="pim", use_cache=False)
    assert (operands_of(compiled), operands_of(before)) == (["int8"], ["fp16"])
    assert pim_us(compiled) < pim_us(before)
    feeds = {info.name: drawn(info) for info in model.graph.input}
    for operand in (None, "fp32"):
        result = compiled.verify(inputs=feeds, pim="values", operand=operand)
        assert result.passed, result.text()
        assert result.programs is not None
        assert result.programs.largest_error < 2e-6


@pytest.mark.parametrize("kind", ["ConvInteger", "MatMulInteger"])
def test_byte_sums_avoid_latches_that_they_would_overflow(kind: str) -> None:
    """A unit with fp16 latches accepts values that scales make smaller, and bytes if it accumulates them in 32 bits."""
    backends = [NewtonBackend("pim", load_target("hbm-pim").pim), NewtonBackend("pim", with_int8("hbm-pim").pim)]
    graph = NarrowProducts().run(load_model(OPERATORS[kind])).graph
    halves, in_bytes = (backend.work(graph, graph.nodes[0]) for backend in backends)
    assert isinstance(halves, Refusal)
    assert "fp16 accumulators" in halves.reason
    assert halves.bound == 1, "two products of 255 by 255 are beyond 65504"
    assert isinstance(in_bytes, NarrowProblem)
    scaled = load_model(OPERATORS["QLinearConv" if kind == "ConvInteger" else "MatMulIntegerToFloat"])
    assert not isinstance(backends[0].work(scaled, scaled.nodes[0]), Refusal)


def test_weights_of_nine_bits_keep_the_machines_own_type() -> None:
    constants: dict[str, Array] = {
        "b": np.arange(64 * 48).reshape(64, 48).astype(np.uint8),
        "a_zero": np.array(120, np.uint8),
        "b_zero": np.array(127, np.uint8),
    }
    model = bytes_in(opaque_model("MatMulInteger", {"a": (8, 64)}, constants), TensorProto.INT32)
    compiled = pimflow.compile(model, target=INT8, policy="pim", use_cache=False)
    assert operands_of(compiled) == ["fp16"]


def layer(operand: str, problem: Any) -> NewtonLayer:
    detail = pimflow.layer(problem, operand=operand, target=INT8).detail
    assert isinstance(detail, NewtonLayer)
    return detail


@pytest.mark.parametrize("problem", [ConvProblem(1, 64, 64, 28, 28, (3, 3)), MatmulProblem(1, 1024, 1000)])
def test_a_comp_multiplies_twice_as_many_bytes(problem: Any) -> None:
    own, narrow = layer("", problem), layer("int8", problem)
    assert (own.operand, narrow.operand) == ("fp16", "int8")
    assert narrow.cost.commands.comp == own.cost.commands.comp // 2
    assert narrow.cost.bound_cycles == pytest.approx(own.cost.bound_cycles / 2, abs=3)
    assert narrow.cost.rows <= own.cost.rows // 2 + 1
    assert narrow.cost.time_us < own.cost.time_us
    energies = [detail.cost.energy_parts_mj for detail in (own, narrow)]
    assert energies[1]["mac"] == pytest.approx(energies[0]["mac"] * 0.3 / 1.5)  # as many MACs, at 0.2 + 0.1 pJ


def test_a_machine_names_unsupported_operands() -> None:
    problem = MatmulProblem(1, 1024, 1000)
    with pytest.raises(OptionError, match="do not multiply int8"):
        pimflow.layer(problem, operand="int8")
    with pytest.raises(OptionError, match="do not multiply int4"):
        pimflow.layer(problem, operand="int4", target=INT8)
    with pytest.raises(pimflow.PimflowError, match=r"use the table \[pim.int8\]"):
        pimflow.override("pimflow", {"pim.operand": "int8"})


def test_byte_traces_take_the_time_of_their_programs(tmp_path: Path) -> None:
    compiled = pimflow.compile(OPERATORS["MatMulInteger"], target=INT8, policy="pim", use_cache=False)
    (node,) = (node for node in compiled.graph.nodes if node.device == "pim")
    (program,) = compiled.programs.values()
    unit = compiled.machine.costs.units["pim"]
    cost = unit.cost(unit.work(compiled.graph, node), node.placement.choice or "")
    assert isinstance(cost, PimCost)
    busy = max(range(len(cost.channels)), key=lambda channel: cost.channels[channel].cycles)
    path = tmp_path / "channel.pim"
    path.write_text("".join(unit.trace(program, busy)), encoding="utf-8")
    assert pimflow.simulate(path, target=INT8, operand="int8").records()[0]["cycles"] == cost.channels[busy].cycles
    with pytest.raises(CommandOrderError, match="up to element 599, outside of 0 to 511"):
        pimflow.simulate(path, target=INT8)


def test_the_operand_type_is_reported(tmp_path: Path) -> None:
    compiled = pimflow.compile(qdq_model(), target=INT8, policy="pim", use_cache=False)
    folder = compiled.save(tmp_path / "out")
    assert "int8 operands, " in pimflow.explain(folder, "two").text()
    before = pimflow.compile(qdq_model(), target=own_operands(INT8), policy="pim", use_cache=False)
    assert "int8 operands" in pimflow.diff(before, compiled).text()
    document = json.loads(json.dumps(pimflow.layer(MatmulProblem(1, 64, 64), operand="int8", target=INT8).as_json()))
    assert document["operand"] == "int8"


def test_eight_bit_energies_do_not_change_mappings() -> None:
    pim = INT8.pim
    assert pim.int8 is not None
    dearer = replace(pim, int8=replace(pim.int8, multiply_pj=9.0, add_pj=9.0))
    wider = replace(pim, int8=replace(pim.int8, result_bytes=2 * pim.int8.result_bytes))
    kept = NewtonBackend("pim", pim).records_key
    assert NewtonBackend("pim", dearer).records_key == kept
    assert NewtonBackend("pim", wider).records_key != kept

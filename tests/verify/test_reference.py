"""Nodes in the precision of their units: the reference for programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

import pimflow
from pimflow.codegen.newton import PimProgram
from pimflow.compiled import CompiledModel
from pimflow.ir import Placement
from pimflow.runtime.execute.nodes import run_nodes
from pimflow.runtime.execute.ort import random_inputs, run_graph
from pimflow.runtime.newton.values import round_to
from pimflow.verify.reference import JITTER, CheckedUnits, UnitReference
from support.onnx_models import model_of, single
from support.values import relative_error

WEIGHTS = np.random.default_rng(1).standard_normal((48, 32)).astype(np.float32)


def compiled_product() -> CompiledModel:
    return pimflow.compile(single("MatMul", (4, 48), [WEIGHTS]), policy="pim", use_cache=False)


def test_operands_are_rounded_and_sums_are_not() -> None:
    compiled = compiled_product()
    feeds = random_inputs(compiled.graph, 0)
    for operand in ("fp16", "bf16", "fp32"):
        reference = UnitReference(compiled.graph, compiled.machine.costs.units, operand)
        result = run_nodes(compiled.graph, feeds, reference)["y"]
        exact = round_to(feeds["x"], operand).astype(np.float64) @ round_to(WEIGHTS, operand).astype(np.float64)
        assert relative_error(result, exact) < 1e-6
    assert relative_error(run_nodes(compiled.graph, feeds)["y"], run_graph(compiled.graph, feeds)["y"]) < 1e-6


def test_a_jitter_stays_within_its_share_of_the_bound() -> None:
    compiled = compiled_product()
    feeds = random_inputs(compiled.graph, 0)
    units = compiled.machine.costs.units
    still, moved = (
        run_nodes(compiled.graph, feeds, UnitReference(compiled.graph, units, None, jitter_seed=seed))["y"]
        for seed in (None, 0)
    )
    assert 1e-6 < relative_error(moved, still) <= 0.1 * 2e-5 * 1.01


@pytest.mark.parametrize("on_unit", [True, False])
def test_jitter_of_small_sums_stays_small(on_unit: bool) -> None:
    """The power of a quiet band stays positive, because the model takes its logarithm."""
    compiled = compiled_product()
    units = compiled.machine.costs.units if on_unit else {}
    loudness = np.array([[1.0], [0.1], [0.01], [1e-3]], np.float32)
    powers = {"x": loudness * np.abs(random_inputs(compiled.graph, 0)["x"])}
    graph = compiled.graph.replace(constants={name: np.abs(of) for name, of in compiled.graph.constants.items()})
    references = [UnitReference(graph, units, "fp16", jitter_seed=seed, sums_rtol=0.1) for seed in (None, 0)]
    still, moved = (run_nodes(graph, powers, reference)["y"].astype(np.float64) for reference in references)
    allowed = references[0].allowed(graph.nodes[0], still.max()) / still.max()
    shares = (np.abs(moved - still) / still).max(axis=1) / allowed
    assert np.all((shares > 0.5 * JITTER) & (shares < 1.01 * JITTER)), shares


@pytest.mark.parametrize(("size", "is_right"), [(1.0, True), (2e-7, True), (1.0, False), (2e-7, False)])
def test_half_latches_may_be_off_by_subnormal_steps(size: float, is_right: bool) -> None:
    """64 additions, off by up to 2**-25 each; a stream that stops early is off by the whole rest."""
    weights = np.random.default_rng(2).standard_normal((1024, 16)).astype(np.float32)
    compiled = pimflow.compile(single("MatMul", (4, 1024), [weights]), target="hbm-pim", policy="pim", use_cache=False)
    reference = UnitReference(compiled.graph, compiled.machine.costs.units, None)
    units = CheckedUnits(reference, compiled.programs, lambda text: None)
    ((name, program),) = compiled.programs.items()
    assert isinstance(program, PimProgram)
    cut = program.with_streams(tuple(replace(stream, body=stream.body[:-1]) for stream in program.streams))
    units.programs = {name: program if is_right else cut}
    units(compiled.graph.node(name), [np.float32(size) * random_inputs(compiled.graph, 0)["x"], weights])
    assert bool(units.wrong) != is_right
    assert (units.largest > 0.01) == (size < 1 or not is_right), "why a share of the result is no bound"


def test_scalar_nodes_on_a_unit_are_perturbed_too() -> None:
    """Scales of quantised models are multiplied on a CPU, say."""
    model = model_of([helper.make_node("Mul", ["a", "b"], ["y"])], {"a": (), "b": ()})
    compiled = pimflow.compile(model, target="pimflow-cpu", policy="gpu", use_cache=False)
    nodes = [replace(node, placement=Placement("cpu")) for node in compiled.graph.nodes]
    graph, units = compiled.graph.replace(nodes=nodes), compiled.machine.costs.units
    feeds = {name: np.array(-3.0, np.float32) for name in graph.inputs}
    moved = run_nodes(graph, feeds, UnitReference(graph, units, None, jitter_seed=0))["y"]
    assert moved.shape == ()
    assert moved == pytest.approx(9, rel=1e-3)


def test_a_program_is_compared_with_its_node_on_its_own_operands() -> None:
    compiled = compiled_product()
    (name,) = compiled.programs
    units = CheckedUnits(
        UnitReference(compiled.graph, compiled.machine.costs.units, None), compiled.programs, lambda text: None
    )
    node = compiled.graph.node(name)
    operands = [random_inputs(compiled.graph, 0)["x"], WEIGHTS]
    units(node, operands)
    assert units.checked == 1
    assert not units.wrong
    assert 0 <= units.largest < 1e-6
    units.reference = UnitReference(compiled.graph, compiled.machine.costs.units, "fp32")  # with other operands
    units(node, operands)
    assert list(units.wrong) == [name]

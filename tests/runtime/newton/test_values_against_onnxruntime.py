"""Values of the streams against ONNX Runtime, for random layers, machines and mappings."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton import CommandCounts, PimProgram, count_commands, lower, newton_mappings
from pimflow.codegen.newton.mapping import Mapping
from pimflow.runtime.newton.autotune.space import candidates
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.values import execute
from pimflow.targets import PimSpec, load_target
from support.newton.problems import PIM, checked_error, chosen, convolutions, machines, problems, reference, tensors


def check(problem: MatrixProblem, mapping: Mapping, pim: PimSpec, seed: int = 0) -> None:
    program = lower(problem, mapping, pim)
    assert isinstance(program, PimProgram), program
    commands = sum((count_commands(stream.body) for stream in program.streams), CommandCounts())
    assert commands.comp >= program.shape.least_comps
    source, weights = tensors(problem, seed)
    result, expected = execute(program, source, weights, "fp32", "fp32"), reference(problem, source, weights)
    assert checked_error(result, expected) < 0.1
    of_terms = np.abs(reference(problem, np.abs(source), np.abs(weights))).max()  # a result may be a sum that cancels
    assert np.abs(result - expected.reshape(result.shape)).max() <= 1e-6 * of_terms


@settings(max_examples=60)
@given(problems(), machines(), st.integers(0, 99))
def test_newton_mappings(problem: MatrixProblem, pim: PimSpec, pick: int) -> None:
    check(problem, newton_mappings(problem, pim, "newton+")[0], pim)
    mappings = newton_mappings(problem, pim, "newton++")
    check(problem, mappings[pick % len(mappings)], pim)


@settings(max_examples=50)
@given(problems(), machines(), st.sampled_from(["artifact", "strict"]), st.integers(0, 99))
def test_mappings_of_the_space(problem: MatrixProblem, pim: PimSpec, timing: str, pick: int) -> None:
    space = candidates(problem, timing_profile(pim, timing))
    check(problem, space[0].mapping, pim)
    check(problem, space[pick % len(space)].mapping, pim)


@settings(max_examples=20)
@given(convolutions())
def test_chosen_mappings_on_the_default_machine(problem: ConvProblem) -> None:
    target = load_target("pimflow")
    for policy in ("newton+", "newton++", "auto"):
        cost = chosen(problem, target, policy)
        check(problem, cost.mapping, PIM)
        assert cost.commands.comp >= -(-problem.depth // 16) * problem.pixels * problem.groups


def test_every_loop_order_occurs_in_the_space() -> None:
    problem = ConvProblem(1, 80, 40, 5, 5, (3, 3), (1, 1), (1, 1, 1, 1))
    orders = {entry.mapping.order for entry in candidates(problem, timing_profile(PIM, "artifact"))}
    assert orders == {"fills", "rows", "latch"}


def test_layers_with_special_shapes() -> None:
    layers = (
        ConvProblem(1, 672, 28, 1, 1, (1, 1)),  # squeeze
        ConvProblem(1, 28, 672, 1, 1, (1, 1)),  # and excitation
        ConvProblem(1, 3, 32, 16, 16, (3, 3), (2, 2), (0, 0, 1, 1)),  # asymmetric padding
        ConvProblem(1, 8, 8, 7, 7, (2, 4), (1, 2), (1, 1, 0, 2), (2, 1)),  # even kernel
        MatmulProblem(1, 1280, 1000),
        MatmulProblem(10, 64, 10, 4, batched_rhs=True, constant_rhs=False),
    )
    for problem in layers:
        for policy in ("newton+", "newton++", "auto"):
            check(problem, chosen(problem, load_target("pimflow"), policy).mapping, PIM)


def test_narrow_operands_err_by_their_precision() -> None:
    problem = ConvProblem(1, 64, 48, 6, 6, (3, 3), (1, 1), (1, 1, 1, 1))
    program = lower(problem, newton_mappings(problem, PIM, "newton++")[0], PIM)
    assert isinstance(program, PimProgram)
    source, weights = tensors(problem, 3)
    expected = reference(problem, source, weights)
    errors = {
        (operand, accumulator): checked_error(execute(program, source, weights, operand, accumulator), expected)
        for operand in ("fp32", "fp16", "bf16")
        for accumulator in ("fp32", "fp16")
    }
    assert errors["fp32", "fp32"] < 1e-6 < errors["fp16", "fp32"] < 2**-10
    assert errors["fp16", "fp32"] < errors["bf16", "fp32"] < 2**-7
    assert errors["fp16", "fp32"] < errors["fp16", "fp16"] < 2**-7
    default = execute(program, source, weights)
    assert np.array_equal(default, execute(program, source, weights, "fp16", "fp32"))

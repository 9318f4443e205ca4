"""The cost of a problem on PIM: the parts of its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.codegen.work import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.runtime.newton.cost import PimCost
from pimflow.targets import load_target

PROBLEMS = (ConvProblem(1, 32, 64, 14, 14, (1, 1)), MatmulProblem(4, 64, 32, constant_rhs=False))


def cost_of(problem: MatrixProblem, target: str, launch_us: float) -> PimCost:
    spec = replace(load_target(target).pim, launch_us=launch_us)
    cost = NewtonBackend("pim", spec).cost(problem, "newton++")
    assert isinstance(cost, PimCost)
    return cost


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("target", ["pimflow", "hbm-pim"])
def test_time_is_launch_and_placement_and_streams(problem: MatrixProblem, target: str) -> None:
    free, paid = cost_of(problem, target, 0.0), cost_of(problem, target, 2.5)
    clock = load_target(target).pim.clock_mhz
    assert free.time_us == pytest.approx((free.cycles + free.placement_cycles) / clock, rel=1e-12)
    assert paid.time_us == pytest.approx(free.time_us + 2.5, rel=1e-12)
    assert (paid.cycles, paid.energy_mj, paid.launch_us) == (free.cycles, free.energy_mj, 2.5)


def test_real_machines_pay_for_a_launch_as_their_gpu_does() -> None:
    for name in ("hbm-pim", "aim-gddr6"):
        target = load_target(name)
        assert target.pim.launch_us == pytest.approx(target.gpu.launch_cycles / target.gpu.clock_mhz, rel=1e-2)
    assert load_target("pimflow").pim.launch_us == 0.0, "as published"

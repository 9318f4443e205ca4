"""What a problem costs on PIM: the parts of its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pimflow.codegen.work import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.ir import Refusal
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.layer import NewtonLayer
from pimflow.targets import load_target

PROBLEMS = (ConvProblem(1, 32, 64, 14, 14, (1, 1)), MatmulProblem(4, 64, 32, constant_rhs=False))

LAYERS: tuple[MatrixProblem, ...] = (
    *PROBLEMS,
    ConvProblem(1, 3, 32, 9, 60, (3, 3), (2, 2), (0, 1, 1, 1)),
    ConvProblem(1, 64, 256, 14, 14, (1, 1)),
    ConvProblem(2, 1, 5, 11, 13, (1, 1), (1, 2)),
    ConvProblem(1, 64, 64, 7, 28, (3, 3), (1, 1), (1, 1, 0, 1), groups=2),
    ConvProblem(1, 512, 512, 7, 7, (3, 3), (1, 1), (1, 1, 1, 1)),
    MatmulProblem(1, 1280, 1000),
    MatmulProblem(64, 768, 768),
    MatmulProblem(3, 1, 1),
    MatmulProblem(32, 64, 32, 12, batched_rhs=True, constant_rhs=False),
)


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


@pytest.mark.parametrize("timing", ["strict", "artifact"])
@pytest.mark.parametrize("target", ["pimflow", "hbm-pim", "aim-gddr6"])
def test_no_mapping_is_faster_than_the_bound(target: str, timing: str) -> None:
    spec = load_target(target).pim
    backend = NewtonBackend("pim", replace(spec, timing=replace(spec.timing, default=timing)))
    told = []
    for problem in LAYERS:
        for choice in backend.choices:
            cost = backend.cost(problem, choice)
            assert not isinstance(cost, Refusal)
            told.append(backend.least_us(problem, choice) / cost.time_us)
    assert max(told) <= 1
    assert timing != "strict" or max(told) > 0.85, "near enough to leave work out of the running"


@pytest.mark.parametrize(
    ("target", "timing"), [("pimflow", "strict"), ("pimflow", "artifact"), ("aim-gddr6", "strict")]
)
def test_a_layer_says_how_near_it_is_to_its_bounds(target: str, timing: str) -> None:
    """No layer is below a bound, and some are near."""
    spec = load_target(target).pim
    backend = NewtonBackend("pim", replace(spec, timing=replace(spec.timing, default=timing)))
    within = {}
    for problem in LAYERS:
        told = backend.explain(problem, "auto")
        assert isinstance(told, NewtonLayer)
        found = told.as_json()
        assert found["within"] == pytest.approx(found["pim_cycles"] / max(found["bounds"].values()))
        assert found["within"] >= 1, problem
        assert found["bounds"]["interrupted"] >= found["bounds"]["comp"] > 0
        assert ("bus" in found["bounds"]) == (timing == "strict")
        within[problem] = found["within"]
    assert min(within.values()) < (1.4 if timing == "strict" else 2.1), "near enough to tell something"


def test_the_bus_carries_what_is_read_once_and_every_result() -> None:
    """A kernel of 1 with strides of 2 reads a quarter: 4 x 9 x 2 elements; 9 pixels in 2 tiles return 16 fp32 each."""
    problem, spec = ConvProblem(1, 4, 32, 5, 5, (1, 1), (2, 2)), load_target("pimflow").pim
    told = NewtonBackend("pim", spec).explain(problem, "auto")
    assert isinstance(told, NewtonLayer)
    assert told.bounds.bus == pytest.approx((4 * 9 * 2 / 4 / 32 + 9 * 2 / 16 * 2) * 2)


def test_real_machines_pay_for_a_launch_as_their_gpu_does() -> None:
    for name in ("hbm-pim", "aim-gddr6"):
        target = load_target(name)
        assert target.pim.launch_us == pytest.approx(target.gpu.launch_cycles / target.gpu.clock_mhz, rel=1e-2)
    assert load_target("pimflow").pim.launch_us == 0.0, "as published"

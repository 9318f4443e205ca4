"""Lower bounds on the time of any mapping of a layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from pimflow.codegen.newton import newton_mappings
from pimflow.codegen.newton.lowering import outline
from pimflow.codegen.work import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune.space import candidates
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.runtime.newton.bounds import lower_bound_us
from pimflow.runtime.newton.cost import price
from pimflow.runtime.newton.layer import NewtonLayer
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.timing.streams import StreamTimer
from pimflow.targets import PimSpec, load_target
from support.newton.problems import problems, timed_machines
from support.newton.timing import time_classes

LAYERS: tuple[MatrixProblem, ...] = (
    ConvProblem(1, 32, 64, 14, 14, (1, 1)),
    MatmulProblem(4, 64, 32, constant_rhs=False),
    ConvProblem(1, 3, 32, 9, 60, (3, 3), (2, 2), (0, 1, 1, 1)),
    ConvProblem(1, 64, 256, 14, 14, (1, 1)),
    ConvProblem(1, 32, 16, 112, 112, (1, 1)),
    ConvProblem(2, 1, 5, 11, 13, (1, 1), (1, 2)),
    ConvProblem(1, 64, 64, 7, 28, (3, 3), (1, 1), (1, 1, 0, 1), groups=2),
    ConvProblem(1, 512, 512, 7, 7, (3, 3), (1, 1), (1, 1, 1, 1)),
    MatmulProblem(1, 1280, 1000),
    MatmulProblem(64, 768, 768),
    MatmulProblem(3, 1, 1),
    MatmulProblem(32, 64, 32, 12, batched_rhs=True, constant_rhs=False),
)


@settings(max_examples=40, print_blob=True)
@given(problem=problems(), pim=timed_machines())
def test_no_mapping_is_faster_than_the_bound(problem: MatrixProblem, pim: PimSpec) -> None:
    profile = timing_profile(pim, "strict")
    timer = StreamTimer(profile)
    entries = candidates(problem, profile)
    mappings = [entry.mapping for entry in entries[:: 1 + len(entries) // 12]]
    for mapping in (*mappings, *newton_mappings(problem, pim, "newton++")[:3]):
        outlined = outline(problem, mapping, pim)
        if isinstance(outlined, Refusal):
            continue
        program = outlined.program()
        cost = price(program, time_classes(program, timer), profile)
        assert lower_bound_us(problem, profile) <= cost.time_us * (1 + 1e-12), mapping


@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem(1, 16, 64, 3, 8, (3, 3), (1, 1), (1, 1, 0, 1)),
        ConvProblem(1, 16, 64, 6, 15, (3, 3), (1, 1), (0, 1, 0, 1)),
        ConvProblem(1, 16, 64, 7, 16, (5, 5), (2, 2), (0, 2, 0, 2)),
        MatmulProblem(33, 64, 256),
    ],
)
def test_a_last_fill_of_a_few_slots_is_not_a_full_one(problem: MatrixProblem) -> None:
    """A little more work than a fill has room for needs a second one, but not for as many slots."""
    for target in ("pimflow", "turing-pim"):
        backend = NewtonBackend("pim", load_target(target).pim)
        time_us = backend.time_us(problem, "auto")
        assert not isinstance(time_us, Refusal)
        assert 0.7 * time_us < backend.lower_bound_us(problem, "auto") <= time_us


@pytest.mark.parametrize("timing", ["strict", "artifact"])
@pytest.mark.parametrize("target", ["pimflow", "hbm-pim", "aim-gddr6"])
def test_the_chosen_mapping_is_near_the_bound(target: str, timing: str) -> None:
    """Near enough to skip work."""
    spec = load_target(target).pim
    backend = NewtonBackend("pim", replace(spec, timing=replace(spec.timing, default=timing)))
    told = []
    for problem in LAYERS:
        for choice in backend.choices:
            cost = backend.cost(problem, choice)
            assert not isinstance(cost, Refusal)
            told.append(backend.lower_bound_us(problem, choice) / cost.time_us)
    assert max(told) <= 1
    assert timing != "strict" or max(told) > 0.93


@pytest.mark.parametrize(
    ("target", "timing"), [("pimflow", "strict"), ("pimflow", "artifact"), ("aim-gddr6", "strict")]
)
def test_a_layer_reports_its_distance_to_its_bounds(target: str, timing: str) -> None:
    """No layer is below a bound, and some are near it."""
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
    assert min(within.values()) < (1.1 if timing == "strict" else 2.1), "near enough to be useful"


def test_the_bus_carries_inputs_once_and_every_result() -> None:
    """A 1x1 kernel with stride 2 reads a quarter: 4 x 9 x 2 elements; 9 pixels in 2 tiles return 16 fp32 each."""
    problem, spec = ConvProblem(1, 4, 32, 5, 5, (1, 1), (2, 2)), load_target("pimflow").pim
    told = NewtonBackend("pim", spec).explain(problem, "auto")
    assert isinstance(told, NewtonLayer)
    assert told.bounds.bus == pytest.approx((4 * 9 * 2 / 4 / 32 + 9 * 2 / 16 * 2) * 2)


def test_alternating_fills_delay_comps() -> None:
    """32 > 16 channels, 112 x 112: a channel has 1,568 COMPs and 784 READRES, its group 6,272 slots in 196 fills.

    3 cycles per COMP, 2 per slot, 7 in addition for a fill, 3 for each READRES that does not follow a fill; 12
    refreshes of 105.
    """
    problem, spec = ConvProblem(1, 32, 16, 112, 112, (1, 1)), load_target("pimflow").pim
    told = NewtonBackend("pim", spec).explain(problem, "auto")
    assert isinstance(told, NewtonLayer)
    alone = 1568 * 3 + 6272 * 2 + 196 * 7
    assert told.bounds.interrupted == alone + 12 * 105 + (784 - 1 - 196 - 12) * 3
    assert (alone + 587 * 3) // 1662 == 12

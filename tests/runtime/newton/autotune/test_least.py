"""Lower bounds on the time of mappings, known before they are laid out."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pimflow.codegen.newton import newton_mappings
from pimflow.codegen.newton.im2col import geometry
from pimflow.codegen.newton.lowering import outline
from pimflow.codegen.work import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.autotune.least import least_cycles
from pimflow.runtime.newton.autotune.space import candidates
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.profiles.strict import StrictProfile
from pimflow.runtime.newton.timing.streams import StreamTimer
from pimflow.targets import PimSpec, load_target
from support.newton.problems import problems, timed_machines

PIM = load_target("pimflow").pim


def shares_of_least(problem: MatrixProblem, pim: PimSpec, every: int = 1) -> list[float]:
    """The lower bound on the time of each mapping of a problem, relative to its time."""
    profile, shape = timing_profile(pim, "strict"), geometry(problem, pim)
    timer, costs = StreamTimer(profile), profile.least_visits()
    found = []
    mappings = [entry.mapping for entry in candidates(problem, profile)[::every]]
    for mapping in (*mappings, *newton_mappings(problem, pim, "newton++"), *newton_mappings(problem, pim, "newton+")):
        outlined = outline(problem, mapping, pim)
        if costs is None or isinstance(outlined, Refusal):
            continue
        taken = max(timer.cycles_of(outlined, channels[0]).cycles for channels in outlined.channel_classes)
        found.append(least_cycles(mapping, shape, costs, float("inf")) / taken)
        assert found[-1] <= 1, mapping
    return found


@settings(max_examples=40, print_blob=True)
@given(problem=problems(), pim=timed_machines(), every=st.integers(3, 9))
def test_no_mapping_is_faster(problem: MatrixProblem, pim: PimSpec, every: int) -> None:
    shares_of_least(problem, pim, every)


class Unbounded(StrictProfile):
    """A profile without lower bounds."""

    def least_visits(self) -> None:
        """Nothing is known."""


@settings(max_examples=6, print_blob=True)
@given(problem=problems(), pim=st.one_of(st.just(PIM), timed_machines()))
@example(problem=ConvProblem(1, 20, 1, 11, 5, (4, 4), (2, 1), (0, 0, 1, 0)), pim=PIM)
def test_pruning_by_bounds_loses_nothing(problem: MatrixProblem, pim: PimSpec) -> None:
    bounded, timed = MappingSearch(StrictProfile(pim)), MappingSearch(Unbounded(pim))
    assert bounded.choose(problem, "auto") == timed.choose(problem, "auto")


def test_bounds_are_near_the_mappings() -> None:
    """Near enough that most mappings need no exact timing."""
    for problem in (ConvProblem(1, 96, 24, 28, 56, (1, 1)), MatmulProblem(64, 768, 768)):
        told = sorted(share for share in shares_of_least(problem, PIM) if share)
        assert told[len(told) // 2] > 0.96


def test_bounds_are_near_latching_mappings() -> None:
    problem = ConvProblem(1, 640, 128, 2, 14, (1, 1))
    assert "latch" in {entry.mapping.order for entry in candidates(problem, timing_profile(PIM, "strict"))}
    assert min(shares_of_least(problem, PIM)) > 0.6

"""What fits into the memories of units: the cheapest cover that does, and where every weight lies."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.codegen.newton import PimProgram
from pimflow.codegen.newton.weight_layout import WeightLayout
from pimflow.compiled import CompiledModel
from pimflow.compiler import compile
from pimflow.ir import Builder, Gemm, Graph
from pimflow.options import Options
from pimflow.runtime.costs import CostModel
from pimflow.search import solver
from pimflow.search.capacity import Fitting, Places, cover_that_fits
from pimflow.search.chain import Interval
from pimflow.search.ilp import status_name
from pimflow.search.solver import leaves_host, price_space
from pimflow.targets import Target, load_target

Load = tuple[int, ...]
DEVICES = ("pim", "dpu")


@st.composite
def spaces(draw: st.DrawFn) -> tuple[int, list[Interval[Load]], dict[str, int]]:
    """Positions that can be covered without memory, and candidates that are cheaper and take some."""
    n = draw(st.integers(1, 7))
    memories = draw(st.integers(1, 2))
    nothing = (0,) * memories
    found = [Interval(index, index + 1, float(draw(st.integers(8, 30))), nothing) for index in range(n)]
    for _ in range(draw(st.integers(0, 18))):
        start = draw(st.integers(0, n - 1))
        stop = draw(st.integers(start + 1, min(n, start + 3)))
        load = tuple(draw(st.integers(0, 9)) for _ in range(memories))
        found.append(Interval(start, stop, float(draw(st.integers(0, 25))), load))
    return n, found, {device: draw(st.integers(1, 25)) for device in DEVICES[:memories]}


def by_integer_program(n: int, intervals: list[Interval[Load]], capacities: dict[str, int]) -> float:
    """The optimum, by a solver that shares nothing with the one that is tested."""
    problem = pulp.LpProblem("fit", pulp.LpMinimize)
    new_variable = getattr(problem, "add_variable", pulp.LpVariable)  # PuLP before 3.3 has only the class
    take = [new_variable(f"x{index}", cat=pulp.LpBinary) for index in range(len(intervals))]
    problem += pulp.lpSum(x * interval.cost for x, interval in zip(take, intervals, strict=True))
    for position in range(n):
        over = [x for x, item in zip(take, intervals, strict=True) if item.start <= position < item.stop]
        problem += pulp.lpSum(over) == 1
    for index, capacity in enumerate(capacities.values()):
        problem += pulp.lpSum(x * item.payload[index] for x, item in zip(take, intervals, strict=True)) <= capacity
    assert status_name(problem.solve(pulp.HiGHS(msg=False, gapRel=0))) == "Optimal"
    return float(pulp.value(problem.objective) or 0.0)


def fit(
    n: int, intervals: list[Interval[Load]], capacities: dict[str, int], most_labels: int = 10**6
) -> Fitting[Load] | None:
    return cover_that_fits(n, intervals, lambda load: dict(zip(capacities, load, strict=True)), capacities, most_labels)


def assert_sound(found: Fitting[Load], n: int, capacities: dict[str, int]) -> None:
    assert [position for item in found.chosen for position in range(item.start, item.stop)] == list(range(n))
    assert sum(item.cost for item in found.chosen) == pytest.approx(found.cost)
    for index, capacity in enumerate(capacities.values()):
        assert sum(item.payload[index] for item in found.chosen) <= capacity


@given(spaces())
@settings(max_examples=60, deadline=None)
def test_it_is_the_integer_programs_optimum(space: tuple[int, list[Interval[Load]], dict[str, int]]) -> None:
    n, intervals, capacities = space
    found = fit(n, intervals, capacities)
    assert found is not None
    assert_sound(found, n, capacities)
    assert found.cost == pytest.approx(by_integer_program(n, intervals, capacities))
    assert found.bound == pytest.approx(found.cost)


@given(spaces())
@settings(max_examples=60, deadline=None)
def test_cut_short_it_still_fits_and_its_bound_holds(space: tuple[int, list[Interval[Load]], dict[str, int]]) -> None:
    n, intervals, capacities = space
    found, best = fit(n, intervals, capacities, most_labels=0), fit(n, intervals, capacities)
    assert found is not None
    assert best is not None
    assert_sound(found, n, capacities)
    assert found.bound <= best.cost + 1e-9
    assert found.cost >= best.cost - 1e-9


def test_nothing_fits_where_everything_needs_more() -> None:
    assert fit(1, [Interval(0, 1, 1.0, (5,))], {"pim": 4}) is None


def with_rows(rows: int) -> Target:
    target = load_target("pimflow")
    return target.with_units(pim=replace(target.pim, rows=rows))


def compiled(model: str, policy: str, rows: int) -> CompiledModel:
    return compile(model, target=with_rows(rows), policy=policy, use_cache=False)


def placed_weights(model: CompiledModel) -> dict[tuple[str, int], WeightLayout]:
    """The layouts by weights and first row; parts that share rows have to arrange the weights alike."""
    found: dict[tuple[str, int], WeightLayout] = {}
    for name, program in model.programs.items():
        assert isinstance(program, PimProgram)
        key = (model.graph.node(name).inputs[1], program.first_row)
        assert found.setdefault(key, program.layout) == program.layout
    return found


@pytest.mark.parametrize("policy", ["pimflow", "auto"])
def test_weights_of_all_kernels_lie_side_by_side(policy: str) -> None:
    model = compiled("zoo:mobilenet-v2", policy, 16384)
    spans = sorted((first, first + layout.most_rows) for (_, first), layout in placed_weights(model).items())
    assert len(spans) > 10
    assert all(stop == start for (_, stop), (start, _) in pairwise(spans)), "no overlap, no gap"
    (storage,) = model.plan.stored
    assert (storage.device, storage.used, storage.bound) == ("pim", spans[-1][1], 16384)
    assert model.plan.limit is None


def chain_of_products(count: int) -> Graph:
    build = Builder()
    value = build.input(4, 512)
    for _ in range(count):
        value = build.op(Gemm(), value, build.weights(512, 512))
    return build.graph(value)


def test_a_model_that_does_not_fit_gets_the_best_plan_that_does() -> None:
    free, tight = compiled("zoo:mobilenet-v2", "pimflow", 16384), compiled("zoo:mobilenet-v2", "pimflow", 40)
    (needed,), (used,) = free.plan.stored, tight.plan.stored
    assert needed.used > 40 >= used.used > 0
    assert tight.plan.limit is not None
    assert tight.plan.limit.unlimited_us == pytest.approx(free.plan.predicted_us)
    assert free.plan.predicted_us < tight.plan.predicted_us < free.plan.baseline_us
    assert tight.plan.limit.bound_us == pytest.approx(tight.plan.predicted_us), "the search ended with an optimum"
    assert tight.timeline.makespan_us == pytest.approx(tight.plan.predicted_us, rel=1e-9)
    assert f"{used.used} of 40 rows of every bank" in tight.summary()
    assert f"what would take {free.plan.predicted_us:,.1f} us does not fit" in tight.summary()
    assert "rows of every bank" in free.summary()
    assert "does not fit" not in free.summary()


def test_what_time_was_left_for_adds_to_what_was_looked_at_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second search, in which nothing is pruned, may end before it comes to any candidate that pays."""

    def cut_short(*given: Any, **how: Any) -> solver.PricedSpace:
        space = price_space(*given, **how)
        certain = [interval for interval in space.intervals if not leaves_host(interval.payload[0], space.host)]
        return space if how.get("prune", True) else replace(space, intervals=tuple(certain), complete=False)

    monkeypatch.setattr(solver, "price_space", cut_short)
    graph = chain_of_products(6)
    free, tight = (
        solver.solve(graph, Options(target, policy="newton++", use_cache=False), costs=CostModel(target))
        for target in (with_rows(16384), with_rows(6))
    )
    (needed,), (used,) = free.stored, tight.stored
    assert needed.used > 6 >= used.used > 0
    assert tight.limit is not None
    assert not tight.complete
    assert tight.limit.bound_us <= free.predicted_us < tight.predicted_us < tight.baseline_us


def test_nodes_that_share_weights_do_not_share_rows() -> None:
    """One reads them as they are, the other transposed: what lies in the banks differs, though the mappings do not."""
    build = Builder()
    weights = build.weights(64, 64)
    x = build.input(4, 64)
    first = build.op(Gemm(), x, weights, name="plain")
    graph = build.graph(first, build.op(Gemm(trans_b=True), x, weights, name="transposed"))
    placed = graph.replace(nodes=[node.placed(device="pim", choice="newton++") for node in graph.nodes])
    places = Places(placed, CostModel(load_target("pimflow")))
    assert places.of(placed.node("plain")) == places.of(placed.node("plain")) == 0
    assert places.of(placed.node("transposed")) == places.used["pim"] // 2 > 0


def test_many_partial_covers_are_looked_at_in_time_that_grows_with_their_number() -> None:
    """A knapsack of 40 distinct pairs: its labels are many, and every one is compared with one other."""
    n = 40
    found: list[Interval[Load]] = [Interval(place, place + 1, 1000.0 + place, (0,)) for place in range(n)]
    found += [Interval(place, place + 1, 1.0 * (place * 37 % 101), (100 + place * 53 % 97,)) for place in range(n)]
    best = fit(n, found, {"pim": 2000})
    assert best is not None
    assert_sound(best, n, {"pim": 2000})
    assert best.bound == pytest.approx(best.cost)
    assert best.cost == pytest.approx(by_integer_program(n, found, {"pim": 2000}))


def test_traces_name_the_rows_where_the_weights_lie() -> None:
    model = compiled("zoo:toy", "pim", 16384)
    unit = model.machine.costs.units["pim"]
    firsts = set()
    for program in model.programs.values():
        lines = [line for line in unit.trace(program, 0) if "G_ACT" in line]
        rows = {int(line.split()[0], 16) >> 11 & (1 << 14) - 1 for line in lines if re.match("0x", line)}
        if rows:
            assert program.first_row <= min(rows) <= max(rows) < program.first_row + program.rows
            firsts.add(program.first_row)
    assert len(firsts) > 1

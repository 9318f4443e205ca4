"""The memories of units: plans that fit, and the place of every weight."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from pimflow.codegen.newton import PimProgram
from pimflow.codegen.newton.weight_layout import WeightLayout
from pimflow.compiled import CompiledModel
from pimflow.compiler import compile
from pimflow.ir import Builder, Gemm, Graph
from pimflow.options import Options
from pimflow.runtime.costs import CostModel
from pimflow.search import solver
from pimflow.search.capacity import Places
from pimflow.search.policy import find_policy
from pimflow.search.price_cache import PriceCache
from pimflow.search.priced_space import PricedSpace, price_space
from pimflow.targets import Target, load_target
from support.graphs import inverted_residuals


def with_rows(rows: int) -> Target:
    target = load_target("pimflow")
    return target.with_units(pim=replace(target.pim, rows=rows))


def compiled(model: str, policy: str, rows: int) -> CompiledModel:
    return compile(model, target=with_rows(rows), policy=policy, use_cache=False)


def placed_weights(model: CompiledModel) -> dict[tuple[str, int], WeightLayout]:
    """The layouts by weights and first row; parts that share rows must arrange the weights in the same way."""
    found: dict[tuple[str, int], WeightLayout] = {}
    for name, program in model.programs.items():
        assert isinstance(program, PimProgram)
        key = (model.graph.node(name).inputs[1], program.first_row)
        assert found.setdefault(key, program.layout) == program.layout
    return found


@pytest.mark.parametrize("policy", ["pimflow", "auto"])
def test_weights_of_all_kernels_do_not_overlap(policy: str) -> None:
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
    assert f"the best plan, {free.plan.predicted_us:,.1f} us, does not fit" in tight.summary()
    assert "rows of every bank" in free.summary()
    assert "does not fit" not in free.summary()


def test_a_plan_that_fits_is_found_without_any_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found among the candidates that were priced for the best plan; unpriced ones are in no plan."""

    def too_late(*given: Any, **how: Any) -> PricedSpace:
        space = price_space(*given, **how)
        space.search.out_of_time = True
        monkeypatch.setattr(space.search, "has_time", lambda: False)
        return space

    monkeypatch.setattr(solver, "price_space", too_late)
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
    """One reads them as they are, the other transposed: the banks differ, though the mappings are equal."""
    build = Builder()
    weights = build.weights(64, 64)
    x = build.input(4, 64)
    first = build.op(Gemm(), x, weights, name="plain")
    graph = build.graph(first, build.op(Gemm(trans_b=True), x, weights, name="transposed"))
    placed = graph.replace(nodes=[node.placed(device="pim", choice="newton++") for node in graph.nodes])
    places = Places(placed, CostModel(load_target("pimflow")))
    assert places.of(placed.node("plain")) == places.of(placed.node("plain")) == 0
    assert places.of(placed.node("transposed")) == places.used["pim"] // 2 > 0


@pytest.mark.parametrize("graph", [chain_of_products(2), inverted_residuals(1, 7)], ids=["products", "convolutions"])
def test_lower_bounds_on_kept_memory_hold(graph: Graph) -> None:
    space = price_space(graph, find_policy("pimflow"), CostModel(with_rows(16384)), PriceCache(None, ""), prune=False)
    kept = [(space.search.min_kept(one.payload), space.search.kept(one.payload)) for one in space.intervals]
    assert all(least["pim"] <= exactly["pim"] for least, exactly in kept if least)
    assert {"pim": 1} in [least for least, _ in kept]


def test_traces_name_the_rows_of_the_weights() -> None:
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

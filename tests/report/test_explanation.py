"""One node and its alternatives: prices are those of compiled plans, and break-even values are exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import pimflow
from pimflow.api.outputs import original_graph
from pimflow.errors import ArgumentError
from pimflow.ir import OnDevice, Pipeline, SplitRows
from pimflow.report import break_even
from pimflow.report.explaining import compare_units, explain_node, price_nodes
from pimflow.report.explanation import Explanation, Verdict, verdict_text
from pimflow.search.progress import silent
from pimflow.sparse.generate import road_grid
from support.onnx_models import model_of, single
from support.opaque_models import normal, opaque_model


@pytest.fixture(scope="module")
def compiled() -> pimflow.CompiledModel:
    return pimflow.compile("zoo:toy", policy="newton++", use_cache=False)


@pytest.fixture(scope="module")
def conv2(compiled: pimflow.CompiledModel) -> Explanation:
    return pimflow.explain(compiled, "conv2")


def conv(policy: str, target: pimflow.Target | str = "pimflow") -> pimflow.CompiledModel:
    """One convolution for which PIM is slower."""
    weights = np.random.default_rng(0).standard_normal((96, 16, 1, 1)).astype(np.float32)
    model = single("Conv", (1, 16, 112, 112), [weights])
    return pimflow.compile(model, policy=policy, target=target, use_cache=False)


def test_alternatives_of_a_single_node_match_plans() -> None:
    node = conv("gpu").report.nodes[0].name
    found = {item.what: item.measure for item in pimflow.explain(conv("gpu"), node).alternatives}
    for policy, what in (("gpu", "GPU alone"), ("pim", "PIM, auto")):
        result = conv(policy).report.result
        assert (found[what].time_us, found[what].energy_mj) == pytest.approx((result.time_us, result.energy_mj))
    split = conv("auto")
    (decision,) = split.plan.decisions
    assert isinstance(decision, SplitRows)
    chosen = [item for item in pimflow.explain(split, node).alternatives if item.is_chosen]
    assert [item.what for item in chosen] == [f"{112 - decision.gpu_rows} of 112 rows on PIM"]
    assert chosen[0].measure.time_us == pytest.approx(split.report.result.time_us)


def test_the_plans_own_choice_is_marked(conv2: Explanation, compiled: pimflow.CompiledModel) -> None:
    chosen = [item for item in conv2.alternatives if item.is_chosen]
    assert [item.what for item in chosen] == ["PIM, newton++"]
    assert chosen[0].arranged.startswith("newton++: order")
    rows = {row.name: row for row in compiled.report.nodes}
    assert conv2.node == rows["conv2"]
    assert chosen[0].measure.time_us == pytest.approx(rows["conv2"].time_us)


def test_parts_add_up(conv2: Explanation) -> None:
    for item in conv2.as_json()["alternatives"]:
        for whole, parts in (("time_us", "time_parts_us"), ("energy_mj", "energy_parts_mj")):
            assert sum(sum(place.values()) for place in item[parts].values()) == pytest.approx(item[whole])


def verdict_of(compiled: pimflow.CompiledModel) -> Verdict:
    (verdict,) = pimflow.explain(compiled, compiled.report.nodes[0].name).verdicts
    return verdict


def test_the_break_even_value_suffices_and_half_of_it_does_not() -> None:
    verdict = verdict_of(conv("gpu"))
    needs = {need.key: need for need in verdict.needs or ()}
    need = needs["pim.clock_mhz"]
    assert (need.before, need.after) == (875.0, 1750.0)
    faster = conv("pim", pimflow.override("pimflow", {need.key: need.after}))
    assert faster.report.result.time_us == pytest.approx(need.time_us)
    assert need.time_us <= conv("gpu").report.result.time_us < conv("pim").report.result.time_us
    assert not verdict_of(conv("gpu", pimflow.override("pimflow", {need.key: need.after}))).needs


def test_each_of_many_nodes_has_its_own_verdicts(compiled: pimflow.CompiledModel) -> None:
    names = [row.name for row in compiled.report.nodes]
    weighed = compare_units(original_graph(compiled), compiled.plan, names, 9, compiled.machine.costs, None, silent)
    assert {"conv1", "depthwise", "conv2"} <= weighed.keys()
    for name, verdicts in weighed.items():
        assert verdicts == pimflow.explain(compiled, name).verdicts


def equal_convolutions(count: int) -> pimflow.CompiledModel:
    """A chain of equal convolutions for which PIM is slower."""
    values = ["x", *(f"conv{number}" for number in range(1, count)), "y"]
    nodes = [helper.make_node("Conv", [a, "w"], [b], name=b, pads=[1, 1, 1, 1]) for a, b in pairwise(values)]
    model = model_of(nodes, {"x": (1, 64, 56, 56)}, constants={"w": normal(64, 64, 3, 3)})
    return pimflow.compile(model, policy="gpu", use_cache=False)


def test_equal_nodes_with_other_decisions_have_their_own_alternatives() -> None:
    equal = equal_convolutions(6)
    graph, names = original_graph(equal), [row.name for row in equal.report.nodes]
    decisions = (
        OnDevice(names[0], "gpu"),
        OnDevice(names[1], "pim", "auto"),
        SplitRows(names[2], 28, "auto"),
        SplitRows(names[3], 29, "auto"),
        Pipeline((names[4], names[5]), ("gpu", "pim"), (28, 28), "auto"),
    )
    plan = replace(equal.plan, decisions=decisions)
    found = price_nodes(graph, plan, names, equal.machine.costs, silent)
    for name in names:
        assert found[name] == explain_node(graph, plan, equal.report, name, equal.machine.costs).alternatives
    chosen = [[way.what for way in found[name] if way.is_chosen] for name in names]
    assert chosen == [["GPU alone"], ["PIM, auto"], ["28 of 56 rows on PIM"], ["27 of 56 rows on PIM"], [], []]


def test_equal_work_is_analysed_once_and_up_to_the_limit() -> None:
    twice = equal_convolutions(2)
    graph, names = original_graph(twice), [row.name for row in twice.report.nodes]

    def weighed(most: int, progress: Callable[[str], None]) -> list[Verdict]:
        found = compare_units(graph, twice.plan, names, most, twice.machine.costs, None, progress)
        return [verdict for verdicts in found.values() for verdict in verdicts]

    told: list[str] = []
    first, second = weighed(5, told.append)
    assert first == second
    assert first.needs
    assert len(told) == len(set(told)), "each key once"
    assert [verdict.needs for verdict in weighed(0, silent)] == [None, None]
    assert "`pimflow explain` says" in verdict_text(weighed(0, silent)[0], "gpu", 1.0)[0]


def test_the_gap_to_a_layers_bounds_is_shown(conv2: Explanation) -> None:
    (verdict,) = conv2.verdicts
    assert verdict.standing.startswith("COMP ")
    assert "x of the highest" in verdict.standing
    assert f"its bounds there: {verdict.standing}" in conv2.text()
    assert conv2.as_json()["verdicts"][0]["standing"] == verdict.standing


def test_reasons_why_a_unit_cannot_run_a_node(compiled: pimflow.CompiledModel) -> None:
    found = pimflow.explain(compiled, "depthwise")
    assert [(verdict.device, verdict.time_us) for verdict in found.verdicts] == [("pim", None)]
    assert "PIM cannot run it: groups == channels" in found.text()
    assert len(found.alternatives) == 2


def test_a_unit_that_would_not_pay_is_not_called_unable() -> None:
    model = Path(__file__).parents[1] / "data" / "gnn" / "sgc-ts.onnx"
    network = pimflow.compile(model, graph=road_grid(100, 100), use_cache=False, check=False)
    sums = next(row.name for row in network.report.nodes if row.op == "Spmm")
    found = pimflow.explain(network, sums)
    (verdict,) = found.verdicts
    assert verdict.in_vain
    assert verdict.time_us is None
    assert f"PIM does not pay: {verdict.refusal}" in found.text()
    assert "edges a group of 16 sources" in verdict.refusal
    assert found.as_json()["verdicts"][0]["in_vain"] is True


def test_every_node_of_a_network_can_be_explained(compiled: pimflow.CompiledModel) -> None:
    for row in compiled.report.nodes:
        found = pimflow.explain(compiled, row.name)
        assert found.text()
        assert len(found) >= 2


def test_fused_nodes_are_explained_with_their_kernel() -> None:
    deep = pimflow.compile("zoo:squeezenet-1.1", policy="gpu", use_cache=False, check=False)
    fused = next(row for row in deep.report.nodes if row.why.startswith("fused into "))
    found = pimflow.explain(deep, fused.name)
    assert found.part_of == f"{fused.why}, to which all of this refers"
    assert found.macs > 0


def test_an_unknown_node(compiled: pimflow.CompiledModel) -> None:
    with pytest.raises(ArgumentError, match="the model has no node 'conv9'; did you mean 'conv"):
        pimflow.explain(compiled, "conv9")
    with pytest.raises(ArgumentError, match="has no node 'qqq'; `pimflow inspect` lists them"):
        pimflow.explain(compiled, "qqq")


def test_the_rest_of_an_expanded_node_counts_too() -> None:
    constants = {"w": normal(1, 256, 1024), "r": normal(1, 256, 64)}
    model = opaque_model("LSTM", {"x": (6, 1, 1024)}, constants, hidden_size=64)
    compiled = pimflow.compile(model, policy="pim", use_cache=False)
    found = pimflow.explain(compiled, "kept")
    (verdict,) = found.verdicts
    assert verdict.time_us == pytest.approx(compiled.report.result.time_us)
    assert compiled.report.result.time_us > 12 * 5000 / 1365, "two launches a step"
    auto = pimflow.compile(model, policy="auto", use_cache=False)
    assert "us for all of it on the GPU" in auto.report.nodes[0].why
    assert "us for its product on PIM" in auto.report.nodes[0].why


def test_skipped_keys_would_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds rule keys out; trying every key finds the same."""
    slower = conv("gpu")

    def weighed() -> list[Verdict]:
        graph, names = original_graph(slower), [row.name for row in slower.report.nodes]
        found = compare_units(graph, slower.plan, names, 9, slower.machine.costs, None, silent)
        return [verdict for verdicts in found.values() for verdict in verdicts]

    few = weighed()
    assert few[0].needs
    monkeypatch.setattr(break_even, "_can_be_enough", lambda *of: True)
    assert weighed() == few

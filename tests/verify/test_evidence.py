"""Bounds follow measurements: the largest error of several runs, but never most of what other inputs change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from pimflow.compiled import Machine
from pimflow.frontend import load_model
from pimflow.ir import Array, Builder, Graph
from pimflow.runtime.execute.nodes import run_nodes
from pimflow.runtime.execute.ort import random_inputs, run_graph
from pimflow.targets import load_target
from pimflow.verify import evidence as module
from pimflow.verify.evidence import MAX_JITTERED_RUNS, Evidence
from pimflow.verify.reference import UnitReference
from pimflow.verify.values import PartsCheck
from support.onnx_models import single

EXACT = np.linspace(-1, 1, 5, dtype=np.float32)


def off(share: float) -> dict[str, Array]:
    return {"y": EXACT + np.float32(share)}


def evidence(*runs: float) -> Evidence:
    build = Builder()
    build.input(5, name="x")
    found = Evidence(b"", build.graph("x"), {}, {}, {"y": EXACT})
    found.causes["fp16 operands"] = tuple(off(run) for run in runs)
    found.unit_errors["fp16 operands"] = 2**-10
    return found


@pytest.mark.parametrize(
    ("runs", "error", "passes"),
    [
        ((4e-5,), 1.2e-4, False),
        ((4e-5, 1.5e-4), 1.2e-4, True),
        ((1.5e-4, 4e-5), 1.2e-4, True),
        ((4e-5, 1.5e-4), 3.1e-4, False),
    ],
)
def test_the_largest_error_of_several_runs_counts(runs: tuple[float, ...], error: float, passes: bool) -> None:
    (check,) = evidence(*runs).checks(off(error), {"y": 0.1})
    assert check.passed == passes


def test_errors_of_sums_in_another_order_pass() -> None:
    """Sums in another order are right, even for a single output number; wrong weights are not."""
    build = Builder(seed=3)
    x = build.input(1, 128, name="x")
    for features in (*8 * [128], 1):
        x = build.gemm(x, features) if features == 1 else build.relu(build.gemm(x, features))
    graph = build.graph(x)
    units = Machine(load_target("pimflow")).costs.units
    (device,) = units
    graph = graph.replace(nodes=[node.placed(device=device) if node.kind == "Gemm" else node for node in graph.nodes])
    verdicts = {
        share: [_passes(graph, graph.replace(constants=_scaled(graph, share)), units, seed) for seed in range(8)]
        for share in (0.0, 0.01)
    }
    assert verdicts == {0.0: 8 * [True], 0.01: 8 * [False]}


@pytest.mark.parametrize(
    ("compared", "wrong", "runs", "passes"),
    [
        ((1.5e-4,), {}, 1, True),
        ((5e-4,), {}, 3, True),
        ((1.5e-4, 5e-4), {}, 3, True),
        ((5e-3,), {}, MAX_JITTERED_RUNS, False),
        ((5e-4,), {"x": 1e-3}, 1, False),
    ],
)
def test_orders_of_sums_are_tried_until_outputs_are_within_them(
    compared: tuple[float, ...], wrong: dict[str, float], runs: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One order may move an output by next to nothing. If a single value is wrong, no further order excuses it."""
    moves = iter([1e-4, 2e-4, 4e-4, *(MAX_JITTERED_RUNS * [1e-4])])
    monkeypatch.setattr(module, "compare_values", lambda *graphs: ({}, PartsCheck(3, 1e-6, wrong)))
    monkeypatch.setattr(module, "run_original", lambda *model, optimise: {"y": EXACT})
    monkeypatch.setattr(module, "run_nodes", lambda *graph: off(next(moves)))
    found = evidence()
    found.original_graph = found.graph
    found.measure(*map(off, compared))
    assert len(found.causes["sums in another order"]) == runs
    assert all(check.passed for error in compared for check in found.checks(off(error), {"y": 1.0})) == passes


@pytest.mark.parametrize(("error", "runs", "passes"), [(3e-3, 1, True), (5e-3, 2, True), (9e-3, 2, False)])
def test_roundings_that_onnx_runtime_leaves_out_of_the_original_pass(
    error: float, runs: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps 16-bit results in single precision from node to node, unless a Slice or Concat lies between them."""
    monkeypatch.setattr(module, "compare_values", lambda *graphs: (off(2e-3), PartsCheck(3, 0.0, {})))
    monkeypatch.setattr(module, "run_nodes", lambda *graph: off(4e-3))
    found = evidence()
    found.graph = found.original_graph = half_output()
    found.measure(off(error))
    assert len(found.causes["16-bit numbers"]) == runs
    (check,) = found.checks(off(error), {"y": 1.0})
    assert check.passed == passes


def _scaled(graph: Graph, share: float) -> dict[str, Array]:
    return {name: array * np.float32(1 + share) for name, array in graph.constants.items()}


def _passes(graph: Graph, other: Graph, units: Mapping[str, Any], seed: int) -> bool:
    """Whether the outputs of another graph, summed in another order, are accepted as those of the graph."""
    feeds = random_inputs(graph, 0)
    actual = run_nodes(other, feeds, UnitReference(other, units, None, jitter_seed=1_000 + seed))
    found = Evidence(b"", graph, {}, feeds, run_graph(graph, feeds))
    found.node_by_node(actual, UnitReference(graph, units, None), lambda line: None)
    return all(check.passed for check in found.checks(actual, dict.fromkeys(graph.outputs, 1.0)))


def test_a_bound_is_at_most_half_of_the_change_by_other_inputs() -> None:
    (check,) = evidence(0.03).checks(off(0.02), {"y": 0.1})
    assert check.passed
    (check,) = evidence(0.03).checks(off(0.02), {"y": 0.03})
    assert not check.passed


@pytest.mark.parametrize(("seen", "error", "passes"), [(8e-4, 9e-4, True), (2e-3, 1.5e-3, False), (3e-4, 9e-4, False)])
def test_rounding_of_a_product_is_allowed_even_if_inputs_change_less(seen: float, error: float, passes: bool) -> None:
    (check,) = evidence(seen).checks(off(error), {"y": 1e-6})
    assert check.passed == passes


def half_output() -> Graph:
    return load_model(single("Relu", (5,), dtype=TensorProto.FLOAT16))


def cast_from_half() -> Graph:
    model = single("Cast", (5,), dtype=TensorProto.FLOAT16, to=TensorProto.FLOAT)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return load_model(model)


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize(("steps", "passes"), [(1, True), (2, False)])
def test_one_rounding_step_of_an_outputs_type_passes(steps: int, passes: bool, is_cast: bool) -> None:
    """Other inputs may not move it further, as when the last layer adds to a large constant."""
    found, exact = evidence(), EXACT.astype(np.float16)
    found.graph = cast_from_half() if is_cast else half_output()
    found.expected = {"y": exact}
    for runs in ((), ({"y": exact + np.float16(2.0**-9)},)):
        found.causes["fp16 operands"] = runs
        (check,) = found.checks({"y": exact + np.float16(steps * 2.0**-10)}, {"y": 2.0**-10})
        assert check.passed == passes

"""A step of training: its forward pass node by node, and what the gradients of each node are made of."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.ir import Builder, Spmm
from pimflow.runtime.costs import CostModel
from pimflow.runtime.training import ADAM_COPIES, ADAM_PASSES, step_cost
from pimflow.sparse.generate import uniform
from pimflow.targets import load_target

COSTS = CostModel(load_target("rtx3090"))
ALONE = COSTS.host_only()


def test_products_cost_one_more_for_every_operand_that_has_a_gradient() -> None:
    build = Builder()
    x = build.input(500, 64)
    hidden = build.relu(build.gemm(x, 128))
    graph = build.graph(build.gemm(hidden, 10))
    first, relu, second = (ALONE.node_cost(graph, node).time_us for node in graph.nodes)
    step = step_cost(graph, COSTS)
    assert step.forward_us == pytest.approx(first + relu + second)
    assert step.backward_us == pytest.approx(first + relu + 2 * second)
    weights = 4 * (64 * 128 + 128 * 10)
    assert step.update_us == pytest.approx(ALONE.host.copy_cost(ADAM_PASSES * weights, "float32").time_us)
    assert step.bytes == 4 * 500 * (64 + 128 + 128 + 10) + ADAM_COPIES * weights
    assert step.time_us == step.forward_us + step.backward_us + step.update_us
    assert step.energy_mj > sum(ALONE.node_cost(graph, node).energy_mj for node in graph.nodes)


def test_an_aggregation_goes_back_along_its_edges() -> None:
    graph = uniform(300, 4000, seed=1)
    turned = graph.transposed()

    def aggregation(edges: object, first: bool) -> float:
        build = Builder()
        x = build.input(300, 32)
        rows = build.constant(edges.rowptr), build.constant(edges.col)  # type: ignore[attr-defined]
        if first:
            program = build.graph(build.op(Spmm(), x, *rows))
            return ALONE.node_cost(program, program.nodes[0]).time_us
        program = build.graph(build.op(Spmm(), build.gemm(x, 32), *rows))
        product = ALONE.node_cost(program, program.nodes[0]).time_us
        return step_cost(program, COSTS).backward_us - product

    assert aggregation(graph, False) == pytest.approx(aggregation(turned, True))


def test_nothing_is_computed_for_what_has_no_gradient() -> None:
    build = Builder()
    x = build.input(100, 16)
    summed = build.op(Spmm(), x, build.constant(np.arange(101)), build.constant(np.zeros(100, np.int32)))
    step = step_cost(build.graph(summed), COSTS)
    assert step.backward_us == step.update_us == 0

"""A training step: every node of a network's gradient graph, in three parts."""

from __future__ import annotations

import pytest

from pimflow.errors import ModelError
from pimflow.gnn.training import ADAM_PASSES, StepCost, cheapest_step, step_cost
from pimflow.ir import Builder, Graph
from pimflow.passes.differentiate import Differentiate
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory import plan_memory
from pimflow.targets import load_target
from pimflow.targets.overrides import override
from support.relational import LAYERS, random_edges

COSTS = CostModel(load_target("rtx3090"))
ALONE = COSTS.host_only()


def network(width: int = 128) -> Graph:
    build = Builder()
    hidden = build.relu(build.gemm(build.input(500, 64), width))
    return build.graph(build.gemm(hidden, 10))


def test_the_parts_are_those_of_the_training_graph() -> None:
    graph = network()
    whole = Differentiate(loss="cross-entropy").run(graph).graph
    step = step_cost(graph, COSTS)
    prices = [ALONE.node_cost(whole, node) for node in whole.nodes]
    assert step.forward_us + step.backward_us == pytest.approx(sum(price.time_us for price in prices))
    assert step.forward_us > sum(ALONE.node_cost(graph, node).time_us for node in graph.nodes)  # the loss is part of it
    weights = 4 * (64 * 128 + 128 * 10)
    update = ALONE.host.copy_cost(ADAM_PASSES * weights, "float32")
    assert step.update_us == update.time_us
    assert step.energy_mj == pytest.approx(sum(price.energy_mj for price in prices) + update.energy_mj)
    plan = plan_memory(whole)
    assert step.bytes == plan.arena_bytes + plan.weight_bytes + 2 * weights
    assert step.time_us == step.forward_us + step.backward_us + step.update_us


def test_nothing_is_computed_for_the_features() -> None:
    """Two products forward; backward, two for weights and one for the value between them."""
    whole = Differentiate(loss="cross-entropy").run(network()).graph
    assert sum(node.op.is_contraction for node in whole.nodes) == 5


def test_relational_layers_are_trained_in_the_cheapest_form() -> None:
    graph = LAYERS["attention"](random_edges(300, 3, 20_000))
    plain, best = step_cost(graph, COSTS), cheapest_step(graph, COSTS)
    assert best.time_us < plain.time_us
    assert best.update_us == plain.update_us, "the same weights"
    assert cheapest_step(network(), COSTS) == step_cost(network(), COSTS)


def test_a_form_that_does_not_fit_is_not_chosen_if_another_does() -> None:
    """With a byte less than the fastest form's step needs, whatever else uses that byte, another form is chosen."""
    graph = LAYERS["attention"](random_edges(300, 3, 20_000))
    fastest = cheapest_step(graph, COSTS)

    def found(room: int, beside: int = 0) -> StepCost:
        memory = {"memory.gpu.capacity_gib": room / 2**30, "memory.gpu.reserved_gib": 0.0}
        return cheapest_step(graph, CostModel(override("rtx3090", memory)), beside)

    smaller = found(fastest.bytes - 1)
    assert smaller.bytes < fastest.bytes
    assert smaller.time_us > fastest.time_us
    assert found(fastest.bytes, 1) == smaller


def test_a_network_without_weights_is_not_trained() -> None:
    build = Builder()
    with pytest.raises(ModelError, match="has no parameters to train"):
        step_cost(build.graph(build.relu(build.input(4, 4))), COSTS)

"""The cost of a training step on a machine's host: forward pass, gradients and update, each node at its own price.

The step is the graph that `passes/differentiate.py` makes of a model, with cross-entropy as its loss; no gradient is
computed for the input features. After it, Adam updates all weights in one kernel: weight, gradient and two moments are
read, and three of them are written.
"""

from __future__ import annotations

from pimflow.ir import Graph
from pimflow.options import Options
from pimflow.passes import PassManager
from pimflow.passes.differentiate import Differentiate, training_step
from pimflow.records import dataclass
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory import plan_memory
from pimflow.search.relational_form import once_per_graph, training_form
from pimflow.search.room import Price, bytes_of_values

ADAM_PASSES = 7
"""Passes over the bytes of all weights: four reads, three writes."""
ADAM_MOMENTS = 2
"""Additional copies of the weights that Adam keeps."""
EDGE_BYTES = 8
"""Bytes per edge of a batch's hops, which are copied to the GPU: a source and a destination of 4 bytes each."""


@dataclass(frozen=True)
class StepCost:
    """The cost of a training step on the GPU.

    Args:
        forward_us, backward_us, update_us: microseconds of its three parts, one after the other.
        energy_mj: of all parts, without static power.
        bytes: of the GPU's memory: values at their peak, as laid out by the memory planner, plus constants and moments.
    """

    forward_us: float
    backward_us: float
    update_us: float
    energy_mj: float
    bytes: int

    @property
    def time_us(self) -> float:
        """The sum of the three parts."""
        return self.forward_us + self.backward_us + self.update_us


def cheapest_step(graph: Graph, costs: CostModel, beside_bytes: int = 0) -> StepCost:
    """The cost of a step with relational layers in their cheapest form, among the forms that fit into memory.

    Args:
        graph: the forward pass.
        costs: of the machine.
        beside_bytes: other data in the GPU's memory.

    Raises:
        ModelError: as for `step_cost`.
    """

    def price(form: Graph) -> Price:
        step = _Step.of(form, costs)
        most = step.most_bytes + beside_bytes
        return Price.of_step(most, lambda: step.cost.bytes + beside_bytes, step.time_us, costs)

    passes = training_form(graph, once_per_graph(price), Options())
    return step_cost(PassManager(passes).run(graph).graph, costs)


def step_cost(graph: Graph, costs: CostModel) -> StepCost:
    """The cost of a training step of a network, run entirely on the host.

    Args:
        graph: its forward pass; the first output is the logits of every row.
        costs: of the machine.

    Raises:
        ModelError: it has no parameters, or an op on the path has no gradient.
    """
    return _Step.of(graph, costs).cost


@dataclass(frozen=True, eq=False)
class _Step:
    """A priced training step, whose memory is planned only if asked for.

    Args:
        graph: the step.
        forward_us, backward_us, update_us, energy_mj: as for `StepCost`.
        moments_bytes: of the optimiser.
    """

    graph: Graph
    forward_us: float
    backward_us: float
    update_us: float
    energy_mj: float
    moments_bytes: int

    @classmethod
    def of(cls, graph: Graph, costs: CostModel) -> _Step:
        """The step of a forward pass.

        Raises:
            ModelError: as for `step_cost`.
        """
        alone = costs.host_only()
        step = training_step(graph, Differentiate(loss="cross-entropy"))
        prices = {node.name: alone.node_cost(step.graph, node) for node in step.graph.nodes}
        forward_us = sum(price.time_us for name, price in prices.items() if name in step.forward)
        every_us = sum(price.time_us for price in prices.values())
        weights = sum(graph.constants[name].nbytes for name in step.gradients)
        update = alone.host.copy_cost(ADAM_PASSES * weights, "float32")
        energy_mj = sum(price.energy_mj for price in prices.values()) + update.energy_mj
        parts_us = (forward_us, every_us - forward_us, update.time_us)
        return cls(step.graph, *parts_us, energy_mj, ADAM_MOMENTS * weights)

    @property
    def time_us(self) -> float:
        """The sum of its three parts."""
        return self.forward_us + self.backward_us + self.update_us

    @property
    def most_bytes(self) -> int:
        """An upper bound on its memory."""
        return bytes_of_values(self.graph) + self.moments_bytes

    @property
    def cost(self) -> StepCost:
        """Its cost, with its memory as planned."""
        plan = plan_memory(self.graph)
        needed = plan.arena_bytes + plan.weight_bytes + self.moments_bytes
        return StepCost(self.forward_us, self.backward_us, self.update_us, self.energy_mj, needed)

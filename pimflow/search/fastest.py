"""The time of a graph with every node on the device that runs it fastest: graph forms are chosen by it before
planning."""

from __future__ import annotations

from pimflow.ir import Graph, Node, Refusal
from pimflow.options import Options
from pimflow.records import dataclass
from pimflow.runtime.costs import CostModel
from pimflow.search.policy import policy_of


@dataclass(frozen=True)
class Fastest:
    """Prices of graphs; under a policy that never uses other units, the host's prices."""

    costs: CostModel
    devices: tuple[str, ...]

    @classmethod
    def of(cls, costs: CostModel, options: Options) -> Fastest:
        """The prices that the options' policy allows."""
        devices = tuple(costs.units) if policy_of(options).spaces else ()
        return cls(costs if devices else costs.host_only(), devices)

    def us(self, graph: Graph) -> float:
        """The total time of all nodes in microseconds, one after the other."""
        return sum(self._node_us(graph, node) for node in graph.nodes)

    def _node_us(self, graph: Graph, node: Node) -> float:
        times = [self.costs.node_cost(graph, node).time_us]
        for device in self.devices if times[0] else ():
            work = self.costs.work(graph, node, device)
            choice = self.costs.units[device].default_choice
            cost = work if isinstance(work, Refusal) else self.costs.unit_cost(device, work, choice)
            if not isinstance(cost, Refusal):
                times.append(cost.time_us)
        return min(times)

"""What a network's step over a batch takes: one of the networks by name, or a model of a graph network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pimflow.bundle.source import model_source
from pimflow.compiled import Machine
from pimflow.compiled.original import read_model
from pimflow.compiler import clean_up
from pimflow.errors import OptionError
from pimflow.gnn.networks import LAYERS, Network
from pimflow.gnn.training import StepCost, step_cost
from pimflow.gnn.workloads import Workload
from pimflow.options import Options
from pimflow.runtime.costs import CostModel
from pimflow.sparse import Graph
from pimflow.sparse.sampling import Batch
from pimflow.targets import Target


class Stepper:
    """Prices the step of a model over a batch.

    Args:
        model: one of `LAYERS`, or an ONNX model.
        machine, costs: where it runs.
        features, hidden, classes: columns, as `pimflow.gnn.epoch` has them.
        found: the graph.
    """

    def __init__(
        self,
        model: str | Path,
        machine: Target,
        costs: CostModel,
        features: int | None,
        hidden: int,
        classes: int | None,
        found: Workload,
    ) -> None:
        self.name = str(model)
        self.costs = costs
        self._network: Network | None = None
        published = found.published
        if self.name in LAYERS:
            columns = features or (published.features if published else 0)
            if not columns:
                raise OptionError("the graph says nothing of features", "give their number: --features")
            kinds = classes or (published.classes if published else 16)
            self._network = Network(self.name, columns, hidden, kinds)
            self.features = columns
            return
        self._machine = Machine.of(Options.of(target=machine))
        self._source = model_source(model)
        self.features = features or 0

    def step(self, drawn: Batch) -> StepCost:
        """Forward, backward and update."""
        if self._network is not None:
            return step_cost(self._network.over(drawn), self.costs)
        options = Options.of(target=self._machine.target, graph=_as_one(drawn))
        program = clean_up(read_model(self._source, options).graph, self._machine, options).graph
        columns = {
            shape[-1]
            for name in program.inputs
            if len(shape := program.shape(name)) == 2 and shape[0] == len(drawn.vertices)
        }
        if len(columns) != 1:
            raise OptionError(f"{self.name} has no input of features of every vertex", "choose a graph network")
        (found,) = columns
        if self.features not in (0, found):
            reads = f"{self.name} reads {found} features of a vertex, not {self.features}"
            raise OptionError(reads, "leave out --features")
        self.features = found
        return step_cost(program, self.costs)


def _as_one(drawn: Batch) -> Graph:
    """All hops as one graph over the batch's vertices, as PyTorch Geometric's loader has it."""
    src = np.concatenate([hop.col for hop in drawn.hops])
    dst = np.concatenate([hop.destinations() for hop in drawn.hops])
    kinds = [hop.edge_type for hop in drawn.hops if hop.edge_type is not None]
    types = np.concatenate(kinds) if len(kinds) == len(drawn.hops) else None
    return Graph.from_edges(src, dst, len(drawn.vertices), len(drawn.vertices), edge_type=types)

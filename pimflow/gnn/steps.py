"""The cost of a network's step over a batch, for one of the named networks or an ONNX model of a graph network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pimflow.bundle.source import ZOO_PREFIX, model_source
from pimflow.compiled import Machine
from pimflow.compiled.original import read_model
from pimflow.compiler import clean_up
from pimflow.errors import OptionError, ShapeError, choice, did_you_mean
from pimflow.frontend.binding import Declared, declared_input
from pimflow.frontend.reading import read_source
from pimflow.gnn.networks import LAYERS, Network
from pimflow.gnn.training import EDGE_BYTES, StepCost, cheapest_step
from pimflow.gnn.typed_networks import TYPED_LAYERS, TypedNetwork
from pimflow.gnn.workloads import Workload
from pimflow.ir import Graph as Program
from pimflow.options import Options
from pimflow.runtime.costs import CostModel
from pimflow.sparse import Graph
from pimflow.sparse.checks import Longs
from pimflow.sparse.sampling import VERTICES, Batch, TypedBatch
from pimflow.targets import Target

_ANY_CLASSES = 16


class StepPricer(ABC):
    """Prices the step of a model over a batch.

    Args:
        name: of the model.
        costs: of the machine.
        features: columns of a vertex by kind; 0 if the first step determines them.
        once: whether the model runs over all vertices of a batch, so that the neighbours of each are drawn only once.
    """

    name: str
    costs: CostModel
    features: dict[str, int]
    once: bool

    def step(self, drawn: TypedBatch) -> StepCost:
        """Forward pass, backward pass and update."""
        return cheapest_step(self.over(drawn), self.costs, drawn.edges * EDGE_BYTES)

    @abstractmethod
    def over(self, drawn: TypedBatch) -> Program:
        """The forward pass."""


def step_pricer(
    model: str | Path,
    machine: Target,
    costs: CostModel,
    features: Mapping[str, int],
    hidden: int,
    classes: int | None,
    found: Workload,
    kind: str,
) -> StepPricer:
    """Choose the step pricer for a model.

    Args:
        model: one of `LAYERS` or `TYPED_LAYERS`, or an ONNX model.
        machine, costs: where it runs.
        features: columns by kind, where known.
        hidden, classes, kind: as for `pimflow.gnn.epoch`.
        found: the graph.

    Raises:
        OptionError: the number of features is not known, or the graph has no relations to distinguish.
        ModelError: the model cannot be read, or lacks features of a kind.
    """
    if str(model) not in TYPED_LAYERS:
        _check_model_name(str(model))
        model_pricer = _TypedOnnxModel if found.is_typed else _OnnxModel
        return model_pricer(model, machine, costs, features, found)
    published = found.published
    columns = {name: features.get(name) or found.features.get(name, 0) for name in found.graph.vertices}
    if not all(columns.values()):
        missing = ", ".join(name for name, count in columns.items() if not count)
        of = f" of {missing}" if found.is_typed else ""
        raise OptionError(f"the graph does not state the number of features{of}", "give it with --features")
    logits = classes or (published.classes if published else _ANY_CLASSES)
    network = Network(str(model), max(columns.values()), hidden, logits)
    if found.is_typed:
        return _TypedNetwork(TypedNetwork(network, found.graph, kind, columns), costs)
    choice("network of one edge list", network.kind, LAYERS)
    return _NamedNetwork(network, costs)


def _check_model_name(model: str) -> None:
    """Refuse what is neither the name of a network nor looks like a model.

    Raises:
        OptionError: it is neither.
    """
    path = Path(model)
    if not path.suffix and not model.lower().startswith(ZOO_PREFIX) and not path.exists():
        near = did_you_mean(model, TYPED_LAYERS)
        hint = f'{near} give an ONNX model, "{ZOO_PREFIX}NAME", or one of {", ".join(TYPED_LAYERS)}'.lstrip()
        raise OptionError(f"no network and no file is called {model!r}", hint)


class _NamedNetwork(StepPricer):
    """A network over a graph of one kind."""

    once = False

    def __init__(self, network: Network, costs: CostModel) -> None:
        self.name, self.costs, self.features = network.kind, costs, {VERTICES: network.features}
        self._network = network

    def over(self, drawn: TypedBatch) -> Program:
        return self._network.over(drawn.single)


class _TypedNetwork(StepPricer):
    """A network over several relations."""

    once = False

    def __init__(self, network: TypedNetwork, costs: CostModel) -> None:
        self.name, self.costs, self.features = network.network.kind, costs, dict(network.features)
        self._network = network

    def over(self, drawn: TypedBatch) -> Program:
        return self._network.over(drawn)


class _OnnxModel(StepPricer):
    """An ONNX model over a graph of one kind."""

    once = True

    def __init__(
        self, model: str | Path, machine: Target, costs: CostModel, features: Mapping[str, int], found: Workload
    ) -> None:
        self.name, self.costs = str(model), costs
        self.features = {kind: features.get(kind, 0) for kind in found.graph.vertices}
        self._machine = Machine.of(Options.of(target=machine))
        self._source = model_source(model)

    def over(self, drawn: TypedBatch) -> Program:
        program = self._read(graph=_merged_hops(drawn.single))
        (vertices,) = drawn.vertices.values()
        shapes = {name: program.shape(name) for name in program.inputs}
        tables = {name: shape[1] for name, shape in shapes.items() if len(shape) == 2 and shape[0] == len(vertices)}
        columns = set(tables.values())
        if len(columns) > 1:
            found = ", ".join(f"{name} [{count}]" for name, count in tables.items())
            raise OptionError(
                f"{self.name} has several inputs with a row per vertex, of different widths: {found}",
                "export it with one table of features, of which it takes the parts",
            )
        if not columns:
            raise OptionError(f"{self.name} has no input with a row of features per vertex", "choose a graph network")
        self._reads(VERTICES, *columns)
        return program

    def _read(self, **given: Any) -> Program:
        """The program for a graph in the form of the export; the price of the training step decides which form is
        used.

        Raises:
            ShapeError: a size does not follow from the batch.
        """
        options = Options.of(target=self._machine.target, relations="never", **given)
        try:
            model = read_model(self._source, options)
        except ShapeError as error:
            raise ShapeError(error.what, "a batch gives numbers of vertices and edges; fix other sizes") from None
        return clean_up(model.graph, self._machine, options, is_trained=True).graph

    def _reads(self, kind: str, columns: int) -> None:
        """Record how many features of a kind the model reads.

        Raises:
            OptionError: another number was asked for.
        """
        if self.features[kind] not in (0, columns):
            of = "a vertex" if kind == VERTICES else kind
            reads = f"{self.name} reads {columns} features of {of}, not {self.features[kind]}"
            raise OptionError(reads, "leave out --features")
        self.features[kind] = columns


class _TypedOnnxModel(_OnnxModel):
    """An ONNX model over several relations, each an input, with a feature table for every kind."""

    def __init__(
        self, model: str | Path, machine: Target, costs: CostModel, features: Mapping[str, int], found: Workload
    ) -> None:
        super().__init__(model, machine, costs, features, found)
        inputs = [declared_input(info) for info in read_source(self._source.content).proto.graph.input]
        self._tables = {kind: self._table(kind, inputs) for kind in self.features}
        for kind, table in self._tables.items():
            columns = (table.dims or ())[1]
            if isinstance(columns, int):
                self._reads(kind, columns)

    def _table(self, kind: str, inputs: list[Declared]) -> Declared:
        """The input with the features of a kind.

        Raises:
            OptionError: no input has the expected name.
        """
        for item in inputs:
            if item.name in (kind, f"x_{kind}") and item.dims is not None and len(item.dims) == 2:
                return item
        names = ", ".join(item.name for item in inputs)
        raise OptionError(
            f"{self.name} has no table of features called {kind} or x_{kind}: its inputs are {names}",
            "export it with such names",
        )

    def over(self, drawn: TypedBatch) -> Program:
        lists = {name: _pairs([hop[name] for hop in drawn.hops]) for name in drawn.hops[0]}
        shapes = {
            self._tables[kind].name: (len(vertices), self.features[kind]) for kind, vertices in drawn.vertices.items()
        }
        return self._read(graph=lists, shapes=shapes)


def _merged_hops(drawn: Batch) -> Graph:
    """All hops as one graph over the batch's vertices, as in PyTorch Geometric's loader."""
    src, dst = _pairs(drawn.hops)
    kinds = [hop.edge_type for hop in drawn.hops if hop.edge_type is not None]
    types = np.concatenate(kinds) if len(kinds) == len(drawn.hops) else None
    return Graph.from_edges(src, dst, len(drawn.vertices), len(drawn.vertices), edge_type=types)


def _pairs(hops: Sequence[Graph]) -> Longs:
    """Sources and destinations of the edges of all hops."""
    return np.stack(
        [np.concatenate(ends) for ends in zip(*((hop.col, hop.destinations()) for hop in hops), strict=True)]
    )

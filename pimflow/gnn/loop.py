"""An epoch of training a graph network on mini-batches, by where the features lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from pimflow.data import Limits
from pimflow.errors import OptionError, choice
from pimflow.gnn.rehearsal import ELEMENT_BYTES, LOADERS, Loader, Rehearsal, Rehearsed
from pimflow.gnn.steps import Stepper
from pimflow.gnn.workloads import Workload, workload
from pimflow.options import read_argument
from pimflow.report.epoch import Epoch
from pimflow.runtime.costs import CostModel
from pimflow.runtime.features import FeatureAccess, TableRead
from pimflow.sparse import Graph
from pimflow.sparse.checks import Longs
from pimflow.sparse.sampling import Batch, sample
from pimflow.targets import Target, load_target

_Columns = Annotated[int, Limits(least=1, most=1 << 20)]
_ARGUMENTS: Mapping[str, Any] = {
    "fan_outs": tuple[Annotated[int, Limits(least=1, most=1 << 10)], ...],
    "batch": Annotated[int, Limits(least=1, most=1 << 24)],
    "features": _Columns | None,
    "hidden": _Columns,
    "classes": _Columns | None,
    "train": Annotated[int, Limits(least=1)] | None,
    "batches": Annotated[int, Limits(least=0, most=1 << 24)],
    "seed": Annotated[int, Limits(least=0)],
}


def epoch(
    graph: str | Path | Graph,
    model: str | Path = "sage",
    *,
    fan_outs: Sequence[int] = (25, 10),
    batch: int = 1000,
    features: int | None = None,
    hidden: int = 256,
    classes: int | None = None,
    train: int | None = None,
    target: str | Target = "rtx3090",
    loader: Loader = "sampling",
    batches: int = 8,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Epoch:
    """What an epoch of mini-batch training takes, with the features in the GPU's memory or in the host's.

    Batches are really drawn, without replacement, and their vertices and requests counted exactly; an epoch is as many
    times the mean of those that were drawn.

    Args:
        graph: a file, a graph, or the name of one of PyTorch-Direct's, of which a random one of that size is used.
        model: `sage`, `gcn` or `gat`, of a layer a hop; or an ONNX model or "zoo:NAME" of a graph network, which runs
            over all vertices of a batch.
        fan_outs: neighbours that are drawn of every vertex, by hop, beginning with the vertices that are trained.
        batch: vertices that a step trains.
        features: columns of a vertex, of 4 bytes; the named graph's, or the ONNX model's, where None.
        hidden, classes: columns between layers and of the result, of `sage`, `gcn` and `gat`.
        train: vertices that an epoch trains; the named graph's, or all, where None.
        target: a machine that says its memory tiers.
        loader: what overlaps with the step before: "none", "sampling" (as loaders of DGL and PyTorch Geometric do),
            or "all", transfers included.
        batches: how many are drawn; 0 for all of the epoch.
        seed: of the graph, the batches and what is drawn of them.

    Raises:
        OptionError: a value is out of range.
        GraphDataError: the graph is unknown or cannot be read.
        TargetError: the target does not say its memory tiers, or features or a step fit nowhere.
        PimflowError: the ONNX model cannot be read for the batch.
    """
    machine = load_target(target)
    columns = {"features": features, "hidden": hidden, "classes": classes}
    amounts = {"fan_outs": fan_outs, "batch": batch, "train": train, "batches": batches, "seed": seed}
    return rehearse(graph, model, machine, loader, progress, **columns, **amounts).on(machine)


def rehearse(
    graph: str | Path | Graph,
    model: str | Path,
    machine: Target,
    loader: Loader = "sampling",
    progress: Callable[[str], None] | None = None,
    **amounts: Any,
) -> Rehearsal:
    """Draws batches of an epoch and prices their steps; `amounts` are the numbers that `epoch` takes.

    Raises:
        PimflowError: as `epoch`.
    """
    asked = {name: read_argument(name, form, amounts[name]) for name, form in _ARGUMENTS.items()}
    if not asked["fan_outs"]:
        raise OptionError("'fan_outs' is empty", "give how many neighbours are drawn, a number a hop")
    loader = choice("loader", loader, LOADERS)
    found = workload(graph, asked["seed"])
    costs = CostModel(machine)
    stepper = Stepper(model, machine, costs, asked["features"], asked["hidden"], asked["classes"], found)
    trained, say = _trained(found, asked["train"]), progress or (lambda line: None)
    table_bytes = found.graph.num_vertices * stepper.features * ELEMENT_BYTES
    FeatureAccess(machine, costs.host_only().host).placements(table_bytes, 0, found.bytes)
    count = -(-trained // asked["batch"])
    wanted = min(asked["batches"] or count, count)
    drawn = []
    for number, sampled in enumerate(_batches(found, trained, asked, wanted), 1):
        say(f"batch {number} of {wanted}")
        step = stepper.step(sampled)
        drawn.append(Rehearsed(sampled, TableRead(sampled.vertices, stepper.features * ELEMENT_BYTES), step))
    fan_outs, batch = asked["fan_outs"], asked["batch"]
    return Rehearsal(found, stepper.name, stepper.features, fan_outs, batch, trained, loader, tuple(drawn))


def _batches(found: Workload, trained: int, asked: Mapping[str, Any], wanted: int) -> Iterator[Batch]:
    """The first batches of an epoch, in the order that the seed draws."""
    random, size = np.random.default_rng(asked["seed"]), asked["batch"]
    order = _distinct(found.graph.num_vertices, trained, random)
    for first in range(0, wanted * size, size):
        yield sample(found.graph, order[first : first + size], asked["fan_outs"], random)


def _trained(found: Workload, train: int | None) -> int:
    known = found.published.train if found.published else found.graph.num_vertices
    if train is not None and train > found.graph.num_vertices:
        raise OptionError(f"'train' is {train}", f"the graph has {found.graph.num_vertices:,} vertices")
    return train or known


def _distinct(vertices: int, count: int, random: np.random.Generator) -> Longs:
    """So many different vertices, in random order."""
    if count * 4 > vertices:
        return random.permutation(vertices)[:count].astype(np.int64)
    found = np.unique(random.integers(0, vertices, 2 * count + 16))
    return random.permutation(found)[:count].astype(np.int64)

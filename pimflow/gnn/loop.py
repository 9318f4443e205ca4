"""An epoch of training a graph network on mini-batches, for each placement of the features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from pimflow.data import Limits, read_argument
from pimflow.errors import GraphDataError, OptionError, choice, counted
from pimflow.gnn.sampled_epoch import ELEMENT_BYTES, LOADERS, Loader, SampledBatch, SampledEpoch, table_bytes
from pimflow.gnn.steps import step_pricer
from pimflow.gnn.workloads import Workload, workload
from pimflow.report.epoch import Epoch
from pimflow.runtime.costs import CostModel
from pimflow.runtime.features import FeatureAccess, TableRead
from pimflow.sparse.checks import Longs
from pimflow.sparse.relations import find_list, list_name
from pimflow.sparse.sampling import TypedBatch, sample_typed
from pimflow.targets import Target, load_target

_Columns = Annotated[int, Limits(least=1, most=1 << 20)]
_ARGUMENTS: Mapping[str, Any] = {
    "fan_outs": tuple[Annotated[int, Limits(least=1, most=1 << 10)], ...],
    "batch": Annotated[int, Limits(least=1, most=1 << 24)],
    "features": _Columns | None,
    "kind": str | None,
    "vertices": dict[str, Annotated[int, Limits(least=1, most=1 << 31)]] | None,
    "hidden": _Columns,
    "classes": _Columns | None,
    "train": Annotated[int, Limits(least=1)] | None,
    "batches": Annotated[int, Limits(least=0, most=1 << 24)],
    "seed": Annotated[int, Limits(least=0)],
}
_BY_NAME: Mapping[str, Any] = {
    "fan_outs": dict[str, tuple[Annotated[int, Limits(least=0, most=1 << 10)], ...]],
    "features": dict[str, _Columns],
}
"""The forms of the arguments that may also be given by relation or by kind."""

OTHERS = "*"
"""The key that stands for all unnamed relations in fan-outs, and for all unnamed kinds in features."""


def epoch(
    graph: object,
    model: str | Path = "sage",
    *,
    fan_outs: Sequence[int] | Mapping[Any, Sequence[int]] = (25, 10),
    batch: int = 1000,
    features: int | Mapping[str, int] | None = None,
    kind: str | None = None,
    vertices: Mapping[str, int] | None = None,
    hidden: int = 256,
    classes: int | None = None,
    train: int | None = None,
    target: str | Target = "rtx3090",
    loader: Loader = "sampling",
    batches: int = 8,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Epoch:
    """The cost of an epoch of mini-batch training, with the features in the GPU's memory or in the host's.

    Batches are actually drawn, without replacement, and their vertices and memory requests are counted exactly. The
    epoch is the mean of the drawn batches times the number of batches.

    Args:
        graph: a file, anything that `pimflow.compile` takes for a graph, or the name of one of PyTorch-Direct's graphs,
            for which a random graph of the same size is used. Edge lists, if there are several, are named
            SOURCE__RELATION__DESTINATION.
        model: `sage`, `gcn` or `gat` (and, over several edge lists, `rgcn`), with one layer per hop; or an ONNX model
            or "zoo:NAME" of a graph network, which runs over all vertices of a batch.
        fan_outs: number of neighbours to draw for every vertex, by hop, starting with the vertices that are trained.
            With several relations, this many along each, or a mapping by relation (a name, or PyTorch Geometric's
            triple), with "*" for all others.
        batch: number of vertices that a step trains.
        features: columns of a vertex, of 4 bytes each, optionally by kind; None for those of the named graph, the
            ONNX model, or the `x` of a PyTorch Geometric object.
        kind: of the vertices that are trained; may be None if there is only one.
        vertices: their number, by kind; for other kinds, one more than the largest id.
        hidden, classes: columns between layers and of the result, for `sage`, `gcn` and `gat`.
        train: number of vertices that an epoch trains; None for the named graph's number, or all.
        target: a machine that describes its memory tiers.
        loader: what overlaps with the previous step: "none", "sampling" (as in the loaders of DGL and PyTorch
            Geometric), or "all", which includes transfers.
        batches: number of batches to draw; 0 for all batches of the epoch.
        seed: of the graph, the batches and the neighbours that are drawn.

    Raises:
        OptionError: a value is out of range.
        GraphDataError: the graph is unknown or cannot be read.
        TargetError: the target does not describe its memory tiers, or the features or a step do not fit anywhere.
        PimflowError: the ONNX model cannot be read for the batch.
    """
    machine = load_target(target)
    columns = {"features": features, "hidden": hidden, "classes": classes, "kind": kind, "vertices": vertices}
    amounts = {"fan_outs": fan_outs, "batch": batch, "train": train, "batches": batches, "seed": seed}
    return sample_epoch(graph, model, machine, loader, progress, **columns, **amounts).on(machine)


def sample_epoch(
    graph: object,
    model: str | Path,
    machine: Target,
    loader: Loader = "sampling",
    progress: Callable[[str], None] | None = None,
    **amounts: Any,
) -> SampledEpoch:
    """Draw batches of an epoch and price their steps; `amounts` are the numeric arguments of `epoch`.

    Raises:
        PimflowError: as for `epoch`.
    """
    given = {name: _read(name, amounts.get(name)) for name in _ARGUMENTS}
    loader = choice("loader", loader, LOADERS)
    found = workload(graph, given["seed"], given["vertices"])
    fan_outs, kind = _fan_outs(given["fan_outs"], found), _kind(given["kind"], found)
    costs, features = CostModel(machine), _features(given["features"], found)
    priced = step_pricer(model, machine, costs, features, given["hidden"], given["classes"], found, kind)
    trained, say = _train_count(found, kind, given["train"]), progress or (lambda line: None)
    FeatureAccess(machine, costs.host_only().host).placements(table_bytes(found.graph, priced.features), 0, found.bytes)
    batch = given["batch"]
    count = -(-trained // batch)
    wanted = min(given["batches"] or count, count)
    random, drawn = np.random.default_rng(given["seed"]), []
    order = _distinct(found.graph.vertices[kind], trained, random)
    for number in range(wanted):
        say(f"batch {number + 1} of {wanted}")
        seeds = order[number * batch : (number + 1) * batch]
        sampled = sample_typed(found.graph, kind, seeds, fan_outs, random, once=priced.once)
        step = priced.step(sampled)
        drawn.append(SampledBatch(sampled, tuple(_reads(sampled, priced.features, found.graph.vertices)), step))
    return SampledEpoch(found, priced.name, priced.features, fan_outs, kind, batch, trained, loader, tuple(drawn))


def _read(name: str, value: Any) -> Any:
    """Read an argument, which may be a mapping by name where that is allowed."""
    forms = _BY_NAME if isinstance(value, Mapping) and name in _BY_NAME else _ARGUMENTS
    if isinstance(value, Mapping) and name == "fan_outs":
        value = {list_name(relation, name): hops for relation, hops in value.items()}
    return read_argument(name, forms[name], value)


def _reads(sampled: TypedBatch, features: Mapping[str, int], counts: Mapping[str, int]) -> Iterator[TableRead]:
    """The rows read from each kind's feature table, which has as many rows as there are vertices of the kind."""
    for kind, vertices in sampled.vertices.items():
        if len(vertices):
            row_bytes = features[kind] * ELEMENT_BYTES
            yield TableRead(vertices, row_bytes, ELEMENT_BYTES, table_bytes=counts[kind] * row_bytes)


def _fan_outs(given: Any, found: Workload) -> dict[str, tuple[int, ...]]:
    """The number of neighbours to draw along each relation, by hop."""
    relations = found.graph.relations
    by_name = dict(given) if isinstance(given, Mapping) else {OTHERS: given}
    others = by_name.pop(OTHERS, None)
    known = {}
    for name, hops in by_name.items():
        relation = find_list(name, relations)
        if relation is None:
            raise OptionError(
                f"'fan_outs' has {name!r}, which is not a relation of the graph, or of several lists",
                f"name one of {_list(relations)}",
            )
        known[relation] = hops
    missing = [name for name in relations if name not in known]
    if missing and others is None:
        raise OptionError(f"'fan_outs' does not say what is drawn along {_list(missing)}", f"name it, or {OTHERS!r}")
    fan_outs = {name: known.get(name, others or ()) for name in relations}
    if len(set(map(len, fan_outs.values()))) > 1:
        raise OptionError(
            "'fan_outs' gives relations different numbers of hops", "give each the same number; 0 draws none"
        )
    if not all(fan_outs.values()):
        raise OptionError("'fan_outs' is empty", "give the number of neighbours to draw, one number per hop")
    return fan_outs


def _kind(given: str | None, found: Workload) -> str:
    kinds = found.graph.vertices
    if given is not None:
        return choice("kind", given, kinds)
    if len(kinds) > 1:
        raise OptionError(
            "the graph has several kinds of vertices", f"say which are trained: --kind {' or '.join(kinds)}"
        )
    return next(iter(kinds))


def _features(given: Any, found: Workload) -> dict[str, int]:
    """The known numbers of columns, by kind."""
    kinds = found.graph.vertices
    by_kind = dict(given) if isinstance(given, Mapping) else {OTHERS: given}
    others = by_kind.pop(OTHERS, None)
    known = {choice("kind", kind, kinds): columns for kind, columns in by_kind.items()}
    return (dict.fromkeys(kinds, others) if others else {}) | known


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _train_count(found: Workload, kind: str, train: int | None) -> int:
    vertices = found.graph.vertices[kind]
    known = found.published.train if found.published else vertices
    if not vertices:
        of = f" of kind {kind}" if found.is_typed else ""
        raise GraphDataError(f"the graph has no vertices{of}", "train on one that has")
    if train is not None and train > vertices:
        of = f" of kind {kind}" if found.is_typed else ""
        raise OptionError(f"'train' is {train}", f"the graph has {counted(vertices, 'vertex', 'vertices')}{of}")
    return train or known


def _distinct(vertices: int, count: int, random: np.random.Generator) -> Longs:
    """`count` different vertices, in random order."""
    if count * 4 > vertices:
        return random.permutation(vertices)[:count].astype(np.int64)
    found = np.unique(random.integers(0, vertices, 2 * count + 16))
    return random.permutation(found)[:count].astype(np.int64)

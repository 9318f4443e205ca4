"""Functions that start from compiled models: compare two of them, or explain one node and its alternatives."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pimflow.bundle.files import path_argument
from pimflow.compiled import CompiledModel, load
from pimflow.compiled.original import read_model
from pimflow.compiler import clean_up
from pimflow.data import encode, read_argument
from pimflow.errors import ArgumentError, OutputError, kind_of
from pimflow.ir import Graph
from pimflow.ir.analysis.alignment import align
from pimflow.options import Options
from pimflow.report.difference import Difference, Side, difference_of
from pimflow.report.explaining import explain_node
from pimflow.report.explanation import Explanation
from pimflow.report.measures import origin_of
from pimflow.search.progress import receiver_of
from pimflow.search.solver import learning
from pimflow.verify.verification import Verification


def diff(a: str | Path | CompiledModel, b: str | Path | CompiledModel) -> Difference:
    """Compares two compiled models: options, machines, totals, and every node of the originals.

    Nodes are matched by name, or by what they compute where the names differ.

    Args:
        a, b: output folders, or compiled models.

    Returns:
        A row per node.

    Raises:
        ArgumentError: `a` or `b` is neither.
        ModelError: a folder is not an output folder, or is damaged.
    """
    first, second = opened_model("a", a), opened_model("b", b)
    sides = (_side("A" if first is a else str(a), first), _side("B" if second is b else str(b), second))
    return difference_of(*sides, _pairs(first, second))


def explain(
    compiled: str | Path | CompiledModel, node: str, *, progress: Callable[[str], None] | None = None
) -> Explanation:
    """Explains why a node runs where it does: what the alternatives cost, and what would change the choice.

    Args:
        compiled: an output folder, or a compiled model.
        node: name of a node of the original.
        progress: called with a line of text from time to time.

    Returns:
        A row per alternative.

    Raises:
        ArgumentError: `compiled` is neither, or there is no such node.
        ModelError: a folder is not an output folder, or is damaged.
    """
    opened, name = opened_model("compiled", compiled), read_argument("node", str, node)
    machine = opened.machine
    graph, tell = original_graph(opened), receiver_of(progress)
    with learning(opened.options, costs=machine.costs):
        return explain_node(graph, opened.plan, opened.report, name, machine.costs, machine.measured, tell)


def verify_output(folder: str | Path, *, progress: Callable[[str], None] | None = None, **how: Any) -> Verification:
    """Verifies an output folder and keeps the result in it. If it cannot be written, a warning says so.

    Args:
        folder: the output folder.
        progress: called with a line of text from time to time.
        how: the other arguments of `CompiledModel.verify`.

    Raises:
        ModelError: the folder is not an output folder, or is damaged.
        PimflowError: see `CompiledModel.verify`.
    """
    compiled = load(folder)
    found = compiled.verify(progress=progress, **how)
    try:
        compiled.keep(folder, found)
    except OutputError as error:
        warnings.warn(f"the result cannot be stored: {error}", stacklevel=2)
    return found


def opened_model(name: str, given: Any) -> CompiledModel:
    """The compiled model that an argument names: the model itself, or the folder of one.

    Raises:
        ArgumentError: it is neither.
        ModelError: a folder is not an output folder, or is damaged.
    """
    if isinstance(given, CompiledModel):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(f"'{name}' is {kind_of(given)}", "give an output folder or a compiled model")
    return load(path_argument(given, name))


def _side(label: str, compiled: CompiledModel) -> Side:
    units = compiled.machine.costs.units
    programs: dict[str, list[str]] = {}
    for name, program in compiled.programs.items():
        node = compiled.graph.node(name)
        programs.setdefault(origin_of(node), []).append(units[node.device or ""].describe(program))
    return Side(
        label,
        compiled.source.text,
        compiled.source.sha256,
        compiled.machine.target,
        encode(compiled.options),
        compiled.report,
        compiled.memory.arena_bytes,
        {name: "; ".join(dict.fromkeys(filter(None, texts))) for name, texts in programs.items()},
    )


def _pairs(a: CompiledModel, b: CompiledModel) -> dict[str, str]:
    """Matching nodes of the two originals, by name. The originals are read again only if names do not match."""
    names_a, names_b = ({row.name: row.op for row in compiled.report.nodes} for compiled in (a, b))
    if names_a.items() == names_b.items():
        return {name: name for name in names_a}
    return dict(align(original_graph(a), original_graph(b)).pairs)


def original_graph(compiled: CompiledModel) -> Graph:
    """The graph that the search saw: the original, read again and cleaned up."""
    options = original_options(compiled)
    compiled.source.check_unchanged()
    return clean_up(read_model(compiled.source, options).graph, compiled.machine, options).graph


def original_options(compiled: CompiledModel) -> Options:
    """The options to read and clean up the original with: those of the compilation, and its graph as it was then."""
    if compiled.network is None:
        return compiled.options
    return replace(compiled.options, graph=compiled.network.adjacency)

"""Reads a compiled model from its folder."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pimflow.bundle.files import path_argument, read_json
from pimflow.bundle.folder import find_output
from pimflow.bundle.graphs import read_graph
from pimflow.bundle.manifest import MANIFEST, VERIFICATION, change_since
from pimflow.bundle.original import find_original
from pimflow.bundle.programs import read_programs
from pimflow.bundle.source import ZOO_PREFIX, ModelSource, model_source
from pimflow.bundle.verification import output_digest, stored_checks
from pimflow.compiled.machine import Machine
from pimflow.compiled.model import CompiledModel
from pimflow.compiled.writing import FORMAT, GRAPH, PROGRAM, SPARSE_PROGRAM, WRITTEN, Header, devices_off_the_host
from pimflow.data import decode, is_folder, pick, read_file
from pimflow.errors import DataError, GraphDataError, ModelError, TargetError
from pimflow.ir import Graph, Plan
from pimflow.options import Options
from pimflow.report.network import Network
from pimflow.report.plan_report import PlanReport
from pimflow.sparse import Graph as Adjacency
from pimflow.targets import parse_target


def load(folder: str | Path) -> CompiledModel:
    """Reads an output folder of `save`.

    Raises:
        ModelError: it is not an output folder, or files in it are missing, changed or damaged.
        OutputError: a killed run had moved the folder aside, and it cannot be put back.
        ArgumentError: it is not a path.
    """
    folder = path_argument(folder, "folder")
    if is_folder(folder) and not os.access(folder, os.R_OK | os.X_OK):
        raise ModelError(f"{folder} cannot be read: {os.strerror(errno.EACCES)}", "check its permissions")
    if not find_output(folder):
        raise ModelError(f"{folder} is not an output folder of pimflow", "make one with `pimflow compile MODEL -o DIR`")
    with _part(folder, MANIFEST):
        digest = output_digest(folder)
    _check_unchanged(folder)
    header, options = _read_config(folder)
    original = _original_of(folder, header)
    machine = Machine.of(options)
    network = None
    if header.graph_is_estimate is not None:
        with _part(folder, GRAPH) as path:
            network = Network(Adjacency.load(path), header.graph_is_estimate)
    graph = read_graph(folder / (PROGRAM if network is None else SPARSE_PROGRAM))
    with _part(folder, "plan.json") as path:
        document = read_json(path)
        plan = decode(Plan, pick(document, "plan")[0], tagged=True, path="plan")
        report = PlanReport.from_json(document, machine.target.devices)
        _check_nodes(plan, report, machine.target.host)
    with _part(folder, VERIFICATION):
        checks = stored_checks(folder, digest)
    return CompiledModel(
        source=original,
        options=options,
        machine=machine,
        plan=plan,
        graph=graph,
        programs=_read_streams(folder, graph, machine),
        report=report,
        command=header.command,
        network=network,
        output_sha256=digest,
        checks=checks,
    )


def _check_nodes(plan: Plan, report: PlanReport, host: str) -> None:
    """Checks that a plan and its report are of the same nodes, on this machine.

    Raises:
        DataError: they are not.
    """
    if plan.host != host:
        raise DataError(f"'plan.host' is {plan.host!r}, and the host of the machine {host!r}")
    planned = Counter(name for decision in plan.decisions for name in decision.nodes)
    reported = Counter(row.name for row in report.nodes)
    if planned != reported:
        name = min((planned - reported) + (reported - planned))
        raise DataError(f"'nodes' and 'plan.decisions' differ in {name!r}")


def _check_unchanged(folder: Path) -> None:
    """Compares the files with the digests in the manifest. Other content of the folder does not matter."""
    try:
        name = change_since(folder, WRITTEN)
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror}", "check its permissions") from None
    if name is not None:
        raise ModelError(
            f"{folder} is damaged: {name} is missing, was changed or added since", "compile the model again"
        )


def _original_of(folder: Path, header: Header) -> ModelSource:
    if header.original.startswith(ZOO_PREFIX):
        return replace(model_source(header.original), name=header.name)
    source = ModelSource(header.name, path=find_original(folder, header.original))
    with _part(folder, header.original):
        if source.sha256 != header.original_sha256:
            raise DataError("it is not the model that was compiled")
    return source


@contextmanager
def _part(folder: Path, name: str) -> Iterator[Path]:
    """Opens a file of an output folder for reading: any error due to damage becomes one line."""
    try:
        yield folder / name
    except OSError as error:
        raise ModelError(f"{folder} is damaged: {name}: {error.strerror}", "compile the model again") from None
    except (ValueError, ArithmeticError, DataError, GraphDataError) as error:
        raise ModelError(f"{folder} is damaged: {name}: {error}", "compile the model again") from None


def _read_config(folder: Path) -> tuple[Header, Options]:
    with _part(folder, "config.json") as path:
        config = decode(Mapping[str, Any], read_json(path))
        form, versions = pick(config, "format", "versions")
        if form != FORMAT:
            (version,) = pick(versions, "pimflow")
            raise ModelError(f"{folder} was written by pimflow {version}", "compile the model again")
        names = {field.name for field in fields(Header)}
        header = decode(Header, {key: value for key, value in config.items() if key in names})
        options = decode(Options, {key: value for key, value in config.items() if key not in names})
    with _part(folder, "target.toml") as path:
        text = read_file(path).decode("utf-8")
        try:
            target = parse_target(text, "the machine")
        except TargetError as error:  # its remedy is for a user's own file
            raise DataError(error.what) from None
    return header, replace(options, target=header.machine.restored(target))


def _read_streams(folder: Path, graph: Graph, machine: Machine) -> dict[str, Any]:
    units = machine.costs.units
    with _part(folder, "streams.json.gz") as path:
        programs = read_programs(path, devices_off_the_host(graph, units), units)
        _check_work(programs, graph, machine)
        return programs


def _check_work(programs: Mapping[str, Any], graph: Graph, machine: Machine) -> None:
    """Checks that every node on a unit has a program, which does the node's work.

    Raises:
        DataError: one has none, or the program is for other work.
    """
    for name, device in devices_off_the_host(graph, machine.costs.units).items():
        if name not in programs:
            raise DataError(f"'nodes' has no program for {name!r}")
        done = machine.costs.units[device].work_of(programs[name])
        if done is not None and done != machine.costs.work(graph, graph.node(name), device):
            raise DataError(f"the program of {name!r} is for another node")

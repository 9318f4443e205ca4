"""Functions that need no model: layers, traces, measured kernels, and listings of what ships with pimflow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pimflow.bundle.files import path_argument
from pimflow.bundle.source import ZOO_PREFIX, model_source
from pimflow.codegen import ConvProblem, MatmulProblem
from pimflow.data import read_argument
from pimflow.errors import ArgumentError, choice, kind_of
from pimflow.report.calibration import CalibrationReport
from pimflow.report.layer import LayerReport, report_layer
from pimflow.report.pass_list import all_passes_help
from pimflow.report.profile import Profile
from pimflow.report.records import Listing
from pimflow.report.targets import targets_json
from pimflow.report.traces import TracesReport, report_traces
from pimflow.runtime.gpu.calibrate import FoldsBy, Tables, calibrate_target, check_target
from pimflow.runtime.gpu.measured import MeasuredRow
from pimflow.targets import DEFAULT_TARGET, Target, every_target, load_target

if TYPE_CHECKING:
    import onnx


def layer(
    work: ConvProblem | MatmulProblem,
    *,
    mapping: str = "",
    operand: str = "",
    target: str | Path | Target = DEFAULT_TARGET,
) -> LayerReport:
    """Maps a single layer onto the first unit of a machine that multiplies matrices: cycles, commands and energy.

    Args:
        work: a convolution or a matrix product.
        mapping: a mapping policy of the unit, as for `pimflow layer --mapping`; "" for the best one.
        operand: element type of the operands: "" for the unit's own, or "int8" if the target has `[pim.int8]`.
        target: a target, or the name or file of one.

    Returns:
        One row.

    Raises:
        ArgumentError: `work` is not a layer, or `target` not a target.
        OptionError: there is no such unit, mapping or operand, or the layer cannot run on the unit.
    """
    choice, kind = read_argument("mapping", str, mapping), read_argument("operand", str, operand)
    return report_layer(work, load_target(target), choice, kind)


def simulate(
    files: str | Path | Sequence[str | Path],
    *,
    target: str | Path | Target = DEFAULT_TARGET,
    reopen_rows: bool = False,
    operand: str = "",
) -> TracesReport:
    """Times command traces of one PIM channel each, plain or gzipped.

    Args:
        files: paths of the traces.
        target: a target, or the name or file of one.
        reopen_rows: under the timing profile `artifact`, whether the controller reopens rows that a refresh closed.
        operand: element type that the traces were written for: "" for the machine's own, or "int8".

    Returns:
        A row per file: cycles, commands, energy.

    Raises:
        ArgumentError: `files` are not paths, or `target` is not a target.
        TraceError: a file cannot be read, or a line is malformed.
        CommandOrderError: the hardware would refuse a command.
        OptionError: the machine does not support such operands.
    """
    paths: Any = [files] if isinstance(files, (str, os.PathLike)) else files
    if not isinstance(paths, Sequence):
        raise ArgumentError(f"'files' is {kind_of(files)}", "give a path, or a list of paths")
    names = [str(path_argument(path, "files")) for path in paths]
    kind, reopens = read_argument("operand", str, operand), read_argument("reopen_rows", bool, reopen_rows)
    return report_traces(names, load_target(target), reopens_rows=reopens, operand=kind)


def calibrate(
    tables: Tables | Profile,
    *,
    target: str | Path | Target = DEFAULT_TARGET,
    folds: int = 5,
    folds_by: str = "turn",
    check: bool = False,
    name: str | None = None,
) -> CalibrationReport:
    """Fits the GPU parameters of a target to measured kernels, with cross-validation.

    Args:
        tables: CSV files written by `profile`, published tables, or the result of `profile`.
        target: where the fit starts: a target, or the name or file of one.
        folds: number of folds of the cross-validation, 2 or more.
        folds_by: what each fold holds out: "turn" for every `folds`-th kernel, "size" for kernels of similar size.
        check: do not fit; only report the errors of the target as it is.
        name: of the fitted target; by default the name of `target` with "-calibrated" appended.

    Returns:
        A row per class of operation; it also holds the fitted target.

    Warns:
        CalibrationWarning: the rows do not determine all parameters that are fitted.

    Raises:
        ArgumentError: `tables` are not tables, or `target` is not a target.
        InputDataError: a table cannot be read, or has too few kernels.
        OptionError: there are fewer than two folds, or `folds_by` is unknown.
    """
    rows = tables.kernels if isinstance(tables, Profile) else tables
    tables_given: Any = rows if isinstance(rows, Sequence) and not isinstance(rows, str) else [rows]
    for table in tables_given:
        if not isinstance(table, (str, os.PathLike, MeasuredRow)):
            raise ArgumentError(f"'tables' has {kind_of(table)}", "give CSV files, or what `profile` returns")
    machine = load_target(target)
    if read_argument("check", bool, check):
        return CalibrationReport(check_target(machine, rows))
    by = choice("folds_by", read_argument("folds_by", str, folds_by), get_args(FoldsBy))
    folds, name = read_argument("folds", int, folds), read_argument("name", str | None, name)
    return CalibrationReport(calibrate_target(machine, rows, folds=folds, by=by, name=name))


def zoo() -> Listing:
    """Lists the models that ship with pimflow, a row each: `name`, `description`, `input`, `parameters`, and `macs`."""
    import pimflow_zoo

    entries = [pimflow_zoo.entry(name) for name in (*pimflow_zoo.names(), *pimflow_zoo.networks())]
    rows = [
        {
            "name": entry.name,
            "description": pimflow_zoo.describe(entry.name),
            "input": entry.input,
            "parameters": entry.parameters,
            "macs": entry.macs,
        }
        for entry in entries
    ]
    return Listing("models of the zoo", rows)


def zoo_model(name: str) -> onnx.ModelProto:
    """Builds a model of the zoo as ONNX.

    Raises:
        OptionError: the zoo has no model of this name, or it is not text.
    """
    import pimflow_zoo

    known = model_source(f"{ZOO_PREFIX}{read_argument('name', str, name)}").zoo
    model: onnx.ModelProto = pimflow_zoo.build(known)
    return model


def list_targets() -> Listing:
    """Lists the machines that `load_target` knows by name, a row each: `name`, `description` and what every unit is."""
    rows = [
        {"name": target["name"], "description": target["description"], **target["units"]}
        for target in targets_json(every_target())
    ]
    return Listing("targets", rows)


def list_passes() -> Listing:
    """Lists the passes of `opt`, a row each: `name`, what it does (`help`) and its options."""
    rows = []
    for known in all_passes_help():
        options = ", ".join(f"{option.name}={option.default or option.takes}" for option in known.options)
        rows.append({"name": known.name, "help": known.help, "options": options})
    return Listing("passes", rows)

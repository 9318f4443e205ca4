"""Functions that start from a model, apart from `compile` and `opt`: inspect, compare, front, profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pimflow.api.outputs import original_options
from pimflow.bundle.files import path_argument
from pimflow.bundle.source import ModelSource, model_source
from pimflow.compiled import Machine, load
from pimflow.compiled.original import read_model
from pimflow.compiler import clean_graph, clean_up, network_of
from pimflow.data import Limits, is_folder, read_argument
from pimflow.errors import OptionError
from pimflow.options import Fixed, OptionKeywords, Options, Shapes, takes_options
from pimflow.passes import notes_of
from pimflow.report.basis import gpu_basis
from pimflow.report.front import Front, front_points
from pimflow.report.inspection import Inspection, inspect_graph
from pimflow.report.measures import measure
from pimflow.report.policies import Comparison, compare_graph
from pimflow.report.profile import Profile
from pimflow.search.policy import find_policy
from pimflow.search.pricing import host_alone
from pimflow.search.progress import receiver_of
from pimflow.targets import TargetRecord

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack


@takes_options()
def inspect(model: str | Path | bytes | onnx.ModelProto, **options: Unpack[OptionKeywords]) -> Inspection:
    """Finds out which nodes of a model can run on PIM, and why the others cannot.

    Args:
        model: a path, "zoo:NAME", the bytes of an ONNX file, or an ONNX model in memory. For an output folder,
            its model is inspected on the machine that it was compiled for, with the results of its verification.
        options: as for `compile`; those of the search have no effect. An output folder has its own options.

    Returns:
        A row per node.

    Raises:
        PimflowError: as for `compile`.
    """
    parsed = Options.of(**options)
    if isinstance(model, (str, os.PathLike)) and is_folder(folder := path_argument(model, "model")):
        return _inspect_output(folder, parsed)
    find_policy(parsed.policy)  # has no effect, but an unknown one is a mistake
    return _inspect(model_source(model), parsed, Machine.of(parsed))


def _inspect_output(folder: Path, parsed: Options) -> Inspection:
    if parsed != Options():
        raise OptionError(
            f"{folder} is compiled: it has options of its own", "leave them out, or inspect the model itself"
        )
    compiled = load(folder)
    found = _inspect(compiled.source, original_options(compiled), compiled.machine)
    return replace(found, verification=tuple((check.passed, check.told) for check in compiled.checks))


def _inspect(source: ModelSource, parsed: Options, machine: Machine) -> Inspection:
    loaded = read_model(source, parsed)
    clean = clean_up(loaded.graph, machine, parsed)
    notes = (*loaded.notes, *notes_of(clean.records))
    return inspect_graph(clean.graph, machine.costs, source.text, source.sha256, notes, network_of(loaded))


@takes_options("objective")
def front(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    within_percent: float = 0.01,
    progress: Callable[[str], None] | None = None,
    **options: Unpack[OptionKeywords],
) -> Front:
    """Finds the Pareto front of a policy's plans in time and energy.

    Args:
        model: a path, "zoo:NAME", the bytes of an ONNX file, or an ONNX model in memory.
        within_percent: leaves out slower plans that save at most this much energy over one that is kept; 0 keeps all.
        progress: called with a line of text from time to time.
        options: as for `compile`, except `objective`.

    Returns:
        A row per plan, fastest first.

    Raises:
        PimflowError: as for `compile`.
    """
    if "objective" in options:
        raise OptionError("'objective' is an option of `compile`", "leave it out: the front is of time against energy")
    within = read_argument("within_percent", Annotated[float, Limits(least=0)], within_percent)
    source, parsed = model_source(model), Options.of(**options)
    machine = Machine.of(parsed)
    graph = clean_graph(source, parsed).graph
    points = front_points(graph, parsed, costs=machine.costs, progress=receiver_of(progress), within_percent=within)
    alone = measure(host_alone(graph, machine.costs), machine.costs.host_only())
    return Front(
        source.text,
        source.sha256,
        TargetRecord.of(machine.target),
        points[0].plan.policy,
        gpu_basis(machine.target, measured=machine.measured is not None),
        alone.time_us,
        alone.energy_mj,
        within,
        points,
    )


@takes_options("policy")
def compare(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    policies: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Unpack[OptionKeywords],
) -> Comparison:
    """Compares the plans of several policies.

    Args:
        model: a path, "zoo:NAME", the bytes of an ONNX file, or an ONNX model in memory.
        policies: names of policies; by default all that the machine supports.
        progress: called with a line of text from time to time.
        options: as for `compile`, except `policy`.

    Returns:
        A row per policy.

    Raises:
        PimflowError: as for `compile`.
    """
    if "policy" in options:
        raise OptionError("'policy' is an option of `compile`", "give 'policies', a list of names")
    names = None if policies is None else read_argument("policies", tuple[str, ...], policies)
    source, parsed = model_source(model), Options.of(**options)
    machine = Machine.of(parsed)
    measured = machine.measured is not None
    graph = clean_graph(source, parsed).graph
    results = compare_graph(
        graph, parsed, names, costs=machine.costs, measured=measured, progress=receiver_of(progress)
    )
    basis = gpu_basis(machine.target, measured=measured)
    return Comparison(source.text, source.sha256, TargetRecord.of(machine.target), basis, tuple(results))


def profile(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    device: str = "cpu",
    gpu_operand: str | None = None,
    runs: int = 20,
    warmup: int = 5,
    shapes: Shapes | None = None,
    fixed: Fixed | None = None,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Times every distinct kernel of a model on this machine.

    Args:
        model: a path, "zoo:NAME", the bytes of an ONNX file, or an ONNX model in memory.
        device: "cpu" (ONNX Runtime) or "cuda" (PyTorch, if it is installed).
        gpu_operand: on a CUDA device, the type of operands: "fp16" (the default) or "fp32".
        runs: how often each kernel is timed; its row has the median.
        warmup: untimed runs before those.
        shapes: shapes by input name, or sizes by symbolic dimension, for dimensions without a size.
        fixed: values of inputs to replace by constants.
        progress: called with a line of text from time to time.

    Returns:
        A row per kernel.

    Raises:
        PimflowError: as for `compile`; or the device is not available, or a count is not positive.
    """
    from pimflow.runtime.gpu.profiling import profile_model

    tell = receiver_of(progress)
    device = read_argument("device", str, device)
    runs, warmup = (read_argument(name, int, count) for name, count in (("runs", runs), ("warmup", warmup)))
    source = model_source(model)
    rows = profile_model(
        clean_graph(source, Options.of(shapes=shapes, fixed=fixed)).graph,
        device,
        gpu_operand=read_argument("gpu_operand", str | None, gpu_operand),
        warmup=warmup,
        repeats=runs,
        progress=lambda done, count: tell(f"timing kernels: {done} of {count}"),
    )
    return Profile(source.text, tuple(rows))

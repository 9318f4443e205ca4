"""Every compilation, from a model to a `CompiledModel`; and what else starts from a cleaned-up model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimflow.bundle.graphs import read_graph
from pimflow.bundle.source import ModelSource, model_source
from pimflow.compiled import CompiledModel, Machine
from pimflow.frontend import load_model
from pimflow.ir import Graph, Node, Plan, Refusal
from pimflow.options import DEFAULT_POLICY, Debug, Options, Shapes
from pimflow.passes import (
    CLEANUP,
    COMPILATION,
    ManagerResult,
    Pass,
    PassManager,
    parse_pipeline,
    place,
    times_table,
)
from pimflow.report.inspection import Inspection, inspect_graph
from pimflow.report.plan_report import report_plan
from pimflow.search import find_policy, solve
from pimflow.targets import DEFAULT_TARGET, Target, load_target
from pimflow.verify.each_pass import EachPass

if TYPE_CHECKING:
    import onnx

    from pimflow.report.policies import PolicyResult
    from pimflow.runtime.gpu.measured import MeasuredRow

ProgressSink = Callable[[str], None]


def _silent(text: str) -> None:
    """Progress that nobody wants to see."""


def program_of(graph: Graph, node: Node, machine: Machine) -> Any:
    """What a unit executes for a node that is placed on it: the program that its price is the price of.

    Raises:
        RuntimeError: the node cannot run there, though the search placed it there.
    """
    unit = machine.costs.units[node.device or ""]
    work = unit.work(graph, node)
    choice = unit.resolve(node.placement.choice or "")
    program = work if isinstance(work, Refusal) else unit.program(work, choice)
    if isinstance(program, Refusal):
        raise RuntimeError(f"{node.name!r} is placed on {unit.device}, but: {program.reason}")
    return program


def _step(passes: tuple[Pass, ...], options: Options) -> PassManager:
    """The manager of some of a compilation's passes: to name one of the others is no mistake."""
    return _manager(passes, options.debug, options.seed, options.disabled_passes, COMPILATION)


def _manager(
    passes: tuple[Pass, ...], debug: Debug, seed: int, disabled: Sequence[str], known: tuple[type[Pass], ...] = ()
) -> PassManager:
    return PassManager(
        passes,
        disabled=tuple(disabled),
        print_before=debug.print_before,
        print_after=debug.print_after,
        print_after_all=debug.print_after_all,
        show=debug.show or _to_stderr,
        check=EachPass(seed) if debug.verify_each else None,
        known=known,
    )


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def compile_with(source: ModelSource, options: Options, progress: ProgressSink = _silent) -> CompiledModel:
    """Compiles a model: load, clean, search, rewrite, lower, report.

    Raises:
        PimflowError: the model, the target or an option is wrong.
        PassError: a pass is faulty; the message names it.
    """
    find_policy(options.policy)  # wrong names are reported before the model is read
    cleanup = _step(CLEANUP, options)
    machine = Machine(options.target, options.measured_table())
    progress(f"load {source.name}")
    loaded = load_model(source.content, options.shapes)
    progress(f"clean {source.name}")
    clean = cleanup.run(loaded)
    progress(f"search {source.name}")
    plan = _search(clean.graph, options, machine, progress)
    progress(f"rewrite {source.name}")
    rewritten = _step(place(plan), options).run(clean.graph)
    if options.debug.print_times:
        (options.debug.show or _to_stderr)(times_table((*clean.records, *rewritten.records)))
    progress(f"lower {source.name}")
    programs = _lower(rewritten.graph, machine, progress)
    progress(f"report {source.name}")
    report = report_plan(clean.graph, plan, rewritten.graph, machine.costs)
    return CompiledModel(source, options, machine, plan, rewritten.graph, programs, report)


def _search(clean: Graph, options: Options, machine: Machine, progress: ProgressSink) -> Plan:
    return solve(
        clean,
        options.target,
        options.policy,
        costs=machine.costs,
        cache=options.use_cache,
        grid=None if options.grid is None else options.grid / 100,
        stages=options.stages,
        time_budget_s=options.time_budget_s,
        progress=lambda what, count: progress(f"search: {what}: {count}"),
    )


def _lower(graph: Graph, machine: Machine, progress: ProgressSink) -> dict[str, Any]:
    """What the units execute for every node that leaves the host, by node name."""
    programs = {}
    for node in graph.nodes:
        if node.device in machine.costs.units:
            progress(f"lowering {node.name}")
            programs[node.name] = program_of(graph, node, machine)
    return programs


def compile(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    target: str | Path | Target = DEFAULT_TARGET,
    policy: str = DEFAULT_POLICY,
    shapes: Shapes | None = None,
    grid: int | None = None,
    stages: Sequence[int] | None = None,
    time_budget_s: float | None = None,
    disabled_passes: Sequence[str] = (),
    seed: int = 0,
    use_cache: bool = True,
    profile: str | Path | None = None,
    debug: Debug | None = None,
    progress: ProgressSink | None = None,
) -> CompiledModel:
    """Compiles a model for a machine with PIM memory.

    Args:
        model: a path, "zoo:NAME", the bytes of an ONNX file, or an ONNX model in memory.
        target: a target's name, a TOML file, or a `Target`.
        policy: a search policy's name (`pimflow.policies()`), case-insensitive.
        shapes: shapes by input name, or sizes by symbolic dimension, for what the model leaves open.
        grid: step of the MD-DP split ratios in percent, in place of the policy's.
        stages: pipeline stage counts to try, in place of the policy's.
        time_budget_s: stop searching after so many seconds with the best plan so far.
        disabled_passes: clean-up passes to leave out, by name.
        seed: seed of the inputs that checks make up.
        use_cache: whether the profile table on disk is read and written.
        profile: a CSV file of measured kernel times that stand in for the GPU model.
        debug: what to show and check between passes.
        progress: receives a line of text now and then.

    Raises:
        PimflowError: the model, the target or an option is wrong; one line says what and what to do.
    """
    options = Options(
        target=target if isinstance(target, Target) else load_target(target),
        policy=policy,
        shapes=dict(shapes or {}),
        grid=grid,
        stages=None if stages is None else tuple(stages),
        time_budget_s=time_budget_s,
        disabled_passes=tuple(disabled_passes),
        seed=seed,
        use_cache=use_cache,
        profile=None if profile is None else str(profile),
        debug=debug or Debug(),
    )
    return compile_with(model_source(model), options, progress or _silent)


def opt(
    model: str | Path | bytes | onnx.ModelProto | Graph,
    passes: str | Sequence[Pass],
    *,
    constants: str | Path | None = None,
    shapes: Shapes | None = None,
    disabled_passes: Sequence[str] = (),
    seed: int = 0,
    debug: Debug | None = None,
) -> ManagerResult:
    """Runs passes over a graph, one after the other.

    Args:
        model: a path to an ONNX model or to a graph in text form (`*.pimir`), "zoo:NAME", the bytes of an ONNX file, an
            ONNX model in memory, or a graph.
        passes: the passes, or a text like "cleanup,md-dp-split{node=conv1 gpu_rows=28}" (`pimflow opt --list` has them
            all).
        constants: an npz file of the constants that a text elides; by default the one beside it.
        shapes: shapes by input name, or sizes by symbolic dimension, for what an ONNX model leaves open.
        disabled_passes: passes to leave out, by name.
        seed: seed of the inputs that `debug.verify_each` makes up.
        debug: what to show and check between passes.

    Returns:
        The graph, and a record of every pass: its time, and notes on what it left as it was and why.

    Raises:
        PimflowError: the model or the passes are wrong, or a pass cannot do what its options ask for.
        PassError: a pass is faulty; the message names it.
    """
    steps = parse_pipeline(passes) if isinstance(passes, str) else tuple(passes)
    debug = debug or Debug()
    manager = _manager(steps, debug, seed, disabled_passes)
    graph = model if isinstance(model, Graph) else read_graph(model, shapes, constants)
    result = manager.run(graph)
    if debug.print_times:
        (debug.show or _to_stderr)(times_table(result.records))
    return result


def clean_graph(source: ModelSource, options: Options) -> Graph:
    """The model as the search sees it: loaded and cleaned up.

    Raises:
        PimflowError: the model cannot be read, or its shapes are not bound.
    """
    return _step(CLEANUP, options).run(load_model(source.content, options.shapes)).graph


def inspect_model(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    target: str | Path | Target = DEFAULT_TARGET,
    shapes: Shapes | None = None,
) -> Inspection:
    """Which nodes of a model can go to PIM, and why the others cannot.

    Raises:
        PimflowError: as `compile`.
    """
    machine = target if isinstance(target, Target) else load_target(target)
    source = model_source(model)
    graph = clean_graph(source, Options(target=machine, shapes=dict(shapes or {})))
    return inspect_graph(graph, Machine(machine).costs, source.text)


def profile_source(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    device: str = "cpu",
    shapes: Shapes | None = None,
    runs: int = 20,
    warmup: int = 5,
    progress: ProgressSink = _silent,
) -> list[MeasuredRow]:
    """Times the model's kernels on this machine, each once: medians of `runs` runs after `warmup` others.

    Raises:
        PimflowError: as `compile`; or the device is not at hand.
    """
    from pimflow.runtime.gpu.profiling import profile_model

    graph = clean_graph(model_source(model), Options(shapes=dict(shapes or {})))
    return profile_model(
        graph,
        device,
        warmup=warmup,
        repeats=runs,
        progress=lambda done, count: progress(f"timing kernels: {done} of {count}"),
    )


def compare_policies(
    model: str | Path | bytes | onnx.ModelProto,
    options: Options,
    policies: Sequence[str] | None = None,
    progress: ProgressSink = _silent,
) -> list[PolicyResult]:
    """Plans of several policies side by side; all policies by default. `options.policy` is not used.

    Raises:
        PimflowError: as `compile`.
    """
    from pimflow.report.policies import compare

    graph = clean_graph(model_source(model), options)
    return compare(
        graph,
        options.target,
        policies,
        costs=Machine(options.target, options.measured_table()).costs,
        cache=options.use_cache,
        grid=None if options.grid is None else options.grid / 100,
        stages=options.stages,
        time_budget_s=options.time_budget_s,
        progress=lambda what, count: progress(f"search: {what}: {count}"),
    )

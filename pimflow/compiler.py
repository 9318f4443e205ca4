"""The pipeline as visible data: one ordered tuple of stages, each from a state to the next."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pimflow.bundle.source import ModelSource, model_source
from pimflow.codegen import problem_of
from pimflow.codegen.newton import PimProgram, lower
from pimflow.compiled import CompiledModel, Machine
from pimflow.errors import OptionError
from pimflow.frontend import load_model
from pimflow.ir import Graph, Plan, Refusal
from pimflow.ir.analysis.movement import annotate_movement
from pimflow.options import DEFAULT_POLICY, Debug, Options, Shapes
from pimflow.passes import ApplyPlan, Pass, PassManager, cleanup_passes
from pimflow.report.inspection import Inspection, inspect_graph
from pimflow.report.plan_report import PlanReport, report_plan
from pimflow.search import find_policy, solve
from pimflow.targets import DEFAULT_TARGET, Target, load_target
from pimflow.verify.each_pass import EachPass, fold_with_ort

if TYPE_CHECKING:
    import onnx

    from pimflow.report.policies import PolicyResult
    from pimflow.runtime.gpu.measured import MeasuredRow

ProgressSink = Callable[[str], None]
T = TypeVar("T")


def _silent(text: str) -> None:
    """Progress that nobody wants to see."""


@dataclass(frozen=True)
class State:
    """What the stages have made so far; each stage fills its own field."""

    source: ModelSource
    options: Options
    machine: Machine
    progress: ProgressSink
    loaded: Graph | None = None
    clean: Graph | None = None
    plan: Plan | None = None
    graph: Graph | None = None
    programs: Mapping[str, PimProgram] | None = None
    report: PlanReport | None = None


@dataclass(frozen=True)
class Stage:
    """One step of a compilation."""

    name: str
    run: Callable[[State], State]


def _have(item: T | None) -> T:
    if item is None:
        raise RuntimeError("a stage ran before the one that it builds on")
    return item


def _load(state: State) -> State:
    return replace(state, loaded=load_model(state.source.content, state.options.shapes))


def _clean(state: State) -> State:
    clean = _run_passes(state, _have(state.loaded), _cleanups())
    return replace(state, clean=annotate_movement(clean))


def _search(state: State) -> State:
    options = state.options
    plan = solve(
        _have(state.clean),
        options.target,
        options.policy,
        costs=state.machine.costs,
        cache=options.use_cache,
        grid=None if options.grid is None else options.grid / 100,
        stages=options.stages,
        time_budget_s=options.time_budget_s,
        progress=lambda what, count: state.progress(f"search: {what}: {count}"),
    )
    return replace(state, plan=plan)


def _rewrite(state: State) -> State:
    return replace(state, graph=_run_passes(state, _have(state.clean), (ApplyPlan(_have(state.plan)),)))


def _lower(state: State) -> State:
    graph, programs = _have(state.graph), {}
    for node in graph.nodes:
        if node.device == "pim":
            state.progress(f"lowering {node.name}")
            programs[node.name] = program_of(graph, node.name, state.machine)
    return replace(state, programs=programs)


def _report(state: State) -> State:
    report = report_plan(_have(state.clean), _have(state.plan), _have(state.graph), state.machine.costs)
    return replace(state, report=report)


STAGES = (
    Stage("load", _load),
    Stage("clean", _clean),
    Stage("search", _search),
    Stage("rewrite", _rewrite),
    Stage("lower", _lower),
    Stage("report", _report),
)
"""Every compilation, in order. What else follows from the result (timeline, memory) `CompiledModel` makes on demand."""


def program_of(graph: Graph, name: str, machine: Machine) -> PimProgram:
    """The command streams of a node that is placed on PIM, under the mapping that its price was made with.

    Raises:
        RuntimeError: the node cannot be lowered, though the search placed it on PIM.
    """
    node = graph.node(name)
    problem = problem_of(graph, node)
    if isinstance(problem, Refusal):
        raise RuntimeError(f"{name!r} is placed on PIM, but: {problem.reason}")
    cost = machine.costs.pim_cost(problem, node.placement.choice or "newton++")
    if isinstance(cost, Refusal):
        raise RuntimeError(f"{name!r} is placed on PIM, but: {cost.reason}")
    program = lower(problem, cost.mapping, machine.target.pim)
    if isinstance(program, Refusal):
        raise RuntimeError(f"{name!r} is placed on PIM, but: {program.reason}")
    return program


def _cleanups() -> tuple[Pass, ...]:
    return cleanup_passes(evaluate=fold_with_ort)


def _run_passes(state: State, graph: Graph, passes: Sequence[Pass]) -> Graph:
    debug = state.options.debug
    show = debug.show or _to_stderr
    names = {one.name for one in passes}
    manager = PassManager(
        tuple(passes),
        disabled=state.options.disabled_passes,
        print_before=debug.print_before,
        print_after_all=debug.print_after_all,
        show=show,
        check=EachPass(state.options.seed) if debug.verify_each else None,
        known=tuple({one.name for one in (*_cleanups(), ApplyPlan(Plan("", (), 0.0, 0.0)))} - names),
    )
    for name in state.options.disabled_passes:
        if name == "apply-plan":
            raise OptionError("pass 'apply-plan' carries out the plan and cannot be disabled", "use --policy gpu")
    result = manager.run(graph)
    if debug.print_times:
        show(result.times_table())
    return result.graph


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def compile_with(source: ModelSource, options: Options, progress: ProgressSink = _silent) -> CompiledModel:
    """Runs every stage.

    Raises:
        PimflowError: the model, the target or an option is wrong.
        PassError: a pass is faulty; the message names it.
    """
    find_policy(options.policy)  # a wrong name is said before the model is read
    state = State(source, options, Machine(options.target, options.measured_table()), progress)
    for stage in STAGES:
        progress(f"{stage.name} {source.name}")
        state = stage.run(state)
    return CompiledModel(
        source=source,
        options=options,
        machine=state.machine,
        plan=_have(state.plan),
        graph=_have(state.graph),
        programs=dict(_have(state.programs)),
        report=_have(state.report),
    )


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


def clean_graph(source: ModelSource, options: Options) -> Graph:
    """The model as the search sees it: loaded and cleaned up.

    Raises:
        PimflowError: the model cannot be read, or its shapes are not bound.
    """
    state = State(source, options, Machine(options.target), _silent)
    return _have(_clean(_load(state)).clean)


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

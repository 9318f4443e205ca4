"""The compilation pipeline, from a model to a `CompiledModel`, and the entry points that share its clean-up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimflow.bundle.source import ModelSource, model_source
from pimflow.compiled import CompiledModel, Machine
from pimflow.compiled.original import read_for_passes, read_model, run_original
from pimflow.compiled.stamp_cache import StampCache
from pimflow.errors import ArgumentError, kind_of, printable
from pimflow.frontend import Loaded
from pimflow.garbage import rare_collections
from pimflow.ir import Graph, Node, Refusal
from pimflow.ir.verify import verify_graph
from pimflow.options import Debug, Fixed, OptionKeywords, Options, Shapes, takes_options
from pimflow.passes import (
    CLEANUP,
    FoldNoEdges,
    ManagerResult,
    NarrowProducts,
    OrderAggregation,
    Pass,
    PassManager,
    PassRecord,
    PlaceFeatures,
    notes_of,
    parse_pipeline,
    passes_of_compilation,
    times_table,
)
from pimflow.report.network import Network
from pimflow.report.plan_report import report_plan
from pimflow.runtime.costs import CostModel
from pimflow.runtime.execute.background import in_background
from pimflow.search import policy_of, require_offered
from pimflow.search.aggregation_order import cheapest_order
from pimflow.search.capacity import Places
from pimflow.search.feature_places import feature_places
from pimflow.search.pricing import rewrites
from pimflow.search.progress import receiver_of, silent
from pimflow.search.solver import bound_of, cache_of, save_unit_records, solve
from pimflow.verify.each_pass import EachPass

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack

ProgressSink = Callable[[str], None]


def program_of(graph: Graph, node: Node, machine: Machine) -> Any:
    """The program that a unit executes for a node placed on it; the node's cost in the plan is the cost of this
    program.

    Raises:
        RuntimeError: the node cannot run there, although the search placed it there.
    """
    unit = machine.costs.units[node.device or ""]
    work = machine.costs.work(graph, node, unit.device)
    choice = unit.resolve(node.placement.choice or "")
    program = work if isinstance(work, Refusal) else unit.program(work, choice)
    if isinstance(program, Refusal):
        raise RuntimeError(f"{node.name!r} is placed on {unit.device}, but: {program.reason}")
    return program


def _pass_manager(passes: tuple[Pass, ...], options: Options) -> PassManager:
    """The manager of some of a compilation's passes. `disabled_passes` may name any pass of a compilation."""
    return _manager(passes, options, passes_of_compilation)


def _manager(
    passes: tuple[Pass, ...], options: Options, known: Callable[[], tuple[type[Pass], ...]] = tuple
) -> PassManager:
    debug = options.debug
    return PassManager(
        passes,
        disabled=options.disabled_passes,
        print_before=debug.print_before,
        print_after=debug.print_after,
        print_after_all=debug.print_after_all,
        show=debug.show or _to_stderr,
        check=EachPass(options.seed) if debug.verify_each else None,
        known=known,
    )


def clean_up(graph: Graph, machine: Machine, options: Options, *, is_trained: bool = False) -> ManagerResult:
    """The graph that the search sees: cleaned up, with low-precision products marked and relational layers and sums in
    their cheapest form; one that `is_trained` keeps sums of no edges, which are multiplied by parameters."""
    clean = tidy(graph, multiplies_narrow(machine.costs), options, is_trained=is_trained)
    if any(node.op.is_sparse for node in clean.graph.nodes):
        clean = _with_relational_form(clean, machine, options)
    return _with_placed_tables(_with_ordered_sums(clean, machine, options), machine, options)


def _with_relational_form(clean: ManagerResult, machine: Machine, options: Options) -> ManagerResult:
    """Brings relational layers into their cheapest form."""
    from pimflow.passes.relational import RELATIONAL  # few models have such layers
    from pimflow.search.relational_form import relational_form

    allowed = [kind for kind in RELATIONAL if kind.name not in options.disabled_passes]
    chosen = relational_form(clean.graph, machine.costs, options, allowed)
    made = _pass_manager(chosen.passes, options).run(clean.graph)
    return replace(clean, graph=made.graph, records=(*clean.records, *made.records, *chosen.records))


def _with_ordered_sums(clean: ManagerResult, machine: Machine, options: Options) -> ManagerResult:
    """Moves sums over edges before or after the adjacent products, whichever is cheaper."""
    if OrderAggregation.name in options.disabled_passes or not any(node.op.is_sparse for node in clean.graph.nodes):
        return clean
    started = time.perf_counter()
    ordered = cheapest_order(clean.graph, machine.costs, options)
    seconds = time.perf_counter() - started
    record = PassRecord(OrderAggregation.name, seconds, ordered.changed, len(ordered.graph.nodes), ordered.notes)
    return replace(clean, graph=ordered.graph, records=(*clean.records, record))


def _with_placed_tables(clean: ManagerResult, machine: Machine, options: Options) -> ManagerResult:
    """Places large tables in memory, and chooses the cheapest way to fetch their rows."""
    if PlaceFeatures.name in options.disabled_passes:
        return clean
    chosen = feature_places(clean.graph, machine.costs, options)
    placed = _pass_manager(chosen.passes, options).run(clean.graph)
    return replace(clean, graph=placed.graph, records=(*clean.records, *placed.records, *chosen.records))


def tidy(graph: Graph, narrow: bool, options: Options, *, is_trained: bool = False) -> ManagerResult:
    """A cleaned-up graph, independent of the machine; `narrow` also marks low-precision products."""
    passes = tuple(step for step in CLEANUP if not (is_trained and isinstance(step, FoldNoEdges)))
    return _pass_manager((*passes, NarrowProducts()) if narrow else passes, options).run(graph)


def multiplies_narrow(costs: CostModel) -> bool:
    """Whether a unit of the machine multiplies low-precision integers."""
    return any(unit.narrow_operands for unit in costs.units.values())


def _print_times(records: Sequence[PassRecord], options: Options) -> None:
    if options.debug.print_times:
        (options.debug.show or _to_stderr)(times_table(records))


def _to_stderr(text: str) -> None:
    print(printable(text, keep="\n"), file=sys.stderr)


@rare_collections()
def compile_with(source: ModelSource, options: Options, progress: ProgressSink = silent) -> CompiledModel:
    """Compiles a model: load, clean up, search, rewrite, lower, report.

    Raises:
        PimflowError: the model, the target or an option is wrong.
        PassError: a pass is faulty; the message names it.
    """
    machine = Machine.of(options)
    require_offered(policy_of(options), machine.costs.units)  # report unknown names before reading the model
    progress(f"load {source.name}")
    if source.path is not None:
        with suppress(OSError):  # the reader says why
            source.recall(StampCache(cache_of(options)).seen)
            _ = source.sha256  # before it is read: a file that changes meanwhile is noticed
    loaded = read_model(source, options)
    progress(f"run {source.name}")
    with in_background(partial(run_original, source, loaded, options), options.jobs) as check:
        progress = _with_check(check, progress)
        progress(f"clean {source.name}")
        clean = clean_up(loaded.graph, machine, options)
        network, notes = network_of(loaded), loaded.notes
        del loaded  # its graph is freed as soon as it has run
        progress(f"search {source.name}")
        plan = solve(clean.graph, options, costs=machine.costs, progress=progress)
        progress(f"rewrite {source.name}")
        rewritten = _pass_manager(rewrites(plan, machine.costs), options).run(clean.graph)
        _print_times((*clean.records, *rewritten.records), options)
        progress(f"lower {source.name}")
        programs = _lower(rewritten.graph, machine, progress)
        progress(f"report {source.name}")
        bound = bound_of(clean.graph, options, costs=machine.costs, host_us=plan.baseline_us)
        report = report_plan(clean.graph, plan, rewritten.graph, machine.costs, bound, progress)
        save_unit_records(options, costs=machine.costs)
        notes = (*notes, *notes_of((*clean.records, *rewritten.records)))
        parts = (plan, rewritten.graph, programs, report, notes)
        return CompiledModel(source, options, machine, *parts, network=network)


def _with_check(check: Callable[[], None], progress: ProgressSink) -> ProgressSink:
    """A progress sink that also calls `check`, so that an error in the concurrent task stops the compilation."""

    def tell(text: str) -> None:
        check()
        progress(text)

    return tell


def _lower(graph: Graph, machine: Machine, progress: ProgressSink) -> dict[str, Any]:
    """The programs that units execute, by node name, for every node that is not on the host."""
    programs = {}
    places = Places(graph, machine.costs)
    for node in graph.nodes:
        unit = machine.costs.units.get(node.device or "")
        if unit is not None:
            progress(f"lowering {node.name}")
            programs[node.name] = unit.placed_at(program_of(graph, node, machine), places.of(node))
    return programs


@takes_options()
def compile(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    progress: ProgressSink | None = None,
    **options: Unpack[OptionKeywords],
) -> CompiledModel:
    """Compiles a model for a machine with PIM memory.

    Args:
        model: a path, "zoo:NAME", the bytes of an ONNX file, or an ONNX model in memory.
        progress: called with a line of text from time to time.
        options: the fields of `pimflow.options.Options`; a target by name, file or value, lists and paths are fine.

    Raises:
        PimflowError: the model, the target or an option is wrong; one line says what and what to do.
    """
    return compile_with(model_source(model), Options.of(**options), receiver_of(progress))


def opt(
    model: str | Path | bytes | onnx.ModelProto | Graph,
    passes: str | Sequence[Pass],
    *,
    constants: str | Path | None = None,
    shapes: Shapes | None = None,
    fixed: Fixed | None = None,
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
        fixed: values of inputs that are to be constants, for an ONNX model.
        disabled_passes: passes to leave out, by name.
        seed: seed of the random inputs of `debug.verify_each`.
        debug: what to show and check between passes.

    Returns:
        The graph, and a record of every pass: its time, and notes on what it left as it was and why.

    Raises:
        PimflowError: the model or the passes are wrong, or a pass cannot do what its options ask for.
        GraphError: `model` is a graph that breaks a rule of the intermediate representation.
        PassError: a pass is faulty; the message names it.
    """
    options = Options.of(shapes=shapes, fixed=fixed, disabled_passes=disabled_passes, seed=seed, debug=debug)
    steps = parse_pipeline(passes) if isinstance(passes, str) else _passes(passes)
    manager = _manager(steps, options)
    graph = model if isinstance(model, Graph) else read_for_passes(model, constants, options)
    verify_graph(graph)
    result = manager.run(graph)
    _print_times(result.records, options)
    return result


def _passes(passes: Any) -> tuple[Pass, ...]:
    steps = tuple(passes) if isinstance(passes, Sequence) else (passes,)
    for step in steps:
        if not isinstance(step, Pass):
            raise ArgumentError(f"'passes' has {kind_of(step)}", 'give passes, or a text like "cleanup,fold-constants"')
    return steps


def clean_graph(source: ModelSource, options: Options) -> ManagerResult:
    """The model as the search sees it: loaded and cleaned up, with the records of the passes that did it.

    Raises:
        PimflowError: the model cannot be read, or its shapes are not bound.
    """
    return clean_up(read_model(source, options).graph, Machine.of(options), options)


def network_of(loaded: Loaded) -> Network | None:
    """The graph that a graph network was read for; None for any other model."""
    return None if loaded.adjacency is None else Network(loaded.adjacency, loaded.is_estimate)

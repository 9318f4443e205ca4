"""Shows that a compiled model computes the same as the original: ONNX Runtime runs both on the same inputs.

There are three questions, each with its own bound:

- Does the rewritten graph compute the same as the original? ONNX Runtime runs both as users run them. If the model
  rounds (16-bit numbers, quantised ones), all values are also compared one by one in single precision, where the bound
  stays narrow.
- Are values where the memory plan puts them, and do units compute what their programs are for? Execution in the arena,
  or by value, is compared with the same graph in the same precision, run node by node without either. Each program is
  also compared with its own node, on its own operands.
- How far is that from the original? At most as far as the precision itself moves the original's result, which is
  measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pimflow.codegen.backend import Backend
from pimflow.codegen.host import HostBackend
from pimflow.errors import ModelError, PimflowError
from pimflow.frontend.inference import declared_types
from pimflow.frontend.reading import read_source
from pimflow.ir import Array, Graph
from pimflow.onnxio.export import ModelContent
from pimflow.onnxio.folding import is_random
from pimflow.records import dataclass
from pimflow.runtime.execute.arena import Kernels, ShapeMismatch, run_in_arena
from pimflow.runtime.execute.host_nodes import HostKernels, has_algorithm
from pimflow.runtime.execute.nodes import Execute, run_nodes
from pimflow.runtime.execute.original import OriginalModel
from pimflow.runtime.execute.ort import NodeKernels, operands, random_inputs, read_inputs, run_graph
from pimflow.runtime.execute.spilled import run_spilled
from pimflow.runtime.memory import MemoryPlan, plan_memory
from pimflow.runtime.memory.in_flight import MemoryInFlight
from pimflow.runtime.offload.spill import Spill
from pimflow.runtime.steady_state import SteadyState
from pimflow.verify.draws import seeded, seeded_original, unseeded_nodes
from pimflow.verify.evidence import Evidence, Outputs
from pimflow.verify.in_flight import Judge, check_in_flight
from pimflow.verify.outputs import DEFAULT_RTOL, OutputCheck, compare_outputs
from pimflow.verify.picks import PickRecorder, check_with_picks
from pimflow.verify.reference import CheckedUnits, UnitReference
from pimflow.verify.running import how_to_fix, require_room
from pimflow.verify.values import PartsCheck
from pimflow.verify.verification import How, Verification

LOOSE_BOUND = 0.05
"""If a bound is a larger share of an output's largest magnitude than this, a note says so."""

WEAKER_SCALE = 0.5
"""Scale of a second set of inputs, for bounds that depend on how much other inputs change an output.

The mean over a large map of random numbers is the same for all draws, but differs for numbers of a different scale.
"""


@dataclass(frozen=True)
class Execution:
    """How a compiled model runs.

    Args:
        units: backends by device.
        programs: the units' programs by node, to be executed by value; None lets ONNX Runtime run their nodes.
        operand: the element type that `programs` multiply; None for the units' own.
        host: runs the nodes for which it has its own algorithm, if `programs` are executed by value.
        memory: the arena that holds values; None lets ONNX Runtime place them.
        spill: values to be offloaded or recomputed, so that execution uses the smaller arena that this needs.
    """

    units: Mapping[str, Backend[Any, Any]] = field(default_factory=dict)
    programs: Mapping[str, Any] | None = None
    operand: str | None = None
    host: HostBackend | None = None
    memory: MemoryPlan | None = None
    spill: Spill | None = None

    @property
    def is_plain(self) -> bool:
        """Whether ONNX Runtime runs everything."""
        return self.programs is None and self.memory is None

    def how(self, seed: int | None) -> How:
        """The form that a verification reports; `seed` is that of random inputs, None if inputs were given."""
        return How(seed, self.programs is not None, self.operand, self.memory is not None)

    def reference(self, graph: Graph) -> UnitReference:
        """The reference for the nodes of units, in the units' precision if programs are executed."""
        if self.programs is None:
            return UnitReference(graph, {}, self.operand)
        host = self.host
        by_host = frozenset(node.name for node in graph.nodes if host is not None and has_algorithm(host, graph, node))
        return UnitReference(graph, self.units, self.operand, by_host=by_host)

    def outputs(
        self,
        graph: Graph,
        feeds: Mapping[str, Array],
        reference: UnitReference,
        progress: Callable[[str], None],
        wrap: Callable[[Execute], PickRecorder] | None = None,
    ) -> tuple[Outputs, PartsCheck | None]:
        """A graph's outputs and, if programs were executed by value, the error of each compared with its node.

        Args:
            graph, feeds: the graph to run and its inputs.
            reference: the reference for programs.
            progress: receives a line of text per program.
            wrap: wraps the function that executes nodes of the host.
        """
        if self.is_plain and wrap is None:
            return run_graph(graph, feeds), None
        executor = None if self.programs is None else CheckedUnits(reference, self.programs, progress)
        host = None if self.programs is None else self.host
        kernels: Kernels = NodeKernels(graph) if host is None else HostKernels(graph, host)
        kernels = kernels if wrap is None else wrap(kernels.run)
        if self.is_plain:
            return run_nodes(graph, feeds, kernels.run), None
        plan = plan_memory(graph) if self.memory is None else self.memory
        if self.memory is not None and self.spill is not None and self.spill.stays:
            outputs = run_spilled(graph, plan, self.spill, feeds, kernels=kernels, unit_execute=executor)
        else:
            outputs = run_in_arena(graph, plan, feeds, kernels=kernels, unit_execute=executor).outputs
        if executor is None:
            return outputs, None
        return outputs, PartsCheck(executor.checked, executor.largest, executor.wrong)


def verify_compiled(
    original: ModelContent,
    graph: Graph,
    execution: Execution,
    *,
    bound: Mapping[str, Array],
    inputs: str | Path | Mapping[str, Array] | None,
    seed: int,
    rtol: float | None,
    progress: Callable[[str], None],
    in_flight: tuple[SteadyState, MemoryInFlight] | None = None,
) -> Verification:
    """Runs the original model and the rewritten graph on the same inputs and compares all outputs.

    Args:
        original: the model that was compiled, as ONNX Runtime reads it.
        graph: the rewritten graph.
        execution: how to run the graph.
        bound: inputs of the original that the rewritten graph lacks, because it was compiled for them.
        inputs: arrays by input name, or an npz file of them; None for random ones from `seed`.
        seed: of random inputs.
        rtol: largest error over the largest magnitude of an output; None for the measured effect of the precision.
        progress: called with a line of text from time to time.
        in_flight: a schedule of several inferences and its arena, to be compared as well.

    Raises:
        InputDataError: the inputs do not fit the model.
        ModelError: ONNX Runtime refuses a model.
    """
    require_room(graph, 0 if execution.memory is None else execution.memory.arena_bytes)
    random_nodes = unseeded_nodes(graph)
    if random_nodes:
        original, graph = seeded_original(original), seeded(graph)
    feeds = _feeds(graph, inputs, seed)
    progress("running the original model")
    model = OriginalModel(original, reopens=any(is_random(node.op) for node in graph.nodes))
    expected = _original_outputs(model, {**bound, **feeds}, graph if inputs is None else None)
    signal = _signal(model, graph, expected, seed, bound)
    model.close()  # its weights would lie beside those of the compiled model
    progress("running the compiled model")
    reference = execution.reference(graph)
    with _declaration_errors(original):
        actual, programs = execution.outputs(graph, feeds, reference, progress)
    evidence = Evidence(original, graph, bound, feeds, expected)
    picked: tuple[str, ...] = ()
    if rtol is None:
        checks, signal, picked = _measured(evidence, execution, actual, reference, signal, seed, progress)
    else:
        checks = compare_outputs(expected, actual, rtol)

    flights = None
    if in_flight is not None:
        bounds = {check.name: check.rtol for check in checks}
        judge = partial(_judge, original, graph, bound, signal, progress) if rtol is None else None
        flights = _flights(model, evidence, in_flight, bounds, judge, seed, progress)
    parts = [part for part in (evidence.values, programs, flights) if part is not None]
    passed = all(check.passed for check in checks) and not any(part.wrong for part in parts)
    return Verification(
        passed=passed,
        outputs=checks,
        nodes_checked=len(graph.nodes),
        rtol=max((check.rtol for check in checks), default=DEFAULT_RTOL) if rtol is None else rtol,
        how=execution.how(seed if inputs is None else None),
        notes=(
            *evidence.notes(),
            *picked,
            *_seed_notes(random_nodes),
            *_range_notes(reference, passed=passed),
            *_constant_notes(signal, inputs),
            *(_loose_notes(expected, checks) if rtol is None else ()),
        ),
        values=evidence.values,
        programs=programs,
        in_flight=flights,
    )


def _measured(
    evidence: Evidence,
    execution: Execution,
    actual: Outputs,
    reference: UnitReference,
    signal: dict[str, float],
    seed: int,
    progress: Callable[[str], None],
) -> tuple[tuple[OutputCheck, ...], dict[str, float], tuple[str, ...]]:
    """Checks outputs against the effect of their precision; on failure, with weaker inputs, then with the bounds of
    cancelled sums, then with the original's picks.

    Returns:
        The checks, how much other inputs change each output as far as that was measured, and notes on picks.
    """
    graph, feeds = evidence.graph, evidence.feeds
    # Rounding in programs is compared node by node below; it says nothing about the model in single precision.
    compared = [actual] * (execution.programs is None) + [evidence.ort_outputs] * (not execution.is_plain)
    evidence.measure(*compared)
    if not execution.is_plain:
        evidence.node_by_node(actual, reference, progress)
    checks = evidence.checks(actual, signal)
    if all(check.passed for check in checks):
        return checks, signal, ()
    weaker = _signal(OriginalModel(evidence.original), graph, evidence.expected, seed, evidence.bound, WEAKER_SCALE)
    signal = {name: max(change, weaker.get(name, 0.0)) for name, change in signal.items()}
    checks = evidence.checks(actual, signal)
    if all(check.passed for check in checks):
        return checks, signal, ()
    checks = _with_cancelled(evidence, checks, actual, signal)
    if all(check.passed for check in checks):
        return checks, signal, ()
    run = partial(execution.outputs, graph, feeds, execution.reference(graph), lambda line: None)
    checks, picked = check_with_picks(evidence, checks, run, execution.reference(graph), signal, seed)
    return checks, signal, picked


def _flights(
    model: OriginalModel,
    evidence: Evidence,
    in_flight: tuple[SteadyState, MemoryInFlight],
    rtol: Mapping[str, float],
    judge: Judge | None,
    seed: int,
    progress: Callable[[str], None],
) -> PartsCheck:
    """Checks several inferences in flight; the first has the inputs of `evidence`."""
    with _declaration_errors(evidence.original):
        return check_in_flight(
            *(model, evidence.graph, *in_flight),
            bound=evidence.bound,
            feeds=evidence.feeds,
            expected=evidence.expected,
            seed=seed,
            rtol=rtol,
            judge=judge,
            progress=progress,
        )


def _judge(
    original: ModelContent,
    graph: Graph,
    bound: Mapping[str, Array],
    signal: Mapping[str, float],
    progress: Callable[[str], None],
    feeds: Mapping[str, Array],
    expected: Outputs,
    actual: Outputs,
) -> tuple[OutputCheck, ...]:
    """Checks outputs for some inputs against the original's, within the effect of rounding, and the graph alone."""
    evidence = Evidence(original, graph, bound, feeds, expected)
    evidence.measure(actual, evidence.ort_outputs)
    evidence.node_by_node(actual, UnitReference(graph, {}, None), progress)
    checks = evidence.checks(actual, signal)
    return checks if all(check.passed for check in checks) else _with_cancelled(evidence, checks, actual, signal)


def _with_cancelled(
    evidence: Evidence, checks: Sequence[OutputCheck], actual: Outputs, signal: Mapping[str, float]
) -> tuple[OutputCheck, ...]:
    """Checks outputs again, some of which are off, with the bounds of cancelled sums."""
    evidence.find_cancelled([check.name for check in checks if not check.passed])
    return evidence.checks(actual, signal)


def _feeds(graph: Graph, inputs: str | Path | Mapping[str, Array] | None, seed: int) -> dict[str, Array]:
    if inputs is None:
        return random_inputs(graph, seed)
    return operands(graph, read_inputs(graph, inputs) if isinstance(inputs, (str, Path)) else inputs)


def _original_outputs(model: OriginalModel, inputs: Mapping[str, Array], drawn_for: Graph | None) -> Outputs:
    """Runs the original model; `drawn_for` is the graph for which its inputs were drawn, None if they were given."""
    try:
        return model.run(inputs)
    except ModelError as error:
        if drawn_for is None:
            raise
        fix = how_to_fix(drawn_for)
        otherwise = f", or compile it with {fix}" if fix else ""
        hint = f"random inputs may be invalid for this model: give some with --inputs{otherwise}"
        raise ModelError(error.what, hint) from error


@contextmanager
def _declaration_errors(original: ModelContent) -> Iterator[None]:
    """Report a value that differs from its planned shape as a wrong declaration if the model declares that shape.

    Raises:
        ModelError: names the value and both shapes.
    """
    try:
        yield
    except ShapeMismatch as error:
        said = declared_types(read_source(original).proto.graph).get(error.name)
        if said is None or said.shape != error.planned:
            raise
        made = replace(said, shape=error.actual)
        raise ModelError(
            f"the value {error.name!r} is declared as {said.type_text}, but is {made.type_text}",
            "correct the declaration, or leave it out, and compile the model again",
        ) from error


def _signal(
    model: OriginalModel, graph: Graph, expected: Outputs, seed: int, bound: Mapping[str, Array], share: float = 1.0
) -> dict[str, float]:
    """How much other random inputs change each output, relative to its largest magnitude; empty if there are no inputs.

    Args:
        model, graph: the original model, and the compiled one, which determines the inputs.
        expected: the outputs.
        seed: of the inputs that produced them.
        bound: inputs that do not change.
        share: factor for floating-point inputs.
    """
    if not graph.inputs:
        return {}
    try:
        others = {name: _scaled(array, share) for name, array in random_inputs(graph, seed + 1).items()}
        other = model.run({**bound, **others})
    except PimflowError:  # random data are not valid inputs of this model
        return {}
    return {check.name: check.max_rel_err for check in compare_outputs(expected, other, 0.0)}


def _scaled(item: Any, share: float) -> Any:
    is_float = isinstance(item, np.ndarray) and item.dtype.kind == "f"
    return (item * share).astype(item.dtype) if is_float else item


def _constant_notes(signal: Mapping[str, float], inputs: object) -> tuple[str, ...]:
    """Notes on outputs that do not depend on the input, for which a pass proves little."""
    still = [name for name, change in signal.items() if change == 0]
    if not still or inputs is not None:
        return ()
    return (f"output {', '.join(still)} is the same for two different inputs: agreement there shows little",)


def _loose_notes(expected: Outputs, checks: Sequence[OutputCheck]) -> Iterator[str]:
    """Notes on outputs that rounding changes by a large share of their magnitude, for which a pass proves little."""
    for check in checks:
        array = expected[check.name]
        if check.passed and check.rtol > LOOSE_BOUND and isinstance(array, np.ndarray) and array.size:
            most = f"at most {np.abs(array).max():.2g}, and rounding may move it by {check.rtol:.0%} of that"
            yield f"output {check.name} is {most}: agreement there shows little; that of single values shows more"


def _seed_notes(nodes: Sequence[str]) -> tuple[str, ...]:
    return (f"random numbers of {', '.join(nodes)} were drawn from the same seeds in both models",) if nodes else ()


def _range_notes(reference: UnitReference, *, passed: bool) -> tuple[str, ...]:
    """Notes on values outside a type's range; small ones also if all checks pass, as the bounds are wide for them."""
    found = (None if passed else reference.overflow, reference.underflow)
    return tuple(each.text for each in found if each is not None)

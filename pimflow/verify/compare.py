"""Shows that a compiled model computes what the original computes: ONNX Runtime runs both on the same inputs.

Three questions, each with a bound of its own:

- Does the rewritten graph compute what the original does? ONNX Runtime runs both as users run them. Where the model
  rounds (16-bit numbers, quantised ones), all values are compared too, one by one and in single precision: there the
  bound stays narrow.
- Do values lie where the memory plan says, and do units compute what their programs are for? What runs in the arena, or
  by value, is compared with the same graph in the same precision, run node by node without either; each program also
  with its own node, on its own operands.
- How far is that from the original? As far as the precision itself moves the original's result, which is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pimflow.codegen.backend import Backend
from pimflow.codegen.host import HostBackend
from pimflow.errors import ModelError, PimflowError
from pimflow.frontend import load_model
from pimflow.ir import Array, Graph
from pimflow.onnxio.export import ModelContent
from pimflow.onnxio.npz import read_npz
from pimflow.onnxio.widening import NARROW, is_narrow
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.host_nodes import HostKernels
from pimflow.runtime.execute.nodes import run_nodes
from pimflow.runtime.execute.original import run_original
from pimflow.runtime.execute.ort import operands, random_inputs, run_graph
from pimflow.runtime.execute.spilled import run_spilled
from pimflow.runtime.memory import MemoryPlan, plan_memory
from pimflow.runtime.memory.in_flight import MemoryInFlight
from pimflow.runtime.offload.spill import Spill
from pimflow.runtime.steady_state import SteadyState
from pimflow.verify.draws import drawing, seeded, seeded_original
from pimflow.verify.in_flight import check_in_flight
from pimflow.verify.outputs import DEFAULT_RTOL, OutputCheck, compare_outputs
from pimflow.verify.reference import JITTER, SUMS_RTOL, CheckedUnits, Overflow, UnitReference, quantises
from pimflow.verify.running import require_room
from pimflow.verify.values import PartsCheck, compare_values

MARGIN = 2.0
"""A bound that is measured allows as much more than was seen."""

SIGNAL_SHARE = 0.5
"""A bound that is measured is at most this share of what other inputs change: beyond, a pass would say nothing.

Only the model's own roundings, which are compared value by value as well, may move it that far once, without a margin.
"""

Outputs = Mapping[str, Any]


@dataclass(frozen=True)
class How:
    """On what a comparison was made, and how the compiled model ran.

    Args:
        seed: of the random inputs; None where inputs were given.
        programs: whether what units execute was executed by value.
        operand: the element type of its operands, where one was asked for.
        arena: whether values lay in the planned arena.
    """

    seed: int | None
    programs: bool = False
    operand: str | None = None
    arena: bool = False

    @property
    def text(self) -> str:
        """As a clause."""
        by_value = f"what units execute by value{f', in {self.operand}' if self.operand else ''}"
        means = [*([by_value] if self.programs else []), *(["inside the arena"] if self.arena else [])]
        inputs = "on given inputs" if self.seed is None else f"on random inputs (seed {self.seed})"
        return ", ".join([*means, inputs])


@dataclass(frozen=True)
class Verification:
    """The result of a comparison. `nodes_checked` nodes of the compiled model ran and feed the outputs compared.

    `rtol` is the widest bound of all outputs. `values` is there where the model rounds: its values one by one, in
    single precision; `programs` where units' programs were executed: each against its own node, on the same operands;
    `in_flight` where several inferences were in flight: each against the original, on inputs of its own.
    """

    passed: bool
    outputs: tuple[OutputCheck, ...]
    nodes_checked: int
    rtol: float
    how: How
    notes: tuple[str, ...] = ()
    values: PartsCheck | None = None
    programs: PartsCheck | None = None
    in_flight: PartsCheck | None = None

    @property
    def max_abs_err(self) -> float:
        """Over all outputs."""
        return max((check.max_abs_err for check in self.outputs), default=0.0)

    @property
    def max_rel_err(self) -> float:
        """Over all outputs."""
        return max((check.max_rel_err for check in self.outputs), default=0.0)

    @property
    def output_std(self) -> float:
        """The smallest standard deviation of an original output: near 0 means that the comparison shows little."""
        return min((check.std for check in self.outputs), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """The document that `pimflow verify --json` prints. What is not finite becomes null."""
        return {
            "passed": self.passed,
            "max_abs_err": _finite(self.max_abs_err),
            "max_rel_err": _finite(self.max_rel_err),
            "output_std": _finite(self.output_std),
            "nodes_checked": self.nodes_checked,
            "rtol": self.rtol,
            "how": vars(self.how),
            "outputs": [
                {
                    "name": check.name,
                    "max_abs_err": _finite(check.max_abs_err),
                    "max_rel_err": _finite(check.max_rel_err),
                    "std": _finite(check.std),
                    "rtol": check.rtol,
                    "passed": check.passed,
                    "problem": check.problem,
                }
                for check in self.outputs
            ],
            "values": _parts_json(self.values),
            "programs": _parts_json(self.programs),
            "in_flight": _parts_json(self.in_flight),
            "notes": list(self.notes),
        }

    @property
    def clause(self) -> str:
        """How far the outputs are apart, what was run, and on what."""
        wrong = [check for check in self.outputs if not check.passed]
        count = f"{len(self.outputs)} output{'s' if len(self.outputs) != 1 else ''}"
        off = f"{len(wrong)} of {count} off, the largest" if wrong else f"{count}, largest"
        return f"{off} relative error {self.max_rel_err:.1e} of {self.rtol:.1e} allowed; {self.how.text}"

    def records(self) -> list[dict[str, Any]]:
        """A row per output, of plain values: `pandas.DataFrame(verification.records())` is their table."""
        rows: list[dict[str, Any]] = self.as_json()["outputs"]
        return rows

    def text(self) -> str:
        """The same as lines of text, as `pimflow verify` prints them."""
        lines = [
            f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: largest error {check.max_abs_err:.3g} "
            f"({check.max_rel_err:.3g} of the largest magnitude), standard deviation {check.std:.3g}"
            + (f": {check.problem}" if check.problem else "")
            for check in self.outputs
        ]
        lines += _parts_text(self.values, "value", "values were compared one by one, in single precision")
        lines += _parts_text(self.programs, "program of", "programs were compared with their nodes, on equal operands")
        lines += _parts_text(self.in_flight, "output", "inferences ran in flight, each on inputs of its own")
        lines += [f"note  {note}" for note in self.notes]
        verdict = "passed" if self.passed else "FAILED"
        return "\n".join(
            [*lines, f"{verdict}: {len(self.outputs)} outputs of {self.nodes_checked} nodes at rtol {self.rtol:.3g}"]
        )


def _parts_json(parts: PartsCheck | None) -> dict[str, Any] | None:
    if parts is None:
        return None
    wrong = {name: _finite(error) for name, error in parts.wrong.items()}
    return {"checked": parts.checked, "largest_error": _finite(parts.largest_error), "wrong": wrong}


def _parts_text(parts: PartsCheck | None, noun: str, how: str) -> list[str]:
    if parts is None:
        return []
    wrong = [f"FAIL  {noun} {name}: off by {error:.3g} of its largest magnitude" for name, error in parts.wrong.items()]
    return [*wrong, f"note  {parts.checked} {how}: largest error {parts.largest_error:.2g}"]


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def verify_compiled(
    original: ModelContent,
    graph: Graph,
    *,
    bound: Mapping[str, Array],
    inputs: str | Path | Mapping[str, Array] | None,
    seed: int,
    rtol: float | None,
    programs: Mapping[str, Any] | None,
    units: Mapping[str, Backend[Any, Any]],
    operand: str | None,
    memory: MemoryPlan | None,
    progress: Callable[[str], None],
    in_flight: tuple[SteadyState, MemoryInFlight] | None = None,
    spill: Spill | None = None,
    host: HostBackend | None = None,
) -> Verification:
    """Runs the original model and the rewritten graph on the same inputs and compares all outputs.

    Args:
        original: the model that was compiled, as ONNX Runtime reads it.
        graph: the rewritten graph.
        bound: inputs that the original has and the rewritten graph has not: it was compiled for them.
        inputs: arrays by input name, or an npz file of them; None for random ones from `seed`.
        seed: of random inputs.
        rtol: largest error over the largest magnitude of an output; None for what the precision justifies, measured.
        programs: what the units execute, by node, to be executed by value; None lets ONNX Runtime run their nodes.
        units: backends by device.
        operand: the element type that `programs` multiply; None for the units' own.
        memory: run inside this arena; None lets ONNX Runtime place the values.
        progress: receives a line of text now and then.
        in_flight: a schedule of several inferences and its arena: they are compared as well.
        spill: what leaves that arena, and comes back or is made again: run inside the smaller one that this takes.
        host: what runs all else, for what it does not run in the usual way, where `programs` are executed by value too.

    Raises:
        InputDataError: the inputs do not fit the model.
        ModelError: ONNX Runtime refuses a model.
    """
    require_room(graph, 0 if memory is None else memory.arena_bytes)
    drawn = drawing(graph)
    if drawn:
        original, graph = seeded_original(original), seeded(graph)
    feeds = _feeds(graph, inputs, seed)
    progress("running the original model")
    expected = _original_outputs(original, {**bound, **feeds}, is_random=inputs is None)
    progress("running the compiled model")
    reference = UnitReference(graph, {} if programs is None else units, operand)
    places = None if memory is None else (memory, spill)
    actual, programs_check = _run_compiled(graph, feeds, programs, places, reference, host, progress)
    signal = _signal(original, graph, expected, seed, bound)
    evidence = _Evidence(graph, expected)
    if rtol is None:
        # What programs round is told node by node below: it says nothing of the model in single precision.
        evidence.measure(original, feeds, bound, {} if programs is not None else actual)
        if programs is not None or memory is not None:
            evidence.node_by_node(feeds, actual, reference, progress)
        checks = evidence.checks(actual, signal)
    else:
        checks = compare_outputs(expected, actual, rtol)
    flight_check = None
    if in_flight is not None:
        flight_check = check_in_flight(
            original,
            graph,
            *in_flight,
            bound=bound,
            feeds=feeds,
            seed=seed,
            rtol={check.name: check.rtol for check in checks},
            judge=partial(_judge, original, graph, bound, signal, progress) if rtol is None else None,
            progress=progress,
        )
    parts = [part for part in (evidence.values, programs_check, flight_check) if part is not None]
    return Verification(
        passed=all(check.passed for check in checks) and not any(part.wrong for part in parts),
        outputs=checks,
        nodes_checked=len(graph.nodes),
        rtol=max((check.rtol for check in checks), default=DEFAULT_RTOL) if rtol is None else rtol,
        how=How(seed if inputs is None else None, programs is not None, operand, memory is not None),
        notes=(*evidence.notes(), *_drawn(drawn), *_overflows(reference.overflow, checks), *_still(signal, inputs)),
        values=evidence.values,
        programs=programs_check,
        in_flight=flight_check,
    )


def _original_outputs(original: ModelContent, inputs: Mapping[str, Array], *, is_random: bool) -> Outputs:
    try:
        return run_original(original, inputs)
    except ModelError as error:
        if not is_random:
            raise
        raise ModelError(error.what, "random inputs may be none of the model's: give some with --inputs") from error


def _judge(
    original: ModelContent,
    graph: Graph,
    bound: Mapping[str, Array],
    signal: Mapping[str, float],
    progress: Callable[[str], None],
    feeds: Mapping[str, Array],
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
) -> tuple[OutputCheck, ...]:
    """Outputs on some inputs against the original's, within what roundings do to these, and against the graph alone."""
    evidence = _Evidence(graph, expected)
    evidence.measure(original, feeds, bound, actual)
    evidence.node_by_node(feeds, actual, UnitReference(graph, {}, None), progress)
    return evidence.checks(actual, signal)


def _run_compiled(
    graph: Graph,
    feeds: Mapping[str, Array],
    programs: Mapping[str, Any] | None,
    places: tuple[MemoryPlan, Spill | None] | None,
    reference: UnitReference,
    host: HostBackend | None,
    progress: Callable[[str], None],
) -> tuple[Mapping[str, Any], PartsCheck | None]:
    """The compiled model's outputs, and of programs that were executed by value how far each is from its node."""
    if programs is None and places is None:
        return run_graph(graph, feeds), None
    executor = None if programs is None else CheckedUnits(reference, programs, progress)
    kernels = None if programs is None or host is None else HostKernels(graph, host)
    plan, spill = places or (plan_memory(graph), None)
    if spill is not None and spill.stays:
        outputs = run_spilled(graph, plan, spill, feeds, kernels=kernels, unit_execute=executor)
    else:
        outputs = run_in_arena(graph, plan, feeds, kernels=kernels, unit_execute=executor).outputs
    if executor is None:
        return outputs, None
    return outputs, PartsCheck(executor.checked, executor.largest, executor.wrong)


def _feeds(graph: Graph, inputs: str | Path | Mapping[str, Array] | None, seed: int) -> dict[str, Array]:
    if inputs is None:
        return random_inputs(graph, seed)
    arrays = read_npz(inputs) if isinstance(inputs, (str, Path)) else inputs
    return operands(graph, arrays)


@dataclass(frozen=True)
class _Pair:
    """Two runs that have to agree: what they are, their outputs, and bounds that are not the default."""

    what: str
    expected: Outputs
    actual: Mapping[str, Any]
    bounds: Mapping[str, float] = field(default_factory=dict)


@dataclass
class _Evidence:
    """What is known of a compiled model beside its own outputs.

    Args:
        graph: the compiled model.
        expected: what the original gives.
    """

    graph: Graph
    expected: Outputs
    ways: dict[str, Outputs] = field(default_factory=dict)
    """The model's own results where it is rounded otherwise, each with what moves them."""
    of_machine: set[str] = field(default_factory=set)
    """Those that are not the model's own roundings: they must not move the outputs as other inputs do."""
    pairs: list[_Pair] = field(default_factory=list)
    values: PartsCheck | None = None

    def measure(
        self,
        original: ModelContent,
        feeds: Mapping[str, Array],
        bound: Mapping[str, Array],
        actual: Mapping[str, Any],
    ) -> None:
        """Runs the original and the graph without roundings that depend on how nodes are fused, if these count.

        They do where models round to few digits; in single precision where the outputs differ by more than the default:
        many layers may make that of the order of sums alone.
        """
        narrow, quantised = is_narrow(self.graph), is_quantised(self.graph)
        if not narrow and not quantised and not self._differs_in_values(actual):
            return
        given = load_model(original, {name: array.shape for name, array in (*feeds.items(), *bound.items())})
        inputs = [name for name in given.inputs if name not in bound]
        before = given.replace(inputs=inputs, constants={**given.constants, **bound})
        outputs, self.values = compare_values(before, self.graph, feeds)
        kinds = ["16-bit numbers"] * narrow + ["8-bit kernels of ONNX Runtime"] * quantised
        if kinds:
            self.ways[" and ".join(kinds)] = outputs
        else:  # what the values differ by, one by one, added to every product
            moved = UnitReference(
                before, {}, None, jitter_seed=0, sums_rtol=min(self.values.largest_error / JITTER, SUMS_RTOL)
            )
            self.ways["sums in another order"] = run_nodes(before, feeds, moved)
            # kernels have one order for a whole channel: what it makes of sums no pool levels out, as it does chance
            with suppress(ModelError):
                self.ways["kernels without ONNX Runtime's optimisations"] = run_original(
                    original, {**bound, **feeds}, optimise=False
                )
        if quantised:
            self.ways["roundings near a half"] = run_nodes(
                self.graph, feeds, UnitReference(self.graph, {}, None, jitter_seed=0)
            )

    def _differs_in_values(self, actual: Mapping[str, Any]) -> bool:
        """Whether an output is off by more than the default, and none in any other way."""
        problems = {check.problem for check in compare_outputs(self.expected, actual, DEFAULT_RTOL) if not check.passed}
        return problems == {"values differ"}

    def node_by_node(
        self,
        feeds: Mapping[str, Array],
        actual: Mapping[str, Any],
        reference: UnitReference,
        progress: Callable[[str], None],
    ) -> None:
        """Runs the graph in the precision of its units, with neither arena nor programs."""
        progress("running the compiled model node by node")
        self.pairs.append(_Pair("as ONNX Runtime runs it", self.expected, run_graph(self.graph, feeds)))
        same = run_nodes(self.graph, feeds, reference)
        bounds: Mapping[str, float] = {}
        if reference.units:
            moved = UnitReference(self.graph, reference.units, reference.operand, jitter_seed=0)
            bounds = _bounds(same, [run_nodes(self.graph, feeds, moved)])
        units, asked = reference.units, reference.operand
        placed = ((units.get(node.device or ""), node) for node in self.graph.nodes)
        used = {unit.operand_of(node, asked) for unit, node in placed if unit is not None}
        operands = sorted(used or {asked or unit.operand for unit in units.values()})
        narrow = sorted(NARROW & {value.dtype for value in self.graph.values.values()})
        kinds = [*(f"{kind} operands" for kind in operands), *(f"{kind} results" for kind in narrow)]
        what = " and ".join(kinds) or "nodes run one by one"
        self.ways[what] = same
        if operands:
            self.of_machine.add(what)
        self.pairs.append(_Pair("in the same precision, node by node", same, actual, bounds))

    def checks(self, actual: Mapping[str, Any], signal: Mapping[str, float]) -> tuple[OutputCheck, ...]:
        """The compiled model's outputs against the original's, and all pairs of runs."""
        bounds: dict[str, float] = {}
        for what, outputs in self.ways.items():
            for name, bound in _bounds(self.expected, [outputs]).items():
                seen = 0.0 if what in self.of_machine else bound / MARGIN
                limit = max(SIGNAL_SHARE * signal.get(name, bound), seen, DEFAULT_RTOL)
                bounds[name] = max(min(bound, limit), bounds.get(name, 0.0))
        found = {check.name: check for check in compare_outputs(self.expected, actual, DEFAULT_RTOL, bounds)}
        for name, check in found.items():
            if not check.passed and name in bounds and check.problem == "values differ":
                found[name] = replace(check, problem=f"values differ, as much as {bounds[name]:.3g} would be allowed")
        for pair in self.pairs:
            limits = bounds if pair.expected is self.expected else pair.bounds
            for check in compare_outputs(pair.expected, pair.actual, DEFAULT_RTOL, limits):
                if not check.passed and found[check.name].passed:
                    problem = f"{pair.what} it is off by {check.max_rel_err:.3g} of the largest magnitude"
                    found[check.name] = replace(
                        found[check.name], passed=False, problem=f"{problem}, {check.rtol:.3g} is allowed"
                    )
        return tuple(found.values())

    def notes(self) -> tuple[str, ...]:
        """How the bounds came about."""
        found = []
        for what, outputs in self.ways.items():
            bounds = _bounds(self.expected, [outputs])
            if bounds:
                found.append(
                    f"{what} move the model's own outputs by up to {max(bounds.values()) / MARGIN:.3g} of the largest "
                    "magnitude: the bound follows that"
                )
        return tuple(found)


def is_quantised(graph: Graph) -> bool:
    """Whether a graph rounds to integers of few bits, or keeps constants as such."""
    return bool(graph.packed) or any(map(quantises, graph.nodes))


def _bounds(expected: Outputs, ways: list[Outputs]) -> dict[str, float]:
    """Bounds of outputs for which the default is too narrow: `MARGIN` times the largest error of any way."""
    bounds: dict[str, float] = {}
    for way in ways:
        alike = {name: _as_type_of(expected[name], way.get(name)) for name in expected}
        for check in compare_outputs(expected, alike, DEFAULT_RTOL):
            bound = MARGIN * check.max_rel_err
            exact = getattr(expected[check.name], "dtype", np.dtype("int64")).kind not in "fcV"
            if np.isfinite(bound) and bound > (0.0 if exact else DEFAULT_RTOL):
                bounds[check.name] = max(bound, bounds.get(check.name, 0.0))
    return bounds


def _as_type_of(expected: Any, actual: Any) -> Any:
    if isinstance(expected, list) and isinstance(actual, list):
        return [_as_type_of(*pair) for pair in zip(expected, actual, strict=False)]
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray) and expected.dtype.name in NARROW:
        with np.errstate(over="ignore"):
            return actual.astype(expected.dtype)
    return actual


def _signal(
    original: ModelContent, graph: Graph, expected: Outputs, seed: int, bound: Mapping[str, Array]
) -> dict[str, float]:
    """How much other random inputs change each output, over its largest magnitude; empty where there are none."""
    if not graph.inputs:
        return {}
    try:
        other = run_original(original, {**bound, **random_inputs(graph, seed + 1)})
    except PimflowError:  # random data are no inputs of this model
        return {}
    return {check.name: check.max_rel_err for check in compare_outputs(expected, other, 0.0)}


def _still(signal: Mapping[str, float], inputs: object) -> tuple[str, ...]:
    """What makes a pass say little: outputs that do not depend on the input."""
    still = [name for name, change in signal.items() if change == 0]
    if not still or inputs is not None:
        return ()
    return (f"output {', '.join(still)} is the same for two different inputs: equality there shows little",)


def _drawn(nodes: Sequence[str]) -> tuple[str, ...]:
    return (f"random numbers of {', '.join(nodes)} were drawn from the same seeds in both models",) if nodes else ()


def _overflows(overflow: Overflow | None, checks: tuple[OutputCheck, ...]) -> tuple[str, ...]:
    if overflow is None or all(check.passed for check in checks):
        return ()
    return (overflow.text,)

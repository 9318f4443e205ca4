"""How far a result may be from the original's: bounds measured from the model's own rounding, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.ir import Array, Graph
from pimflow.onnxio.export import ModelContent
from pimflow.onnxio.widening import NARROW, is_narrow
from pimflow.records import dataclass
from pimflow.runtime.execute.nodes import run_nodes
from pimflow.runtime.execute.original import run_original
from pimflow.runtime.execute.ort import run_graph
from pimflow.verify.cancelling import cancelled_sums
from pimflow.verify.outputs import DEFAULT_RTOL, OutputCheck, compare_outputs
from pimflow.verify.reference import JITTER, OPERAND_STEP, STEP, SUMS_RTOL, UnitReference, quantises
from pimflow.verify.values import PartsCheck, compare_values

MARGIN = 2.0
"""A measured bound is this factor times the observed error."""

SIGNAL_SHARE = 0.5
"""A measured bound is at most this share of the change due to other inputs: otherwise, a pass would prove nothing.

There are three exceptions. Cancelled sums change with rounding as much as with the inputs. The model's own rounding,
whose values are also compared one by one, may exceed the share up to the observed error, without a margin. An observed
error of one step of the output's type, or of a unit's error in a single product, is always allowed: outputs that hardly
depend on the inputs, such as a sum of probabilities, are rounded all the same.
"""

MAX_JITTERED_RUNS = 8
"""The maximum number of runs with sums in a different order; runs after the first only if outputs are further off.

If errors are normal and equally distributed, one error is more than twice another in three of ten cases, but hardly
ever more than twice the largest of eight.
"""

Outputs = Mapping[str, Any]


@dataclass(frozen=True)
class _Pair:
    """Two runs that must agree: their description, their outputs, and the bounds that differ from the default."""

    what: str
    expected: Outputs
    actual: Outputs
    bounds: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Evidence:
    """Runs of the models other than the one under test, and the bounds that follow from them.

    Args:
        original: the model that was compiled, as ONNX Runtime reads it.
        graph: the compiled model.
        bound: inputs of the original that the compiled model lacks.
        feeds: the other inputs.
        expected: the outputs of the original.
    """

    original: ModelContent
    graph: Graph
    bound: Mapping[str, Array]
    feeds: Mapping[str, Array]
    expected: Outputs
    causes: dict[str, tuple[Outputs, ...]] = field(default_factory=dict)
    """By cause: the model's own results if it is rounded differently."""
    unit_errors: dict[str, float] = field(default_factory=dict)
    """The causes other than the model's own rounding, with the error they produce in a single product, relative to its
    largest magnitude: beyond that they must not move the outputs as much as other inputs do."""
    measured_on_graph: set[str] = field(default_factory=set)
    """The causes that were measured only on the compiled graph: if the graph is wrong, so is the measurement."""
    cancelled: dict[str, float] = field(default_factory=dict)
    """By output that is a cancelled sum: how far rounding may move it, relative to its largest magnitude."""
    pairs: list[_Pair] = field(default_factory=list)
    values: PartsCheck | None = None

    @cached_property
    def ort_outputs(self) -> Outputs:
        """The compiled model's outputs, as run by ONNX Runtime."""
        return run_graph(self.graph, self.feeds)

    @cached_property
    def original_graph(self) -> Graph:
        """The original as a graph with the compiled model's inputs."""
        fed = {**self.bound, **self.feeds}
        given = load_model(self.original, {name: array.shape for name, array in fed.items()})
        inputs = [name for name in given.inputs if name not in self.bound]
        return given.replace(inputs=inputs, constants={**given.constants, **self.bound})

    def measure(self, *compared: Outputs) -> None:
        """Runs the original and the graph without rounding that depends on how nodes are fused, and the original with
        all of it, if it matters to the runs of the graph that are to be compared.

        It matters if models round to few digits, and in single precision if the outputs differ by more than the
        default, because in a deep model the order of sums alone may cause that.
        """
        narrow, quantised = is_narrow(self.graph), is_quantised(self.graph)
        if not narrow and not quantised and not any(map(self._differs_in_values, compared)):
            return
        quantised = quantised or is_quantised(self.original_graph)  # the products of these kernels may be on a unit
        outputs, self.values = compare_values(self.original_graph, self.graph, self.feeds)
        kinds = ["16-bit numbers"] * narrow + ["8-bit kernels of ONNX Runtime"] * quantised
        if kinds:
            runs: tuple[Outputs, ...] = (outputs,)
            if narrow and not all(_are_within(self.expected, actual, runs) for actual in compared):
                # ONNX Runtime rounds nothing between nodes without 16-bit kernels: where it does depends on the graph
                runs = (*runs, run_nodes(self.original_graph, self.feeds))
            self.causes[" and ".join(kinds)] = runs
        else:
            # kernels use one order for a whole channel: pooling does not level out its effect as it does chance
            with suppress(ModelError):
                without = run_original(self.original, {**self.bound, **self.feeds}, optimise=False)
                self.causes["kernels without ONNX Runtime's optimisations"] = (without,)
            self._move_sums(compared, self.values)
        if quantised:
            jittered = UnitReference(self.graph, {}, None, jitter_seed=0)
            self.causes["roundings near a half"] = (run_nodes(self.graph, self.feeds, jittered),)

    def _move_sums(self, compared: Sequence[Outputs], values: PartsCheck) -> None:
        """Runs the original with the observed error of single values added to every product: once, and again as long as
        outputs are further off although no single value is wrong."""
        sums_rtol = min(values.largest_error / JITTER, SUMS_RTOL)
        runs: tuple[Outputs, ...] = ()
        for seed in range(MAX_JITTERED_RUNS):
            moved = UnitReference(self.original_graph, {}, None, jitter_seed=seed, sums_rtol=sums_rtol)
            runs = (*runs, run_nodes(self.original_graph, self.feeds, moved))
            self.causes["sums in another order"] = runs
            known = [run for some in self.causes.values() for run in some]
            if values.wrong or all(_are_within(self.expected, actual, known) for actual in compared):
                break

    def _differs_in_values(self, actual: Outputs) -> bool:
        """Whether an output is off by more than the default, and no output is wrong in any other way."""
        problems = {check.problem for check in compare_outputs(self.expected, actual, DEFAULT_RTOL) if not check.passed}
        return problems == {"values differ"}

    def node_by_node(self, actual: Outputs, reference: UnitReference, progress: Callable[[str], None]) -> None:
        """Runs the graph in the precision of its units, without arena and programs."""
        progress("running the compiled model node by node")
        self.agree("as ONNX Runtime runs it", self.ort_outputs)
        self.in_precision(actual, reference, partial(run_nodes, self.graph, self.feeds))

    def agree(self, what: str, actual: Outputs) -> None:
        """Adds a run of the graph without the precision of units, which therefore excuses no error."""
        self.pairs.append(_Pair(what, self.expected, actual))

    def in_precision(
        self, actual: Outputs, reference: UnitReference, run: Callable[[UnitReference], dict[str, Any]]
    ) -> None:
        """Runs the graph in the precision of its units with `run`, and again with the errors that these may make."""
        same = run(reference)
        runs = [same]
        for seed in range(MAX_JITTERED_RUNS if reference.units or reference.by_host else 0):
            units, by_host = reference.units, reference.by_host
            jitter = UnitReference(self.graph, units, reference.operand, jitter_seed=seed, by_host=by_host)
            runs.append(run(jitter))
            if _are_within(self.expected, actual, runs) and _are_within(same, actual, runs[1:]):
                break
        units, operand_type = reference.units, reference.operand
        placed = ((units.get(node.device or ""), node) for node in self.graph.nodes)
        off = {
            operand: OPERAND_STEP.get(operand, 0.0) + unit.tolerance(operand)
            for unit, operand in (
                (unit, unit.operand_of(node, operand_type)) for unit, node in placed if unit is not None
            )
        }
        operands = sorted(off)
        narrow = sorted(NARROW & {value.dtype for value in self.graph.values.values()})
        kinds = [*(f"{kind} operands" for kind in operands), *(f"{kind} results" for kind in narrow)]
        what = " and ".join(kinds) or "nodes run one by one"
        self.causes[what] = tuple(runs)
        self.measured_on_graph.add(what)
        if operands:
            self.unit_errors[what] = max(off.values())
        bounds = _bounds(same, runs[1:])
        if reference.by_host:
            bounds |= {name: max(self._own_step(name), bounds.get(name, DEFAULT_RTOL)) for name in same}
        self.pairs.append(_Pair("in the same precision, node by node", same, actual, bounds))

    def find_cancelled(self, names: Collection[str]) -> None:
        """Finds the outputs among some that are cancelled sums, so that their bounds follow from their terms."""
        self.cancelled = cancelled_sums(self.original_graph, self.feeds, names)

    def checks(self, actual: Outputs, signal: Mapping[str, float]) -> tuple[OutputCheck, ...]:
        """Checks the compiled model's outputs against the original's, and all pairs of runs."""
        bounds, own = self._allowed(signal, ()), self._allowed(signal, self.measured_on_graph)
        found = {check.name: check for check in compare_outputs(self.expected, actual, DEFAULT_RTOL, bounds)}
        for name, check in found.items():
            if not check.passed and name in bounds and check.problem == "values differ":
                found[name] = replace(check, problem=f"values differ, {bounds[name]:.3g} would be allowed")
        for pair in self.pairs:
            limits = own if pair.expected is self.expected else pair.bounds
            for check in compare_outputs(pair.expected, pair.actual, DEFAULT_RTOL, limits):
                if not check.passed and found[check.name].passed:
                    problem = f"{pair.what}, it is off by {check.max_rel_err:.3g} of the largest magnitude"
                    found[check.name] = replace(
                        found[check.name], passed=False, problem=f"{problem}, {check.rtol:.3g} is allowed"
                    )
        return tuple(found.values())

    def _allowed(self, signal: Mapping[str, float], leave_out: Collection[str]) -> dict[str, float]:
        """Bounds wider than the default: from a step of the output's own type, and all causes except `leave_out`.

        No change due to other inputs limits the bound of a cancelled sum, as it consists of rounding for all inputs.
        """
        steps = {name: max(self._own_step(name), self.cancelled.get(name, 0.0)) for name in self.expected}
        bounds = {name: step for name, step in steps.items() if step > DEFAULT_RTOL}
        for what in self.causes.keys() - set(leave_out):
            for name, bound in _bounds(self.expected, self.causes[what]).items():
                most = bound if name in self.cancelled else self._max_bound(what, bound, signal.get(name))
                limit = max(most, DEFAULT_RTOL, steps[name])
                bounds[name] = max(min(bound, limit), bounds.get(name, 0.0))
        return bounds

    def _max_bound(self, what: str, bound: float, signal: float | None) -> float:
        """The maximum bound with which a pass proves something, given the change due to other inputs, if known."""
        seen = self.unit_errors.get(what, bound / MARGIN)
        return max(SIGNAL_SHARE * (bound if signal is None else signal), seen)

    def _own_step(self, name: str) -> float:
        """How far two correct results may be apart in an output's own type, or in the type that it is cast from.

        This is a share of the largest magnitude.
        """
        producer = self.graph.producer(name) if name in self.graph.values else None
        source = producer.inputs[0] if producer is not None and producer.kind == "Cast" else name
        dtypes = (self.graph.value(each).dtype for each in (name, source) if each in self.graph.values)
        return max((STEP.get(dtype, 0.0) for dtype in dtypes), default=0.0)

    def notes(self) -> tuple[str, ...]:
        """Where the bounds come from."""
        found = []
        for what, runs in self.causes.items():
            bounds = _bounds(self.expected, runs)
            if bounds:
                found.append(
                    f"{what} move the model's own outputs by up to {max(bounds.values()) / MARGIN:.3g} of the largest "
                    "magnitude: the bound follows that"
                )
        return tuple(found)


def is_quantised(graph: Graph) -> bool:
    """Whether a graph rounds to narrow integers, or stores constants as such."""
    return bool(graph.packed) or any(map(quantises, graph.nodes))


def _bounds(expected: Outputs, runs: Sequence[Outputs]) -> dict[str, float]:
    """Bounds for outputs whose default is too narrow: `MARGIN` times the largest error of any run."""
    bounds: dict[str, float] = {}
    for run in runs:
        alike = {name: _as_type_of(expected[name], run.get(name)) for name in expected}
        for check in compare_outputs(expected, alike, DEFAULT_RTOL):
            bound = MARGIN * check.max_rel_err
            exact = getattr(expected[check.name], "dtype", np.dtype("int64")).kind not in "fcV"
            if np.isfinite(bound) and bound > (0.0 if exact else DEFAULT_RTOL):
                bounds[check.name] = max(bound, bounds.get(check.name, 0.0))
    return bounds


def _are_within(expected: Outputs, actual: Outputs, runs: Sequence[Outputs]) -> bool:
    """Whether outputs are as close as the runs are to each other, with the margin."""
    return all(check.passed for check in compare_outputs(expected, actual, DEFAULT_RTOL, _bounds(expected, runs)))


def _as_type_of(expected: Any, actual: Any) -> Any:
    if isinstance(expected, list) and isinstance(actual, list):
        return [_as_type_of(*pair) for pair in zip(expected, actual, strict=False)]
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray) and expected.dtype.name in NARROW:
        with np.errstate(over="ignore"):
            return actual.astype(expected.dtype)
    return actual

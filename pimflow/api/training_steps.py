"""Training steps of a model as executed by a machine's host, with relational layers in their cheapest form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from pimflow.bundle.source import ModelSource
from pimflow.compiled.original import read_model
from pimflow.errors import ModelError, PimflowError
from pimflow.frontend import Loaded
from pimflow.ir import Graph
from pimflow.ir.analysis.integer_ranges import QUANTISED
from pimflow.ir.gradients.tape import SCATTER_OPSET
from pimflow.options import Options
from pimflow.passes import (
    FoldConstants,
    FuseEpilogues,
    MovementElimination,
    PassManager,
    RemoveDeadCode,
    RemoveIdentity,
)
from pimflow.passes.differentiate import Differentiate, TrainingStep, training_step
from pimflow.passes.parameters import parameters
from pimflow.passes.tied_weights import with_tied_weights
from pimflow.passes.whole_gelus import with_whole_gelus
from pimflow.records import dataclass
from pimflow.runtime.costs import CostModel
from pimflow.runtime.offload.run import SimulatedPlan, keep_all
from pimflow.runtime.offload.trace import Trace, trace_of
from pimflow.search.pricing import host_alone
from pimflow.search.relational_form import once_per_graph, training_form
from pimflow.search.room import Price
from pimflow.targets import Target

CLEAN_UP = PassManager((RemoveDeadCode(), FoldConstants(learnt_apart=True), RemoveIdentity(), RemoveDeadCode()))
"""Cleans up a model to be trained: norms stay, and weights are not folded into one another."""

OPTIMISE = PassManager((RemoveDeadCode(), FuseEpilogues(residual=True), MovementElimination()))
"""Optimises a step before it is priced."""


@dataclass(frozen=True)
class Step:
    """A training step as the host executes it.

    Args:
        parameters: total elements of all gradients.
        trace: its kernels, including the Pads of the host's library.
        state_bytes: memory that is in use throughout.
        available: bytes that activations may take; None if no limit is known.
        state_missing_bytes: what the GPU's memory lacks for the state alone.
    """

    parameters: int
    trace: Trace
    state_bytes: int
    available: int | None
    state_missing_bytes: int = 0

    def price(self, found: SimulatedPlan) -> Price:
        """The price of a plan of its activations: whether, and by how much, it exceeds the available memory; time."""
        excess = 0 if self.available is None else max(0, found.run.peak_bytes - self.available)
        missing = excess + self.state_missing_bytes
        return Price(missing > 0, found.run.time_us, missing)


@dataclass(frozen=True)
class StepBuilder:
    """Makes the training steps of a model.

    Args:
        source: the model.
        read_options: how it is read, and whether its relational layers are rewritten.
        costs: of the machine.
        options: how it is differentiated, except for the parameters.
        limit_bytes: what activations may take; None for what the machine's GPU memory leaves.
    """

    source: ModelSource
    read_options: Options
    costs: CostModel
    options: Differentiate
    limit_bytes: int | None = None

    def cheapest(self) -> tuple[Step, ...]:
        """The step with relational layers in the fastest form. If its saved activations do not all fit, the result also
        includes the step in the fastest form for which they do, or else in the one that is found to lack least. Where
        gradients need it, Loops and Scans of known length are replaced by their iterations, and a model whose opset
        lacks accumulating scatters is converted to a newer one.

        Raises:
            ModelError: the model has no parameters, or an operator has no gradient.
        """
        loaded = read_model(self.source, self.read_options, learnt_apart=True)
        try:
            return self._steps(loaded)
        except ModelError:
            for source, unroll in self._other_forms(loaded.graph):
                with suppress(PimflowError):  # the error for the model as given helps more
                    return self._steps(read_model(source, self.read_options, unroll=unroll, learnt_apart=True))
            raise

    def _other_forms(self, graph: Graph) -> Iterator[tuple[ModelSource, bool]]:
        """The model with Loops and Scans as their iterations, in a newer opset, and both, as far as it may help."""
        is_old = graph.opset.get("", SCATTER_OPSET) < SCATTER_OPSET
        newer = self.source.in_newer_opset(SCATTER_OPSET) if is_old else None
        has_loops = any(node.kind in ("Loop", "Scan") for node in graph.nodes)
        for source in filter(None, (self.source, newer)):
            for unroll in (False, True) if has_loops else (False,):
                if unroll or source is newer:
                    yield source, unroll

    def _steps(self, model: Loaded) -> tuple[Step, ...]:
        graph = with_whole_gelus(with_tied_weights(CLEAN_UP.run(model.graph).graph))
        exported = self._step(graph, model)  # before any other form, whose errors would name nodes made by passes
        fastest = self._fastest_step(graph, model, exported, fitting=False)
        if not fastest.price(keep_all(fastest.trace)).is_too_large:
            return (fastest,)
        return tuple(dict.fromkeys((fastest, self._fastest_step(graph, model, exported, fitting=True))))

    def _fastest_step(self, graph: Graph, model: Loaded, exported: Step, *, fitting: bool) -> Step:
        """The step in the fastest form; with `fitting`, in the fastest that fits into memory, or that lacks least."""

        def price(form: Graph) -> Price:
            step = self._step(form, model)
            return step.price(keep_all(step.trace)) if fitting else Price(False, step.trace.time_us)

        passes = training_form(graph, once_per_graph(price), self.read_options)
        return self._step(PassManager(passes).run(graph).graph, model) if passes else exported

    def _step(self, graph: Graph, model: Loaded) -> Step:
        """The step for all parameters of the model, from which `graph` was made."""
        made = _differentiated(graph, model, self.options)
        alone = host_alone(OPTIMISE.run(made.graph).graph, self.costs)
        clean = alone.replace(nodes=[node.placed(region=None) for node in alone.nodes])  # a kernel for each node
        trace = trace_of(clean, made.forward, self.costs)
        state = clean.constant_bytes + sum(buffer.bytes for buffer in trace.buffers if buffer.fixed)
        elements = sum(made.graph.value(name).elements for name in made.gradients)
        left = bytes_left(self.costs.target, state)
        available = self.limit_bytes if self.limit_bytes is not None or left is None else max(0, left)
        return Step(elements, trace, state, available, 0 if left is None else max(0, -left))


def bytes_left(target: Target, state_bytes: int) -> int | None:
    """The GPU memory that a step's state leaves for activations, negative if the state alone does not fit; None if a
    target does not describe that memory."""
    return None if target.memory is None else target.memory.gpu.usable_bytes - state_bytes


def _differentiated(graph: Graph, model: Loaded, options: Differentiate) -> TrainingStep:
    """A step for all parameters of a model, from which `graph` was made.

    Raises:
        ModelError: it has none, or an operator has no gradient.
    """
    names, name = parameters(graph, model.graph, model.of_graph), model.graph.name
    if not names and not any(given in graph.outputs or graph.users(given) for given in graph.inputs):
        what = "computes the same for every input" if graph.inputs else "has neither inputs nor parameters"
        raise ModelError(f"{name!r} {what}: there is nothing to train", "export it again")
    if not names and any(model.graph.value(each).dtype in QUANTISED for each in model.graph.constants):
        hint = "give the model before quantisation: there is no gradient through quantised weights"
        raise ModelError(f"{name!r} has no parameters to train", hint)
    if not names:
        raise ModelError(f"{name!r} has no parameters to train", "give a model with weights")
    return training_step(graph, replace(options, wrt=names))

"""Training steps on a machine: their times, and what becomes of the activations that they save."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from pimflow.bundle.source import ModelSource, model_source
from pimflow.compiled import Machine
from pimflow.compiled.original import read_model
from pimflow.data import Limits
from pimflow.errors import ModelError, PimflowError, choice
from pimflow.ir import Graph
from pimflow.ir.gradients.tape import SCATTER_OPSET
from pimflow.options import OptionKeywords, Options, read_argument, takes_options
from pimflow.passes import (
    FoldConstants,
    FuseEpilogues,
    MovementElimination,
    PassManager,
    RemoveDeadCode,
    RemoveIdentity,
)
from pimflow.passes.differentiate import Differentiate, Loss, Optimiser, TrainingStep, parameters, training_step
from pimflow.report.basis import gpu_basis
from pimflow.report.training import Activations, Endurance, Training
from pimflow.runtime.costs import CostModel
from pimflow.runtime.offload.planning import plan_activations
from pimflow.runtime.offload.rule import adaptive_rule
from pimflow.runtime.offload.run import ActivationPlan, Channel, Found, follow
from pimflow.runtime.offload.spill import channel_of, require_drives
from pimflow.runtime.offload.trace import Trace, trace_of
from pimflow.runtime.offload.wish import Wish
from pimflow.search.pricing import host_alone
from pimflow.search.relational_form import training_form
from pimflow.targets import Target, TargetRecord
from pimflow.targets.schema.memory import Ssd

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack

BEFORE = PassManager((RemoveDeadCode(), FoldConstants(), RemoveIdentity(), RemoveDeadCode()))
"""What cleans a model up that is trained: norms stay, and weights are not folded into one another."""

BEHIND = PassManager((RemoveDeadCode(), FuseEpilogues(residual=True), MovementElimination()))
"""What a step is priced after."""

_GIB = 1 << 30


@takes_options
def train(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    loss: Loss = "sum",
    optimiser: Optimiser = "sgd",
    activations: Activations = "auto",
    limit_gib: float | None = None,
    slower_percent: float = 0.0,
    **options: Unpack[OptionKeywords],
) -> Training:
    """A training step of a model on a machine's host: its time, its memory, and a plan for the activations it saves.

    Each saved activation is kept, offloaded to the machine's SSDs and asked back, or recomputed. The plan has the least
    peak that the search finds at no more time than `slower_percent` allows; where that does not fit into the GPU's
    memory, the fastest that fits. With `limit_gib` it is the cheapest that fits: the fastest, and of these the one that
    writes least, so that all is kept where there is room for it.

    Args:
        model: a path, "zoo:NAME", the bytes of an ONNX file, or an ONNX model in memory.
        loss: "sum" (of outputs times given gradients), "mean-squared" or "cross-entropy".
        optimiser: "none", "sgd", "momentum" or "adam".
        activations: "auto", of all ways and their mixtures the best; "keep" all; "offload" or "recompute" alone; or
            "rule", SSDTrain's.
        limit_gib: what activations may take; by default what the machine's GPU memory leaves.
        slower_percent: how much longer the step may take for a lower peak, beside what transfers slow kernels by.
        options: as for `compile`; of these the machine, the shapes, the graph, and whether relational layers are
            rewritten, by default into the form whose step takes least time.

    Returns:
        A row per saved activation.

    Raises:
        PimflowError: as `compile`; or an operator has no gradient, or nothing can be offloaded on the machine.
    """
    loss = choice("loss", read_argument("loss", str, loss), get_args(Loss))
    optimiser = choice("optimiser", read_argument("optimiser", str, optimiser), get_args(Optimiser))
    activations = choice("use of activations", read_argument("activations", str, activations), get_args(Activations))
    slower = read_argument("slower_percent", Annotated[float, Limits(least=0)], slower_percent)
    limit = read_argument("limit_gib", Annotated[float, Limits(above=0)] | None, limit_gib)
    source, asked = model_source(model), Options.of(**options)
    machine = Machine.of(asked)
    ssd = _drives(machine.target, activations)
    step = _model_step(source, asked, machine.costs, Differentiate(loss, optimiser=optimiser))
    trace, state = _priced(step, machine.costs)
    available = _available(machine.costs, state) if limit is None else round(limit * _GIB)
    wish = Wish(activations != "recompute", activations != "offload", slower, available)
    found = _planned(trace, channel_of(machine.target), activations, wish, least=limit is None)
    return Training(
        source.text,
        source.sha256,
        TargetRecord.of(machine.target),
        gpu_basis(machine.target, measured=machine.measured is not None),
        loss,
        optimiser,
        activations,
        trace,
        found,
        sum(step.graph.value(name).elements for name in step.gradients),
        state,
        available,
        None if ssd is None else Endurance.of(found.run, trace, ssd),
    )


def _drives(target: Target, activations: Activations) -> Ssd | None:
    """The machine's SSDs, if it has any and needs some."""
    if activations in ("offload", "rule"):
        require_drives(target)
    return None if target.memory is None else target.memory.ssd


def _model_step(source: ModelSource, asked: Options, costs: CostModel, options: Differentiate) -> TrainingStep:
    """A step of a model; of one whose opset has no scatters that add up, and that needs them, in a newer opset.

    Raises:
        ModelError: as `_step`.
    """
    graph = read_model(source, asked).graph
    try:
        return _cheapest_step(graph, asked, costs, options)
    except ModelError as error:
        newer = source.in_newer_opset(SCATTER_OPSET) if graph.opset.get("", SCATTER_OPSET) < SCATTER_OPSET else None
        if newer is None:
            raise
        try:
            return _cheapest_step(read_model(newer, asked).graph, asked, costs, options)
        except PimflowError:
            raise error from None  # what is said of the model as it was given helps more


def _cheapest_step(model: Graph, asked: Options, costs: CostModel, options: Differentiate) -> TrainingStep:
    """A step with relational layers in the form in which it takes least time.

    Raises:
        ModelError: as `_step`.
    """
    graph = BEFORE.run(model).graph
    step = _step(graph, model, options)
    passes = training_form(graph, lambda form: _priced(_step(form, model, options), costs)[0].time_us, asked)
    return _step(PassManager(passes).run(graph).graph, model, options) if passes else step


def _step(graph: Graph, model: Graph, options: Differentiate) -> TrainingStep:
    """Of all parameters of a model, of which a graph is what was made.

    Raises:
        ModelError: it has none, or an operator has no gradient.
    """
    names = parameters(graph, model)
    if not names and not any(graph.users(name) for name in graph.inputs):
        raise ModelError(
            f"{model.name!r} computes the same whatever it is given: nothing is left to train", "export it anew"
        )
    if not names:
        raise ModelError(f"{model.name!r} has no parameters to train", "give a model with weights")
    return training_step(graph, replace(options, wrt=names))


def _priced(step: TrainingStep, costs: CostModel) -> tuple[Trace, int]:
    """The step as the host goes through it, with the Pads of its library, and the bytes that stay throughout."""
    alone = host_alone(BEHIND.run(step.graph).graph, costs)
    clean = alone.replace(nodes=[node.placed(region=None) for node in alone.nodes])  # each a kernel by itself
    trace = trace_of(clean, step.forward, costs)
    return trace, clean.constant_bytes + sum(buffer.bytes for buffer in trace.buffers if buffer.fixed)


def _available(costs: CostModel, state_bytes: int) -> int | None:
    memory = costs.target.memory
    return None if memory is None else max(0, memory.gpu.usable_bytes - state_bytes)


def _planned(trace: Trace, channel: Channel | None, activations: Activations, wish: Wish, *, least: bool) -> Found:
    """The plan that is asked for.

    Args:
        trace: the step.
        channel: to the SSDs; None without.
        activations: what may be done.
        wish: of the search.
        least: whether the peak is to be as low as possible; the limit then only counts where that does not fit.
    """
    if activations == "keep":
        return Found(ActivationPlan(), follow(trace, ActivationPlan()))
    if activations == "rule":
        assert channel is not None
        plan = adaptive_rule(trace, channel, trace.modules)
        return Found(plan, follow(trace, plan, channel))
    limit = wish.limit_bytes
    if not least:
        return plan_activations(trace, channel, wish)
    found = plan_activations(trace, channel, replace(wish, limit_bytes=None))
    return found if limit is None or found.run.peak_bytes <= limit else plan_activations(trace, channel, wish)

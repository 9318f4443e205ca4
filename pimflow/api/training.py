"""Training steps on a machine: their times, and what becomes of the activations that they save."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pimflow.bundle.source import model_source
from pimflow.compiled import Machine
from pimflow.compiler import read_model
from pimflow.errors import OptionError, TargetError, choice
from pimflow.ir import Graph
from pimflow.options import OptionKeywords, Options, read_argument, takes_options
from pimflow.passes import (
    FoldConstants,
    FuseEpilogues,
    MovementElimination,
    PassManager,
    RemoveDeadCode,
    RemoveIdentity,
)
from pimflow.passes.differentiate import Differentiate, Loss, Optimiser, TrainingStep, training_step
from pimflow.report.basis import gpu_basis
from pimflow.report.training import Activations, Endurance, Training, channel_of
from pimflow.runtime.costs import CostModel
from pimflow.runtime.offload.rule import adaptive_rule
from pimflow.runtime.offload.run import ActivationPlan, Channel, follow
from pimflow.runtime.offload.search import Found, Wish, plan_activations
from pimflow.runtime.offload.trace import Trace, trace_of
from pimflow.targets import TargetRecord

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
    memory (or into `limit_gib`), the fastest that fits.

    Args:
        model: a path, "zoo:NAME", the bytes of an ONNX file, or an ONNX model in memory.
        loss: "sum" (of outputs times given gradients), "mean-squared" or "cross-entropy".
        optimiser: "none", "sgd", "momentum" or "adam".
        activations: "auto"; "keep" all; "offload" or "recompute" alone; or "rule", SSDTrain's.
        limit_gib: what activations may take; by default what the machine's GPU memory leaves.
        slower_percent: how much longer the step may take for a lower peak.
        options: as for `compile`; of these the machine and the shapes.

    Returns:
        A row per saved activation.

    Raises:
        PimflowError: as `compile`; or an operator has no gradient, or nothing can be offloaded on the machine.
    """
    loss = choice("loss", read_argument("loss", str, loss), get_args(Loss))
    optimiser = choice("optimiser", read_argument("optimiser", str, optimiser), get_args(Optimiser))
    activations = choice("use of activations", read_argument("activations", str, activations), get_args(Activations))
    slower = read_argument("slower_percent", float, slower_percent)
    if slower < 0 or (limit_gib is not None and limit_gib <= 0):
        raise OptionError("'limit_gib' and 'slower_percent' are no negative numbers", "leave them out")
    source, asked = model_source(model), Options.of(**options)
    machine = Machine.of(asked)
    ssd = None if machine.target.memory is None else machine.target.memory.ssd
    if ssd is None and activations in ("offload", "rule"):
        raise TargetError(f"{machine.target.name!r} has no SSDs", "choose a target with a table [memory.ssd]")
    graph = BEFORE.run(read_model(source, asked).graph).graph
    step = training_step(graph, Differentiate(loss, optimiser=optimiser))
    clean = BEHIND.run(step.graph).graph
    trace = trace_of(clean, step.forward, machine.costs)
    state = clean.constant_bytes + sum(buffer.bytes for buffer in trace.buffers if buffer.fixed)
    available = _available(machine.costs, state) if limit_gib is None else round(limit_gib * _GIB)
    found = _planned(trace, channel_of(ssd), activations, slower, available)
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
        _trained(graph, step),
        state,
        available,
        None if ssd is None else Endurance.of(found.run, trace, ssd),
    )


def _trained(graph: Graph, step: TrainingStep) -> int:
    return sum(graph.value(name).elements for name in step.gradients)


def _available(costs: CostModel, state_bytes: int) -> int | None:
    memory = costs.target.memory
    return None if memory is None else max(0, memory.gpu.usable_bytes - state_bytes)


def _planned(
    trace: Trace, channel: Channel | None, activations: Activations, slower: float, available: int | None
) -> Found:
    """The plan that is asked for; one that fits where the first does not."""
    if activations == "keep":
        return Found(ActivationPlan(), follow(trace, ActivationPlan()))
    if activations == "rule":
        assert channel is not None
        plan = adaptive_rule(trace, channel, trace.modules)
        return Found(plan, follow(trace, plan, channel))
    wish = Wish(activations != "recompute", activations != "offload", slower)
    found = plan_activations(trace, channel, wish)
    if available is None or found.run.peak_bytes <= available:
        return found
    tight = Wish(wish.offload, wish.recompute, slower, available)
    return plan_activations(trace, channel, tight)

"""Training steps on a machine: their times, and a plan for the activations that they save."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from pimflow.api.training_steps import Step, StepBuilder, bytes_left
from pimflow.bundle.source import model_source
from pimflow.compiled import Machine
from pimflow.data import Limits, read_argument
from pimflow.errors import OptionError, choice
from pimflow.options import OptionKeywords, Options, takes_options
from pimflow.passes.differentiate import Differentiate, Loss, Optimiser
from pimflow.report.basis import gpu_basis
from pimflow.report.training import Activations, Endurance, Training
from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.planning import plan_activations
from pimflow.runtime.offload.requirements import Requirements
from pimflow.runtime.offload.rule import adaptive_rule
from pimflow.runtime.offload.run import ActivationPlan, SimulatedPlan, keep_all, simulate
from pimflow.runtime.offload.search import Known, Watch
from pimflow.runtime.offload.spill import channel_of, require_drives
from pimflow.runtime.offload.trace import Trace
from pimflow.search.policy import find_policy
from pimflow.search.progress import SearchProgress, receiver_of
from pimflow.sparse.memory import size_text
from pimflow.targets import Target, TargetRecord
from pimflow.targets.schema.memory import Ssd

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack

_GIB = 1 << 30


@takes_options()
def train(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    loss: Loss = "sum",
    optimiser: Optimiser = "sgd",
    activations: Activations = "auto",
    limit_gib: float | None = None,
    slower_percent: float = 0.0,
    progress: Callable[[str], None] | None = None,
    **options: Unpack[OptionKeywords],
) -> Training:
    """Builds and prices a training step on a machine's host, and plans what to do with the activations it saves.

    Each saved activation is kept, offloaded to the machine's SSDs and prefetched, or recomputed. The plan has the
    lowest peak that the search finds for a step at most `slower_percent` longer; if that does not fit into the GPU's
    memory, it is the fastest plan that fits. With `limit_gib` it is the fastest plan that fits and, among equally fast
    ones, the one that writes least, so that everything is kept if there is room; all steps at most `slower_percent`
    longer then count as equally fast.

    Of the options of `compile`, those of the machine, the shapes, the graph, the rewriting of relational layers and the
    time budget matter. By default these layers take the form whose step is fastest or, if its activations do not fit,
    another one if that makes a better plan.

    Args:
        model: a path, "zoo:NAME", the bytes of an ONNX file, or an ONNX model in memory.
        loss: "sum" (of outputs times given gradients), "mean-squared" or "cross-entropy".
        optimiser: "none", "sgd", "momentum" or "adam".
        activations: "auto" for the best mixture of all ways; "keep" all; only "offload" or "recompute"; or "rule" for
            SSDTrain's rule.
        limit_gib: memory for activations; by default what is left of the machine's GPU memory.
        slower_percent: how much longer the step may take for a lower peak, apart from kernels slowed by transfers; with
            `limit_gib`, for fewer bytes written, everything included.
        progress: called with a line of text from time to time.
        options: as for `compile`.

    Returns:
        A row per saved activation.

    Raises:
        PimflowError: as for `compile`; or an operator has no gradient, the machine has nothing to offload to, its SSDs
            do not hold what the rule offloads, or it has less memory than `limit_gib`.
    """
    loss = choice("loss", read_argument("loss", str, loss), get_args(Loss))
    optimiser = choice("optimiser", read_argument("optimiser", str, optimiser), get_args(Optimiser))
    activations = choice("use of activations", read_argument("activations", str, activations), get_args(Activations))
    slower = read_argument("slower_percent", Annotated[float, Limits(least=0)], slower_percent)
    limit = read_argument("limit_gib", Annotated[float, Limits(above=0)] | None, limit_gib)
    tell, source, parsed = receiver_of(progress), model_source(model), Options.of(**options)
    find_policy(parsed.policy)  # has no effect, but an unknown one is a mistake
    machine = Machine.of(parsed)
    ssd = _drives(machine.target, activations)
    limit_bytes = None if limit is None else round(min(limit * _GIB, sys.maxsize))
    steps = StepBuilder(source, parsed, machine.costs, Differentiate(loss, optimiser=optimiser), limit_bytes).cheapest()
    if limit_bytes is not None:
        _check_limit(limit_bytes, max(steps, key=lambda step: step.state_bytes), machine.target)
    channel, requirements = (
        channel_of(machine.target),
        Requirements(activations != "recompute", activations != "offload", slower),
    )
    search = SearchProgress("activations", tell, parsed.time_budget_s)
    watch = Watch(lambda: search.out_of_time, search.simulated)
    plans = [(step, _planned(step, channel, activations, requirements, watch, least=limit is None)) for step in steps]
    step, found = min(plans, key=lambda plan: plan[0].price(plan[1]).rank)
    return Training(
        source.text,
        source.sha256,
        TargetRecord.of(machine.target),
        gpu_basis(machine.target, measured=machine.measured is not None),
        loss,
        optimiser,
        activations,
        step.trace,
        found,
        step.parameters,
        step.state_bytes,
        step.available,
        step.state_missing_bytes,
        None if ssd is None else Endurance.of(found.run, step.trace, ssd),
        complete=not watch.cut_short,
    )


def _drives(target: Target, activations: Activations) -> Ssd | None:
    """The machine's SSDs, if it has any; required if the activations can only be offloaded."""
    if activations in ("offload", "rule"):
        require_drives(target)
    return None if target.memory is None else target.memory.ssd


def _check_limit(limit_bytes: int, step: Step, target: Target) -> None:
    """Check that a machine has as much memory for the activations of a step as they may take.

    Raises:
        OptionError: it has less.
    """
    left = bytes_left(target, step.state_bytes)
    if left is not None and left < 0:
        problem = f"{target.name!r} lacks {size_text(-left)} for weights, gradients, state, inputs and results alone"
        raise OptionError(problem, "set memory.gpu.capacity_gib")
    if left is not None and limit_bytes > left:
        problem = f"{target.name!r} has {size_text(left)} for activations, less than the limit of"
        raise OptionError(f"{problem} {size_text(limit_bytes)}", "lower it, or set memory.gpu.capacity_gib")


def _check_space(trace: Trace, channel: Channel, plan: ActivationPlan) -> None:
    """Check that the SSDs hold what the rule offloads, which does not ask for their capacity.

    Raises:
        OptionError: they do not.
    """
    if not channel.has_space(trace, plan.offloaded):
        size = size_text(sum(trace.sizes[buffer] for buffer in plan.offloaded))
        problem = f"the rule offloads {size}, more than the SSDs hold ({size_text(int(channel.capacity_bytes))})"
        raise OptionError(problem, "set memory.ssd.capacity_gb, or let the search choose: auto or offload")


def _planned(
    step: Step,
    channel: Channel | None,
    activations: Activations,
    requirements: Requirements,
    watch: Watch,
    *,
    least: bool,
) -> SimulatedPlan:
    """The requested plan.

    Args:
        step: whose activations are planned.
        channel: to the SSDs; None without any.
        activations: what may be done with them.
        requirements: of the search, except for the limit.
        watch: the progress of the search.
        least: whether to make the peak as low as possible; the limit then counts only if that plan does not fit.
    """
    trace, within = step.trace, replace(requirements, limit_bytes=step.available)
    if activations == "keep":
        return keep_all(trace)
    if activations == "rule":
        assert channel is not None
        plan = adaptive_rule(trace, channel, trace.modules)
        _check_space(trace, channel, plan)
        return SimulatedPlan(plan, simulate(trace, plan, channel))
    known = Known(watch)
    found = plan_activations(trace, channel, requirements if least else within, known)
    return plan_activations(trace, channel, within, known) if least and step.price(found).is_too_large else found

"""A step that does not fit into the GPU's memory compiles to a plan that fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.errors import OptionError, TargetError
from pimflow.ir import Builder
from pimflow.onnxio.export import to_onnx
from pimflow.passes.differentiate import Differentiate
from pimflow.report.spill import spill_text
from pimflow.runtime.memory.tiers import gpu_bytes
from pimflow.runtime.offload.run import ActivationPlan, simulate
from pimflow.runtime.offload.spill import SpillWay, channel_of, plan_spill
from pimflow.runtime.timeline import CHANNELS, Event
from support.offload import Clock, gated_by_input, machine, momentum_step, residual_step, slow_drives, step


def compiled(kib: float, spill: SpillWay = "auto", base: str = "a100-ssd", policy: str = "gpu") -> CompiledModel:
    return pimflow.compile(step(), target=machine(kib, base), policy=policy, spill=spill, use_cache=False, check=False)


def noisy(kib: float, way: SpillWay) -> CompiledModel:
    """A training step of layers that are each scaled by random noise, on a machine with slow drives."""
    build = Builder()
    x = build.input(512, 32)
    for _ in range(4):
        x = build.relu(build.gemm(x, 32))
        x = build.mul(x, build.onnx("RandomUniformLike", x))
    graph = Differentiate("mean-squared").run(build.graph(build.gemm(x, 8))).graph
    model, target = to_onnx(graph).SerializeToString(), slow_drives(machine(kib), 2.0, 2.4)
    return pimflow.compile(model, target=target, policy="gpu", spill=way, use_cache=False, check=False)


def test_a_plan_that_fits() -> None:
    """With three quarters of the memory of keeping all; a tick-by-tick simulation gives the same time and peak."""
    whole = compiled(1 << 20)
    assert whole.spill is None
    needed = gpu_bytes(whole.memory)
    tight = compiled(0.75 * needed / 1024)
    spill = tight.spill
    assert spill is not None
    assert spill.fits
    run, room = spill.found.run, round(0.75 * needed / 1024 / 2**20 * 2**30) - tight.memory.weight_bytes
    assert run.peak_bytes <= spill.arena_bytes <= room == spill.room_bytes
    channel = channel_of(tight.machine.target)
    assert channel is not None
    time_us, peak = Clock(spill.trace, spill.found.plan, channel, room, tick_us=0.05).run()
    assert run.time_us == pytest.approx(time_us, rel=0.05)
    assert run.peak_bytes == pytest.approx(peak, rel=0.05)
    told = dict(tight.about)
    assert "DOES NOT FIT" not in told["GPU memory"]
    assert f"{run.time_us:,.1f} us" in told["activations"]
    rows = tight.document()["memory"]["spill"]["activations"]
    assert {row["name"] for row in rows if row["becomes"] == "offloaded"} == {
        spill.trace.buffers[buffer].name for buffer in spill.found.plan.offloaded
    }


def test_the_steps_are_those_of_the_schedule() -> None:
    """With everything kept, the time is the same, and the bytes alive are those that the memory planner finds."""
    spill = compiled(400, "recompute").spill
    assert spill is not None
    model = compiled(1 << 20)
    kept = simulate(spill.trace, ActivationPlan())
    assert kept.time_us == pytest.approx(model.timeline.makespan_us)
    assert kept.peak_bytes == pytest.approx(model.memory.live_bytes, rel=1e-3)  # which aligns the sizes


def test_a_step_that_cannot_fit_is_reported_with_the_lowest_peak_found() -> None:
    """And with the limiting step, if there is one: no plan needs less than what that step touches."""
    model = compiled(150)
    told, spill = dict(model.about), model.spill
    assert told["GPU memory"].startswith("DOES NOT FIT")
    assert "the minimum that was found (impossible: " in told["activations"]
    assert spill is not None
    assert spill.is_impossible
    (kernel,) = (kernel for kernel in spill.trace.kernels if kernel.name == spill.lower_bound.step)
    touched = [spill.trace.buffers[buffer] for buffer in {*kernel.reads, *kernel.writes}]
    assert sum(-(-buffer.bytes // 64) * 64 for buffer in touched) == spill.lower_bound.bytes > spill.room_bytes
    assert "it is unknown whether less is possible" in spill_text(replace(spill, room_bytes=spill.lower_bound.bytes))


@pytest.mark.parametrize(
    ("model", "more", "trips_of_input"),
    [(residual_step, 2 << 10, 1), (residual_step, 16 << 10, 0), (gated_by_input, 0, 3), (gated_by_input, 2 << 10, 3)],
)
def test_with_drives_everything_possible_fits(model: Callable[[], bytes], more: int, trips_of_input: int) -> None:
    """With the memory of a single step's operands, or little more: inputs are offloaded too, if need be more than once;
    by value."""

    def at(kib: float) -> CompiledModel:
        return pimflow.compile(model(), target=machine(kib), policy="gpu", use_cache=False, check=False)

    tight = at(100)
    spill, weights = tight.spill, tight.memory.weight_bytes
    assert spill is not None
    compiled = at((spill.lower_bound.bytes + more + weights) / 1024)
    assert compiled.spill is not None
    assert compiled.spill.fits
    assert compiled.spill.arena_bytes <= spill.lower_bound.bytes + more
    trips = [buffer for buffer, _ in compiled.spill.found.plan.loads]
    assert trips.count(0) == trips_of_input
    assert compiled.verify(arena=True).passed
    rows = compiled.document()["memory"]["spill"]["activations"]
    assert len(rows) == len(trips)
    assert sum(row["bytes"] for row in rows if row["store_us"]) == compiled.spill.found.run.bytes_of(
        "store", compiled.spill.trace
    )


@pytest.mark.parametrize(("base", "share"), [("rtx3090", 0.75), ("a100-ssd", 0.75), ("a100-ssd", 0.5)])
def test_an_order_that_needs_less_memory(base: str, share: float) -> None:
    """Gradients are used as soon as they are there: with three quarters of the memory nothing is recomputed, offloaded
    or slower. The peak is that of a replay which knows the order alone, and the values are those of the model."""

    def at(kib: float) -> CompiledModel:
        return pimflow.compile(momentum_step(), target=machine(kib, base), policy="gpu", use_cache=False, check=False)

    whole = at(1 << 20)
    model = at((share * whole.memory.arena_bytes + whole.memory.weight_bytes) / 1024)
    spill, schedule = model.spill, model.spilled_schedule
    assert spill is not None
    assert schedule is not None
    assert spill.fits
    run = spill.found.run
    assert not run.reruns
    assert bool(run.transfers) == (share == 0.5)
    told = model.document()["memory"]["spill"]
    kernels = {kernel.name: kernel for kernel in spill.trace.kernels}
    assert sorted(told["order"]) == sorted(kernels)
    if share == 0.75:
        assert told["time_us"] == pytest.approx(whole.timeline.makespan_us)
        touched = [{*kernels[name].reads, *kernels[name].writes} for name in told["order"]]
        alive = (
            {b for b in set().union(*touched[: n + 1]) if any(b in later for later in touched[n:])}
            for n in range(len(touched))
        )
        assert run.peak_bytes == max(sum(spill.trace.buffers[b].bytes for b in buffers) for buffers in alive)
    shown = [event.name for event in schedule.events if event.kind == "run" and event.resource == "gpu"]
    assert shown == [name for name in told["order"] if name in {*shown}]
    assert "steps in another order" in dict(model.about)["activations"]
    assert model.verify(arena=True).passed


@pytest.mark.parametrize(("share", "plain_us"), [(0.55, None), (0.75, 1443.3)])
def test_steps_in_another_order(share: float, plain_us: float | None) -> None:
    """If nothing fits in the schedule's order, or a plan recomputes slower kernels; by value in the promised arena."""

    def at(kib: float) -> CompiledModel:
        tight = machine(kib, "rtx3090")
        return pimflow.compile(residual_step(), target=tight, policy="gpu", use_cache=False, check=False)

    model = at(share * gpu_bytes(at(1 << 20).memory) / 1024)
    spill = model.spill
    assert spill is not None
    assert spill.fits
    assert spill.found.run.time_us < (plain_us or math.inf)
    order = spill.found.plan.order
    assert len(order) > len({*order}) == len(spill.trace.kernels)
    assert model.verify(arena=True).passed
    told = model.document()["memory"]["spill"]
    assert told["order"] == [spill.trace.kernels[place].name for place in order]
    assert told["recompute_us"] == pytest.approx(told["time_us"] - spill.trace.time_us)
    assert "steps in another order" in dict(model.about)["activations"]
    rows = told["activations"]
    assert len(rows) == len(spill.found.run.reruns)
    assert all(row["made_us"] <= row["read_us"] for row in rows)


def test_the_order_stays_where_memory_channels_change_hands() -> None:
    """Another order might need more switches, which no step's time includes."""
    model = pimflow.compile(
        momentum_step(), target=machine(1 << 20, "rtx3090"), policy="gpu", use_cache=False, check=False
    )
    switch = Event(model.graph.nodes[0].name, CHANNELS, 0.0, 1.0, 0)
    switching = replace(model.timeline, events=(switch, *model.timeline.events))
    room = round(0.95 * model.memory.arena_bytes)
    plans = [plan_spill(model.graph, model.memory, line, room, None, "auto") for line in (model.timeline, switching)]
    assert [bool(spill.executed) for spill in plans] == [True, False]


@pytest.mark.parametrize(("way", "share"), [("auto", 0.6), ("recompute", 0.7)])
def test_random_values_are_kept_until_they_are_read(way: SpillWay, share: float) -> None:
    """Drawn again it would differ: noise is kept if values made from it are recomputed, in any order."""
    model = noisy(1 << 20, way)
    spill = noisy(share * gpu_bytes(model.memory) / 1024, way).spill
    assert spill is not None
    assert spill.fits
    assert bool(spill.found.plan.order) == (way == "recompute")
    again = {spill.trace.kernels[rerun.place].name for rerun in spill.found.run.reruns}
    drawn = {kernel.name for kernel in spill.trace.kernels if kernel.draws}
    assert again
    assert len(drawn) == 4
    assert not again & drawn


def test_a_single_way_or_none() -> None:
    kib = 0.75 * gpu_bytes(compiled(1 << 20).memory) / 1024
    auto, offload, again = (compiled(kib, way).spill for way in ("auto", "offload", "recompute"))
    assert auto is not None
    assert offload is not None
    assert again is not None
    assert not offload.found.plan.recomputed
    assert not again.found.plan.offloaded
    assert auto.found.run.time_us <= min(one.found.run.time_us for one in (auto, offload, again) if one.fits)
    never = compiled(kib, "never")
    assert never.spill is None
    assert dict(never.about)["GPU memory"].startswith("DOES NOT FIT")
    with pytest.raises(TargetError, match="'rtx3090' has no SSDs"):
        compiled(kib, "offload", "rtx3090")


def test_a_plan_with_pim_is_followed_step_by_step() -> None:
    """A part of a split node is a step; without SSDs some of them are recomputed."""
    model = compiled(1 << 20, base="pimflow", policy="md-dp")
    tight = compiled(0.9 * gpu_bytes(model.memory) / 1024, base="pimflow", policy="md-dp")
    assert tight.spill is not None
    kept = simulate(tight.spill.trace, ActivationPlan())
    assert kept.time_us == pytest.approx(tight.timeline.makespan_us)
    assert len(tight.spill.trace.kernels) == len(tight.timeline.region_us) + 2
    assert tight.spill.found.plan.offloaded == frozenset()


def test_inferences_in_flight_are_refused() -> None:
    with pytest.raises(OptionError, match="offload is for one inference after the other"):
        pimflow.compile(step(), target=machine(400), policy="gpu", spill="offload", objective="throughput")
    model = pimflow.compile(
        step(), target=machine(400), policy="gpu", objective="throughput", use_cache=False, check=False
    )
    assert model.spill is None
    assert dict(model.about)["GPU memory"].startswith("DOES NOT FIT")

"""Following a training step: against a tick-by-tick simulation, and by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pimflow.runtime.offload.channel import Channel
from pimflow.runtime.offload.run import ActivationPlan, Entry, Moment, Recording, Run, RunLimits, _Simulation, simulate
from pimflow.runtime.offload.search import chain_of, schedule_loads
from pimflow.runtime.offload.trace import Buffer, Kernel, Trace
from pimflow.targets import load_target
from support.offload import Clock, chain, slow_drives, traces


def changes(run: Run) -> list[tuple[float, int, int]]:
    """Memory taken or released: (time, bytes, buffer)."""
    return [(moment.time_us, moment.bytes, moment.which) for moment in run.log if moment.what in ("allocate", "free")]


def test_nothing_is_moved() -> None:
    run = simulate(chain(4), ActivationPlan())
    assert (run.time_us, run.stall_us, run.peak_bytes, run.transfers) == (12_000.0, 0.0, 4_000_000, ())


def test_one_buffer_loaded_in_time() -> None:
    """Stored from 1 to 2 ms, after the second layer has read it; loaded when that layer's backward pass begins."""
    run = simulate(chain(4), ActivationPlan(((0, 6),)), Channel(1000.0, 1000.0))
    assert [(transfer.kind, transfer.begin_us, transfer.end_us) for transfer in run.transfers] == [
        ("store", 1000.0, 2000.0),
        ("load", 8000.0, 9000.0),
    ]
    assert (run.time_us, run.stall_us, run.peak_bytes) == (12_000.0, 0.0, 3_000_000)


def test_one_buffer_loaded_late() -> None:
    run = simulate(chain(4), ActivationPlan(((0, 7),)), Channel(1000.0, 500.0))
    assert (run.time_us, run.stall_us) == (14_000.0, 2000.0)


def test_buffers_requested_before_they_are_stored_stay() -> None:
    """One store has not begun and is cancelled; another is in progress, and its write is useless."""
    slow = Channel(100.0, 100.0)
    run = simulate(chain(2), ActivationPlan(((1, 2), (0, 3))), slow)
    assert [(transfer.kind, transfer.buffer) for transfer in run.transfers] == [("store", 0)]
    assert (run.time_us, run.stall_us, run.peak_bytes) == (6000.0, 0.0, 2_000_000)


def test_one_recomputed_buffer() -> None:
    """From the previous buffer, which is in memory; this takes its layer's forward pass once more."""
    run = simulate(chain(4), ActivationPlan((), {1: (1,)}))
    assert (run.time_us, run.recompute_us, run.peak_bytes) == (13_000.0, 1000.0, 3_000_000)


def test_recomputation_from_a_recomputed_buffer() -> None:
    """Layer 2 from layer 1, which is recomputed first, and stays until its own backward pass."""
    run = simulate(chain(4), ActivationPlan((), {1: (1,), 2: (2,)}))
    assert [rerun.place for rerun in run.reruns] == [1, 2]
    assert [rerun.begin_us for rerun in run.reruns] == [6000.0, 7000.0]
    assert (run.time_us, run.peak_bytes) == (14_000.0, 3_000_000)


def test_operands_of_a_recomputation_live_until_then() -> None:
    """Nothing else after the turning point reads the input of the layer."""
    buffers = (Buffer("x", 10, 10), Buffer("y", 20, 20), Buffer("z", 40, 40), Buffer("t", 5, 5))
    kernels = (
        Kernel("a", 1.0, (), (0,)),
        Kernel("b", 1.0, (0,), (3,)),
        Kernel("c", 1.0, (3,), (1,)),
        Kernel("d", 1.0, (1,), (2,)),
        Kernel("d'", 1.0, (2,), ()),
        Kernel("c'", 1.0, (1, 0), ()),
    )
    trace = Trace(kernels, 4, buffers)
    assert trace.saved == (0, 1, 2)
    run = simulate(trace, ActivationPlan((), {1: (1, 2)}))
    assert run.time_us == 8.0
    assert {*changes(run)[-2:]} == {(8.0, -20, 1), (8.0, -10, 0)}
    assert (5.0, 5, 3) in changes(run)
    assert (7.0, -5, 3) in changes(run), "its operands are freed as soon as it is made"


def test_operands_of_a_recomputation_are_freed_after_their_last_read() -> None:
    """Intermediate s and t, and x, which the backward pass has read before."""
    buffers = tuple(Buffer(name, size, size) for name, size in {"x": 10, "s": 20, "t": 40, "z": 5}.items())
    kernels = (
        Kernel("x", 1.0, (), (0,)),
        Kernel("s", 1.0, (0,), (1,)),
        Kernel("t", 1.0, (1,), (2,)),
        Kernel("z", 1.0, (2,), (3,)),
        Kernel("x'", 1.0, (0,), ()),
        Kernel("z'", 1.0, (3,), ()),
    )
    trace = Trace(kernels, 4, buffers)
    assert trace.saved == (0, 3)
    run = simulate(trace, ActivationPlan((), {3: (1, 2, 3)}))
    assert [(time_us, size) for time_us, size, _ in changes(run) if time_us > 4] == [
        (5.0, 20),
        (6.0, 40),
        (7.0, -20),
        (7.0, 5),
        (8.0, -40),
        (8.0, -10),
        (9.0, -5),
    ]


def test_by_products_of_a_recomputation_are_freed() -> None:
    """One kernel makes a and b; b was read for the last time before a is recomputed, so it is released at once."""
    buffers = (Buffer("a", 10, 10), Buffer("b", 20, 20), Buffer("g", 40, 40))
    kernels = (
        Kernel("a, b", 1.0, (), (0, 1)),
        Kernel("turn", 1.0, (), ()),
        Kernel("b'", 1.0, (1,), ()),
        Kernel("a'", 1.0, (0,), (2,)),
        Kernel("g'", 1.0, (2,), ()),
    )
    trace, plan = Trace(kernels, 2, buffers), ActivationPlan((), {0: (0,)})
    run = simulate(trace, plan)
    assert run.peak_bytes == Clock(trace, plan, Channel(1.0, 1.0)).run()[1] == 50
    assert [(time_us, size) for time_us, size, _ in changes(run) if time_us > 3] == [
        (4.0, -20),
        (4.0, 40),
        (5.0, -10),
        (6.0, -40),
    ]


def test_by_products_that_are_offloaded_are_freed_until_they_are_loaded() -> None:
    """A pooling makes its maxima and their places; the former are recomputed while the latter are on the SSDs."""
    buffers = tuple(Buffer(name, size, size) for name, size in (("x", 10), ("maxima", 10), ("places", 40), ("y", 40)))
    kernels = (
        Kernel("x", 1.0, (), (0,)),
        Kernel("pool", 1.0, (0,), (1, 2)),
        Kernel("y", 100.0, (1,), (3,)),
        Kernel("y'", 1.0, (3,), ()),
        Kernel("maxima'", 1.0, (1,), ()),
        Kernel("x'", 1.0, (0,), ()),
        Kernel("places'", 1.0, (0, 2), ()),
    )
    trace = Trace(kernels, 3, buffers)
    run = simulate(trace, ActivationPlan(((2, 6),), {1: (1,)}), Channel(10.0, 10.0))
    moved = [(what.what, what.time_us) for what in run.log if what.which == 2 and what.bytes]
    assert moved == [
        ("allocate", 1.0),
        ("free", 6.0),
        ("allocate", 103.0),
        ("free", 104.0),
        ("allocate", 106.0),
        ("free", 111.0),
    ]


def test_a_store_after_the_awaited_one_may_be_cancelled() -> None:
    """The fifth layer waits for the first store; the third's, requested back before the second ends, never begins."""
    plan = ActivationPlan(((2, 5), (1, 8), (0, 9)), limit_bytes=4_000_000)
    run = simulate(chain(5), plan, Channel(200.0, 1e6))
    assert run.starts_us[4] == 6000.0
    assert [transfer.buffer for transfer in run.transfers if transfer.kind == "store"] == [0, 1]


@settings(max_examples=40)
@given(st.data())
def test_a_tick_by_tick_simulation_agrees(data: st.DataObject) -> None:
    """Layers of any size, any of them offloaded and others recomputed, over a fast or a slow channel."""
    layers = data.draw(st.integers(2, 7))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=layers, max_size=layers))
    times = data.draw(st.lists(st.integers(1, 6), min_size=2 * layers, max_size=2 * layers))
    plain = chain(layers)
    kernels = tuple(
        Kernel(kernel.name, 10.0 * time, kernel.reads, kernel.writes)
        for kernel, time in zip(plain.kernels, times, strict=True)
    )
    buffers = tuple(Buffer(f"saved{layer}", 100 * size, size) for layer, size in enumerate(sizes))
    trace = Trace(kernels, layers, buffers)
    write, read = (data.draw(st.sampled_from([2.0, 5.0, 20.0])) for _ in range(2))
    latency_us = data.draw(st.sampled_from([0.0, 30.0]))
    channel = Channel(write, read, latency_us, data.draw(st.sampled_from([math.inf, 200.0, 40.0])))
    fates = data.draw(st.lists(st.sampled_from(["keep", "offload", "again"]), min_size=layers, max_size=layers))
    again = {layer: (layer,) for layer in range(1, layers) if fates[layer] == "again"}
    offloaded = [layer for layer in range(layers) if fates[layer] == "offload"]
    limit = data.draw(st.sampled_from([None, 100 * max(sizes) + 300, 1500]))
    plan = ActivationPlan(schedule_loads(trace, channel, offloaded, again), again, limit_bytes=limit)
    run = simulate(trace, plan, channel)
    tick_us = 1.0 if math.isinf(channel.memory_bytes_per_us) else 0.2  # kernels during transfers end between ticks
    stored = {transfer.buffer: transfer.end_us for transfer in run.transfers if transfer.kind == "store"}
    apart = (abs(run.ends_us[ask - 1] - stored.get(buffer, math.inf)) for buffer, ask in plan.loads)
    # whether a buffer is loaded that is requested back when its store ends depends on rounding
    assume(all(us > 2 * tick_us for us in apart))
    # so does memory that a kernel releases before or after a load that begins when another transfer ends
    behind = [own.begin_us for before, own in pairwise(run.transfers) if own.begin_us == before.end_us]
    assume(all(abs(begin_us - end_us) > 2 * tick_us for begin_us in behind for end_us in run.ends_us))
    time_us, peak = Clock(trace, plan, channel, float("inf") if limit is None else limit, tick_us).run()
    assert run.time_us == pytest.approx(time_us, rel=0.05)
    assert run.time_us == pytest.approx(trace.time_us + run.stall_us + run.recompute_us + run.slowed_us)
    assert run.peak_bytes == pytest.approx(peak, rel=0.05)


def test_transfers_use_the_bandwidth_of_kernels() -> None:
    """A store of 1,000 us at a tenth of the memory's bandwidth: a concurrent kernel takes a tenth of that longer."""
    channel = Channel(1000.0, 1000.0, memory_bytes_per_us=10_000.0)
    run = simulate(chain(4), ActivationPlan(((0, 6),)), channel)
    assert [transfer.kind for transfer in run.transfers] == ["store", "load"]
    assert run.slowed_us == pytest.approx(2 * 100.0)
    assert run.time_us == pytest.approx(12_000.0 + 200.0)
    assert run.stall_us == 0


def test_transfers_are_no_faster_than_the_memory_that_they_pass_through() -> None:
    """Kernels stand still while such drives move a buffer, and lose no more than the time that its bytes take."""
    target = slow_drives(load_target("a100-ssd"), 4e3, 1e4)
    assert target.memory is not None
    assert target.memory.ssd is not None
    memory = 1e3 * 1555
    channel = Channel.of(replace(target.memory.ssd, link_gb_per_s=1e5, latency_us=0.0), target.any_gpu)
    assert channel.write_bytes_per_us == channel.read_bytes_per_us == channel.memory_bytes_per_us == memory
    run = simulate(chain(4), ActivationPlan(((0, 6),)), channel)
    assert run.slowed_us == pytest.approx(2 * 1e6 / memory)
    assert run.time_us == pytest.approx(12_000.0 + run.slowed_us)


@pytest.mark.parametrize("rate", [1000.0, 2000.0, 8000.0])
def test_kernels_are_slowed_down_by_bytes_moved_however_fast_they_move(rate: float) -> None:
    """A store and a load of 10^6 bytes: no bytes move during the latency, so faster drives slow nothing down more."""
    channel = Channel(rate, rate, 50.0, 10_000.0)
    run = simulate(chain(4), ActivationPlan(((0, 6),)), channel)
    assert run.slowed_us == pytest.approx(2 * 100.0)
    assert run.stall_us == 0
    assert channel.speed_during(0, 50.0) == Channel(rate, rate).speed_during(0, 0.0) == 1.0, "nothing moves"


def listed_at(run: Run, time_us: float) -> set[int]:
    """The buffers in memory after all listed events up to a time."""
    alive: set[int] = set()
    for moment in run.log:
        if moment.time_us <= time_us and moment.what in ("allocate", "free"):
            alive ^= {moment.which}
    return alive


def listed_steps(log: Sequence[Moment]) -> tuple[list[int], dict[int, int], list[int]]:
    """The steps of a run from its listed events."""
    live = accumulate((moment.bytes for moment in log), initial=0)
    kernels: list[int] = []
    place_of: dict[int, int] = {}
    peaks_bytes, since = [], 0
    for bytes_, moment in zip(islice(live, 1, None), log, strict=True):
        since = since if moment.what == "free" else max(since, bytes_)
        if moment.what in ("run", "again"):
            if moment.what == "run":
                place_of[moment.which] = len(kernels)
            kernels.append(moment.which)
            peaks_bytes.append(since)
            since = 0
    return kernels, place_of, peaks_bytes


def test_the_peak_before_a_quiet_range_counts_for_its_first_kernel() -> None:
    """A buffer is stored and freed between two kernels, and the second one needs less."""
    trace = replace(chain(2), buffers=(Buffer("large", 100, 1), Buffer("small", 1, 1)))
    entries: list[Entry] = [
        (0.0, "allocate", 0, 100),
        (1.0, "run", 0, 0),
        (1.5, "stored", 0, 0),
        (1.5, "free", 0, -100),
        (2.0, "quiet", 1, 2),
    ]
    recording = Recording(trace, entries, (0.0, 2.0), (1.0, 3.0))
    steps = recording.steps()
    assert tuple(steps) == listed_steps([Moment(*event) for event in recording.events])
    assert steps.peaks_bytes == [100, 100]


class OneByOne(_Simulation):
    """Runs every kernel separately."""

    def _quiet_until(self, place: int) -> int:
        return place


@given(traces(), st.data(), st.sampled_from([10.0, 100.0, 1000.0]))
@settings(max_examples=150)
def test_batched_kernels_give_the_same_result_as_single_ones(trace: Trace, data: st.DataObject, rate: float) -> None:
    """To the last bit; both also abort when a bound is exceeded."""
    trace = replace(trace, kernels=tuple(replace(each, time_us=each.time_us // 2) for each in trace.kernels))
    ways = {buffer: data.draw(st.sampled_from(["keep", "offload", "again"])) for buffer in trace.saved}
    again = {b: made for b, way in ways.items() if way == "again" and (made := chain_of(trace, b)) is not None}
    channel = Channel(rate, 2 * rate, 1.0, 4 * rate)
    loads = schedule_loads(trace, channel, [buffer for buffer, way in ways.items() if way == "offload"], again)
    limit = data.draw(st.sampled_from([None, trace.working_set_bytes, 3 * trace.working_set_bytes // 2]))
    plan = ActivationPlan(loads, again, limit_bytes=limit)
    run = _Simulation(trace, plan, channel).run(RunLimits())
    assert run == OneByOne(trace, plan, channel).run(RunLimits())
    assert run is not None
    alive = list(accumulate(moment.bytes for moment in run.log))
    assert run.peak_bytes == max(alive)
    assert run.peak_us == run.log[alive.index(max(alive))].time_us
    moments = sorted({0.0, run.peak_us, run.time_us, *data.draw(st.lists(st.sampled_from(run.ends_us), max_size=3))})
    assert [run.recording.alive_at(when) for when in moments] == [listed_at(run, when) for when in moments]
    assert tuple(run.recording.steps()) == listed_steps(run.log)
    for limits in (RunLimits(run.peak_bytes - 1), RunLimits(lost_us=run.stall_us / 2), RunLimits(run.peak_bytes, 0)):
        assert _Simulation(trace, plan, channel).run(limits) == OneByOne(trace, plan, channel).run(limits)

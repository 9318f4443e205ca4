"""Timings and mapping searches by a profile's name, with caches shared between calls."""

from __future__ import annotations

from functools import lru_cache

from pimflow.codegen.newton import PimProgram
from pimflow.codegen.newton.commands import CommandStream
from pimflow.codegen.work import MatrixProblem
from pimflow.ir import Refusal
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.cost import PimCost, placement_cycles
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.streams import StreamTimer
from pimflow.targets import PimSpec


@lru_cache(maxsize=64)
def timer(pim: PimSpec, timing: str | None = None) -> StreamTimer:
    return StreamTimer(timing_profile(pim, timing))


@lru_cache(maxsize=64)
def mapping_search(pim: PimSpec, timing: str | None = None) -> MappingSearch:
    return MappingSearch(timing_profile(pim, timing))


def time_stream(
    stream: CommandStream,
    pim: PimSpec,
    timing: str | None = None,
    latency: str | None = None,
    reopens_rows: bool = False,
) -> StreamTiming:
    return timer(pim, timing).time(stream, latency, reopens_rows)


def time_classes(program: PimProgram, timer: StreamTimer) -> tuple[StreamTiming, ...]:
    """The timing of every class of streams of a program, from the streams themselves."""
    mapping = program.mapping
    setting = mapping.gwrite_latency, mapping.reopens_rows, mapping.buffer_parts
    return tuple(timer.time(entry.stream, *setting) for entry in program.classes)


def total_cycles(program: PimProgram, timer: StreamTimer) -> int:
    """Cycles of the slowest channel, placement included."""
    slowest = max(timing.cycles for timing in time_classes(program, timer))
    return slowest + placement_cycles(program, timer.profile)


def choose_mapping(problem: MatrixProblem, pim: PimSpec, policy: str, timing: str | None = None) -> PimCost | Refusal:
    return mapping_search(pim, timing).choose(problem, policy)

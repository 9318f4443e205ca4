"""Speed of generating and timing streams, compared in the same run with the step-by-step oracles of the tests.

    PYTHONPATH=tests python benchmarks/bench_timing.py

Part 1: one 512->512 3x3 convolution at 28x28 under Newton++, without any cache: its stream is generated and timed, and
its busiest channel is simulated cycle by cycle by the oracle, which must agree. Part 2: all convolutions of MobileNetV2
and VGG-16 at 10 split ratios x 3 buffer counts under Newton++, in one process. All seconds are processor time; garbage
is collected as rarely as by the command line.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pimflow.codegen import ConvProblem, matrix_problem
from pimflow.codegen.newton import PimProgram, lower
from pimflow.codegen.newton.commands import CommandStream
from pimflow.frontend import load_model
from pimflow.runtime.newton.autotune.choose import MappingSearch
from pimflow.runtime.newton.cost import PimCost
from pimflow.runtime.newton.profiles import timing_profile
from pimflow.runtime.newton.timing.result import StreamTiming
from pimflow.runtime.newton.timing.streams import StreamTimer
from pimflow.targets import PimSpec, Target, load_target
from pimflow_zoo import build
from support.newton import oracle_artifact, oracle_strict
from support.newton.problems import published_mapping
from support.newton.streams import artifact_word, strict_word

BUFFERS = (1, 2, 4)
RATIOS = range(1, 11)
Result = TypeVar("Result")


def main() -> None:
    gc.set_threshold(100_000)
    target = load_target("pimflow")
    one_layer(target.pim)
    print()
    for model in ("mobilenet-v2", "vgg-16"):
        sweep(model, target)


def one_layer(pim: PimSpec) -> None:
    problem = ConvProblem(1, 512, 512, 28, 28, (3, 3), pads=(1, 1, 1, 1))
    print("512->512 3x3 at 28x28, Newton++   cycles   REF   make ms  time ms   oracle s  Mcycles/s   faster")
    for timing, play in (("artifact", play_artifact), ("strict", play_strict)):
        make_s, program = timed(make, problem, pim)
        time_s, timings = timed(time_all, program, timing)
        slowest = max(range(len(timings)), key=[timing.cycles for timing in timings].__getitem__)
        oracle_s, cycles = timed(play, program.classes[slowest].stream, pim)
        assert cycles == timings[slowest].cycles
        rate, faster = cycles / oracle_s / 1e6, oracle_s / (make_s + time_s)
        print(
            f"  {timing:<28} {cycles:>11,} {timings[slowest].ref:>5} {make_s * 1e3:>9.1f} {time_s * 1e3:>8.1f} "
            f"{oracle_s:>10.2f} {rate:>10.2f} {faster:>7.0f}x"
        )


def make(problem: ConvProblem, pim: PimSpec) -> PimProgram:
    program = lower(problem, published_mapping(problem, pim), pim)
    assert isinstance(program, PimProgram)
    return program


def time_all(program: PimProgram, timing: str) -> list[StreamTiming]:
    timer = StreamTimer(timing_profile(program.pim, timing))
    return [timer.time(entry.stream) for entry in program.classes]


def sweep(model: str, target: Target) -> None:
    graph = load_model(build(model))
    problems = [matrix_problem(graph, node) for node in graph.nodes]
    layers = [problem for problem in problems if isinstance(problem, ConvProblem)]
    machines = [MappingSearch(timing_profile(with_buffers(target.pim, buffers), "artifact")) for buffers in BUFFERS]
    cases = dict.fromkeys((part, index) for layer in layers for part in parts(layer) for index in range(len(machines)))
    seconds, cycles = timed(price_all, [(part, machines[index]) for part, index in cases])
    print(
        f"{model}: {len(layers)} convolutions, {len(cases)} distinct (layer, rows, buffers), "
        f"{cycles / 1e6:.1f} M cycles of slowest channels: {seconds:.2f} s"
    )


def price_all(cases: list[tuple[ConvProblem, MappingSearch]]) -> int:
    """Cycles of the slowest channels, summed."""
    costs = [search.choose(problem, "newton++") for problem, search in cases]
    return sum(cost.cycles for cost in costs if isinstance(cost, PimCost))


def parts(layer: ConvProblem) -> Iterator[ConvProblem]:
    """The last tenths of the output rows."""
    for tenths in RATIOS:
        rows = max(1, layer.out_h * tenths // 10)
        height = (rows - 1) * layer.strides[0] + layer.dilations[0] * (layer.kernel[0] - 1) + 1 - layer.pads[2]
        _, left, bottom, right = layer.pads
        whole = rows == layer.out_h
        yield layer if whole else dataclasses.replace(layer, in_h=max(1, height), pads=(0, left, bottom, right))


def with_buffers(pim: PimSpec, buffers: int) -> PimSpec:
    return dataclasses.replace(pim, buffers=buffers)


def play_artifact(stream: CommandStream, pim: PimSpec) -> int:
    return oracle_artifact.simulate([artifact_word(command) for command, _ in stream.expand()])[0]


def play_strict(stream: CommandStream, pim: PimSpec) -> int:
    commands = [strict_word(command) for command, _ in stream.expand()]
    return oracle_strict.simulate(commands, oracle_strict.Jedec(**dataclasses.asdict(pim.timing.strict)))[0]


def timed(work: Callable[..., Result], *arguments: Any) -> tuple[float, Result]:
    start = time.process_time()
    result = work(*arguments)
    return time.process_time() - start, result


if __name__ == "__main__":
    main()

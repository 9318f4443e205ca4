"""Runs several inferences at the same time, in the order of a steady state, inside its arena.

A kernel reads and writes when it ends, but the space of its results is occupied from when it begins. As in `arena`,
regions are poisoned when they begin and when they end. So if the values of two inferences overlap at any time, one of
them comes out wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pimflow.ir import Array, Graph, Node
from pimflow.runtime.execute.arena import ArenaInference, Kernels, UnitExecute, new_arena
from pimflow.runtime.execute.ort import NodeKernels, check_inputs
from pimflow.runtime.memory.in_flight import MemoryInFlight, node_times
from pimflow.runtime.steady_state import SteadyState

_ENDS, _GIVES, _FREES, _BEGINS = range(4)
"""Kinds of events, in their order within a tick: kernels end, outputs are returned, regions end, regions begin."""

_When = tuple[int, int, int, int]
"""Tick, kind of event, position of the node, and number of the inference."""


def run_in_flight(
    graph: Graph,
    steady: SteadyState,
    memory: MemoryInFlight,
    inputs: Sequence[Mapping[str, Array]],
    *,
    kernels: Kernels | None = None,
    unit_execute: UnitExecute | None = None,
) -> list[dict[str, Array]]:
    """The outputs of inferences that begin one interval apart.

    Args:
        graph: the graph that was scheduled.
        steady: its schedule.
        memory: the arena of the schedule.
        inputs: for each inference, arrays by the names of the graph's inputs.
        kernels, unit_execute: as for `run_in_arena`.

    Raises:
        InputDataError: an input is missing, unknown, or has another shape or element type.
    """
    for given in inputs:
        check_inputs(graph, given)
    shared = new_arena(memory.arena_bytes)
    kernels = kernels or NodeKernels(graph)
    found: list[dict[str, Array]] = [{} for _ in inputs]
    events: list[tuple[_When, Callable[[], None]]] = []
    for number, given in enumerate(inputs):
        run = ArenaInference(graph, memory.plan_of(number), kernels, unit_execute, shared)
        events.extend(_events(run, number, steady, memory, given, found[number]))
    events.sort(key=lambda event: event[0])
    for _, happen in events:
        happen()
    return found


def _events(
    run: ArenaInference,
    number: int,
    steady: SteadyState,
    memory: MemoryInFlight,
    inputs: Mapping[str, Array],
    outputs: dict[str, Array],
) -> Iterator[tuple[_When, Callable[[], None]]]:
    """The events of an inference with their times."""
    ends = node_times(steady)[1]
    shift = number * max(1, steady.interval)  # a graph that takes no time: one inference after the other
    position = {node.name: index for index, node in enumerate(run.graph.nodes, start=1)}
    at_once: dict[int, int] = {}
    for name, spot in run.plan.places.items():
        producer = run.graph.producer(name)
        place = 0 if producer is None else position[producer.name]
        at_once[spot.region] = min(at_once.get(spot.region, place), place)

    def execute(node: Node) -> Callable[[], None]:
        return lambda: run.execute_node(node)

    def begin(index: int) -> Callable[[], None]:
        return lambda: run.begin([run.plan.regions[index]])

    def end(index: int) -> Callable[[], None]:
        return lambda: run.end([run.plan.regions[index]])

    for index, life in enumerate(memory.lives):
        what, place = (_ENDS, at_once.get(index, 0)) if life.at_once else (_BEGINS, 0)
        yield (shift + life.first + life.at_once, what, place, number), begin(index)
        yield (shift + life.last, _FREES, 0, number), end(index)
    yield (shift, _ENDS, 0, number), lambda: run.write_inputs(inputs)
    for node in run.graph.nodes:
        yield (shift + ends[node.name], _ENDS, position[node.name], number), execute(node)
    yield (shift + steady.latency, _GIVES, 0, number), lambda: outputs.update(run.outputs())

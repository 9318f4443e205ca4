"""Compares several inferences in flight with the original: every output of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pimflow.errors import PimflowError
from pimflow.ir import Array, Graph
from pimflow.runtime.execute.in_flight import run_in_flight
from pimflow.runtime.execute.original import OriginalModel
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.memory.in_flight import MemoryInFlight
from pimflow.runtime.steady_state import SteadyState
from pimflow.verify.outputs import OutputCheck, compare_outputs
from pimflow.verify.values import PartsCheck

Judge = Callable[[Mapping[str, Array], Mapping[str, Any], Mapping[str, Any]], Iterable[OutputCheck]]
"""Compares one inference's outputs with the original's, given its inputs, within the effect of rounding on these."""


def check_in_flight(
    model: OriginalModel,
    graph: Graph,
    steady: SteadyState,
    memory: MemoryInFlight,
    *,
    bound: Mapping[str, Array],
    feeds: Mapping[str, Array],
    expected: Mapping[str, Any],
    seed: int,
    rtol: Mapping[str, float],
    judge: Judge | None,
    progress: Callable[[str], None],
) -> PartsCheck:
    """Runs one more inference than the steady state has in flight, each on different inputs, in its arena.

    Args:
        model: the one that was compiled; its session is closed before the inferences run.
        graph: the rewritten graph.
        steady, memory: its schedule and its arena.
        bound: inputs of the original that the graph lacks.
        feeds, expected: inputs of the first inference, and the original's outputs for them.
        seed: of the random inputs of the others; if the model refuses random inputs, they use those of the first.
        rtol: bound for every output, from a single inference.
        judge: checks an inference that exceeds these bounds, because other inputs may be rounded worse; None if the
            bounds were given.
        progress: called with a line of text from time to time.

    Raises:
        ModelError: ONNX Runtime refuses a model.
    """
    inputs, outputs = [feeds], [expected]
    for number in range(1, steady.in_flight + 1):
        progress(f"running the original model on inputs {number + 1} of {steady.in_flight + 1}")
        try:
            other = random_inputs(graph, seed + number)
            found = model.run({**bound, **other})
        except PimflowError:  # random data are not valid inputs of this model
            other, found = dict(feeds), dict(expected)
        inputs.append(other)
        outputs.append(found)
    model.close()
    progress(f"running {len(inputs)} inferences in flight")
    actual = run_in_flight(graph, steady, memory, inputs)
    wrong: dict[str, float] = {}
    largest = 0.0
    for number, (own, before, after) in enumerate(zip(inputs, outputs, actual, strict=True)):
        checks = compare_outputs(before, after, 0.0, rtol)
        largest = max(largest, *(check.max_rel_err for check in checks))
        if judge is not None and not all(check.passed for check in checks):
            progress(f"running the compiled model on inputs {number + 1} alone")
            checks = tuple(judge(own, before, after))
        for check in checks:
            if not check.passed:
                wrong[f"{check.name}, inference {number}"] = check.max_rel_err
    return PartsCheck(len(inputs), largest, wrong)

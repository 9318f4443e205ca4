"""A comparison of values after every pass, for the pass manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pimflow.ir import Array, Graph
from pimflow.runtime.execute.ort import random_inputs, run_graph
from pimflow.verify.outputs import DEFAULT_RTOL, compare_outputs


@dataclass
class EachPass:
    """Compares the outputs before and after a pass on one seeded input; runs every graph once."""

    seed: int
    rtol: float = DEFAULT_RTOL
    _last: tuple[Graph, dict[str, Array]] | None = field(default=None, repr=False)

    def __call__(self, before: Graph, after: Graph) -> str | None:
        """How the outputs differ, or None."""
        inputs = random_inputs(before, self.seed)
        expected = self._last[1] if self._last is not None and self._last[0] is before else _run(before, inputs)
        actual = _run(after, inputs)
        self._last = (after, actual)
        for check in compare_outputs(expected, actual, self.rtol):
            if not check.passed:
                return f"output {check.name!r} {check.problem}, by {check.max_rel_err:.3g} of its largest magnitude"
        return None


def _run(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a graph as written: the rounding of ONNX Runtime's fusions of quantised nodes may change with a pass."""
    return run_graph(graph, inputs, fuse_quantised=False)

"""Products of any batch dimensions, computed from command streams."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.codegen.work import MatmulProblem
from pimflow.ir import Array, Builder, MatMul, Refusal
from pimflow.runtime.newton.backend import NewtonBackend
from pimflow.targets import load_target
from support.values import assert_close

BATCHES = [
    ((3,), (3,)),
    ((), (3,)),
    ((3,), ()),
    ((3,), (1,)),
    ((1,), (3,)),
    ((2, 1), (3,)),
    ((1, 3), (2, 1)),
    ((2, 3), (1, 3)),
    ((2, 3), (2, 1)),
    ((3,), (1, 1)),
]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("left", "right"), BATCHES)
def test_batch_dimensions_are_broadcast(left: tuple[int, ...], right: tuple[int, ...], constant: bool) -> None:
    build = Builder()
    x = build.input(*left, 5, 24)
    weights = build.weights(*right, 24, 20) if constant else build.input(*right, 24, 20, name="w")
    graph = build.graph(build.op(MatMul(), x, weights, name="product"))
    rng = np.random.default_rng(0)
    arrays: list[Array | None] = [
        rng.integers(-2, 3, (*left, 5, 24)).astype(np.float32),
        rng.integers(-2, 3, (*right, 24, 20)).astype(np.float32),
    ]
    unit = NewtonBackend("pim", load_target("pimflow").pim)
    node = graph.node("product")
    work = unit.work(graph, node)
    assert isinstance(work, MatmulProblem)
    program = unit.program(work, "auto")
    assert not isinstance(program, Refusal)
    found = unit.execute(program, graph, node, arrays, "fp32")
    assert arrays[0] is not None
    assert arrays[1] is not None
    expected = np.matmul(arrays[0], arrays[1])
    assert work.macs == expected.size * 24
    assert_close(found, expected, 0.0)

"""Values that depend on a graph alone, computed by numpy over unexpanded views: against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pimflow.frontend.structure import (
    STRUCTURE,
    along_rows,
    compact,
    evaluate_structure,
    held_bytes,
    is_uniform,
    memory_of,
)
from pimflow.ir import Builder
from pimflow.runtime.execute.ort import run_graph

Anything = npt.NDArray[Any]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 4)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.1)
INDEX = np.array([3, 0, -1, 3])
FLAGS = X > 0
COLUMN = np.broadcast_to(RNG.standard_normal((6, 1)).astype(np.float32), (6, 4))
ROWS = np.broadcast_to(np.array([[1], [4], [1], [-1]]), (4, 4))


def ints(*values: int) -> Anything:
    return np.array(values, np.int64)


CASES: list[tuple[str, list[Anything], dict[str, Any]]] = [
    *((kind, [X, COLUMN], {}) for kind in ("Add", "Sub", "Mul", "Equal", "Greater", "Less", "GreaterOrEqual")),
    *((kind, [X], {}) for kind in ("Neg", "Abs", "Exp", "Floor", "Ceil", "IsNaN", "Identity")),
    *((kind, [POSITIVE], {}) for kind in ("Sqrt", "Reciprocal", "Log")),
    *((kind, [FLAGS, ~FLAGS[:, :1]], {}) for kind in ("And", "Or", "Xor")),
    ("LessOrEqual", [X, COLUMN], {}),
    ("Not", [FLAGS], {}),
    ("Where", [FLAGS, X, COLUMN], {}),
    ("Max", [X, COLUMN, -X], {}),
    ("Max", [COLUMN], {}),
    ("Min", [X, COLUMN, -X], {}),
    ("Min", [X], {}),
    ("Clip", [X, np.float32(-0.5), np.float32(0.25)], {}),
    ("Div", [X, POSITIVE], {}),
    ("Pow", [POSITIVE, np.float32(-0.5)], {}),
    ("IsInf", [np.array([1, np.inf, -np.inf], np.float32)], {}),
    ("Cast", [X], {"to": 7}),
    ("Expand", [COLUMN[:, :1], ints(6, 4)], {}),
    ("Reshape", [X, ints(0, 2, -1)], {}),
    ("Reshape", [COLUMN[:, :1], ints(6)], {}),
    ("Squeeze", [X[:, None], ints(1)], {}),
    ("Squeeze", [X[None, :, None]], {}),
    ("Unsqueeze", [X, ints(-1, 0)], {}),
    ("Transpose", [X], {"perm": (1, 0)}),
    ("Transpose", [X], {}),
    ("Concat", [X, COLUMN], {"axis": -1}),
    ("Tile", [X, ints(2, 1)], {}),
    ("Tile", [X[:1], ints(3, 1)], {}),
    ("Tile", [COLUMN, ints(1, 3)], {}),
    ("Range", [np.int64(2), np.int64(11), np.int64(3)], {}),
    ("NonZero", [FLAGS], {}),
    ("NonZero", [FLAGS[:, 0]], {}),
    ("Slice", [X, ints(1, -3), ints(5, 9), ints(0, 1), ints(2, 1)], {}),
    ("Slice", [X, ints(-1), ints(-(2**63)), ints(0), ints(-1)], {}),
    ("Slice", [X, ints(9, 2), ints(1, -4), ints(0, 1), ints(-2, -1)], {}),
    ("Gather", [X, INDEX], {"axis": 1}),
    ("Gather", [COLUMN, INDEX], {"axis": 0}),
    ("Gather", [COLUMN, INDEX[None]], {"axis": 1}),
    ("Gather", [X, np.int64(-2)], {"axis": 0}),
    ("GatherElements", [X, INDEX[None].repeat(2, 0)], {"axis": -1}),
    ("GatherND", [X, INDEX[:, None]], {}),
    ("ScatterND", [X, ints(4, 0)[:, None], X[:2]], {}),
    *(("ScatterElements", [X, ROWS, X[:4]], {"axis": 0, "reduction": kind}) for kind in ("add", "max", "min", "mul")),
    ("ScatterElements", [X, ints(0, 5, 1, 2)[None].T.repeat(4, 1), X[:4]], {"axis": 0}),
    ("ScatterElements", [X, INDEX[None], X[:1]], {"axis": 1, "reduction": "add"}),
    ("ScatterElements", [X, ROWS, np.ones((4, 4), np.float32)], {"reduction": "add"}),
    ("ScatterElements", [X, ROWS, np.ones((4, 4), np.float32)], {"reduction": "max"}),
    ("OneHot", [np.array([0, 2, -1]), np.int64(4), np.array([0, 1], np.float32)], {"axis": -1}),
]


@pytest.mark.parametrize(("kind", "operands", "attributes"), CASES, ids=[case[0] for case in CASES])
def test_a_rule_matches_onnx_runtime(kind: str, operands: list[Anything], attributes: dict[str, Any]) -> None:
    operands = [np.asarray(operand) for operand in operands]
    result: Anything | None = evaluate_structure(kind, operands, attributes)
    assert result is not None
    assert not result.flags.writeable
    build = Builder("one", opset=18)
    names = [build.constant(np.array(operand), f"c{index}") for index, operand in enumerate(operands)]
    model = build.graph(build.onnx(kind, *names, shape=result.shape, dtype=result.dtype.name, **attributes))
    expected: Anything = run_graph(model, {})[model.outputs[0]]
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_every_rule_is_tried() -> None:
    assert {case[0] for case in CASES} == set(STRUCTURE)


@pytest.mark.parametrize(
    ("kind", "operands", "attributes"),
    [
        ("Div", [INDEX, INDEX], {}),
        ("Range", [np.float32(0), np.float32(1), np.float32(0.25)], {}),
        ("GatherND", [X, INDEX[:, None]], {"batch_dims": 1}),
        ("ScatterND", [X, INDEX[:, None], X[:4]], {"reduction": "add"}),
        ("OneHot", [INDEX, np.int64(4), np.array([0, 1], np.float32)], {"axis": 0}),
        ("Softmax", [X], {}),
        ("Gather", [X, ints(1, 77)], {}),
        ("Expand", [X, ints(-1, 4)], {}),
        ("Range", [np.int64(0), np.int64(4), np.int64(0)], {}),
    ],
)
def test_other_forms_are_left_to_onnx_runtime(kind: str, operands: list[Any], attributes: dict[str, Any]) -> None:
    assert evaluate_structure(kind, [np.asarray(operand) for operand in operands], attributes) is None


def test_an_index_expanded_to_features_takes_no_more_memory() -> None:
    edges, features = 1_000, 1 << 40
    column = evaluate_structure("Reshape", [np.arange(edges), ints(-1, 1)], {})
    index = evaluate_structure("Expand", [column, ints(edges, features)], {})
    assert index is not None
    assert index.shape == (edges, features)
    assert held_bytes(index) == 8 * edges
    wrapped = evaluate_structure("Where", [evaluate_structure("Less", [index, ints(0)], {}), index, index], {})
    base, updates = (np.broadcast_to(np.float32(value), (edges, features)) for value in (0, 1))
    counts = evaluate_structure("ScatterElements", [base, wrapped, updates], {"reduction": "add"})
    assert counts is not None
    assert held_bytes(counts) == 4 * edges
    assert is_uniform(counts)
    spread = evaluate_structure("Expand", [np.arange(edges)[:, None], ints(edges, features)], {})
    picked = evaluate_structure("Gather", [spread, np.arange(edges)[::-1]], {"axis": 0})
    repeated = evaluate_structure("Tile", [spread, ints(1, 2)], {})
    assert picked is not None
    assert repeated is not None
    assert held_bytes(picked) == held_bytes(repeated) == 8 * edges
    assert repeated.shape == (edges, 2 * features)


def test_repetition_is_recognised_by_strides_and_by_elements() -> None:
    vector = np.arange(3)
    spread = np.broadcast_to(vector[:, None], (3, 5))
    assert compact(spread).shape == (3, 1)
    for rows in (along_rows(spread), along_rows(spread.copy())):
        assert rows is not None
        assert rows.tolist() == [0, 1, 2]
    assert along_rows(np.eye(3)) is None
    assert along_rows(np.array(1)) is None
    empty = along_rows(np.empty((4, 0)))
    assert empty is not None
    assert empty.shape == (4,)
    assert not is_uniform(np.empty(0))
    assert is_uniform(np.ones((2, 2)))
    assert not is_uniform(vector)


def test_views_of_the_same_elements_share_memory() -> None:
    matrix = np.arange(12).reshape(3, 4)
    assert memory_of(matrix[1]) == memory_of(matrix[1:2].reshape(4))
    assert len({memory_of(view) for view in (matrix, matrix[:2], matrix.T, matrix.view(np.uint64))}) == 4

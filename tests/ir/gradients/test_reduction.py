"""Gradients of reductions, softmax and einsums."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import Builder
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients
from support.values import run_in_ort

KINDS = ["Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp"]


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: int) -> tuple[int, ...]:
    kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return kept if keepdims else tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(kind: str, keepdims: int) -> None:
    build = Builder(opset=18)
    x, axes = build.input(2, 3, 4, dtype="float64"), build.constant(np.array([-1, 0], np.int64))
    shape = reduced((2, 3, 4), (0, 2), keepdims)
    check_gradients(build.graph(build.onnx(f"Reduce{kind}", x, axes, shape=shape, keepdims=keepdims)))


def test_the_logarithm_of_a_sum() -> None:
    build = Builder(opset=18)
    x = build.input(2, 3, dtype="float64")
    graph = build.graph(build.onnx("ReduceLogSum", x, shape=(1, 1)))
    check_gradients(graph, {"x": np.random.default_rng(0).uniform(0.5, 1, (2, 3))})


@pytest.mark.parametrize("opset", [11, 13])
def test_axes_as_attributes(opset: int) -> None:
    build = Builder(opset=opset)
    x = build.input(2, 3, 4, dtype="float64")
    check_gradients(build.graph(build.onnx("ReduceMean", x, shape=(2, 1, 4), axes=(1,), keepdims=1)))


def test_equal_maxima() -> None:
    """Each of two equal maxima gets half, as in PyTorch's amax."""
    build = Builder(opset=18)
    graph = build.graph(build.tanh(build.onnx("ReduceMax", build.input(3, dtype="float64"), shape=(1,))))
    with pytest.raises(AssertionError, match="gradient"):
        check_gradients(graph, {"x": np.array([0.5, 0.5, 0.1])})


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axis"), [(17, -1), (17, 1), (11, 1), (11, 2)])
def test_softmax(kind: str, opset: int, axis: int) -> None:
    build = Builder(opset=opset)
    check_gradients(build.graph(build.onnx(kind, build.input(2, 3, 4, dtype="float64"), axis=axis)))


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumulative_sums(exclusive: int, reverse: int) -> None:
    build = Builder()
    x, axis = build.input(2, 5, dtype="float64"), build.constant(np.array(1, np.int64))
    check_gradients(build.graph(build.onnx("CumSum", x, axis, exclusive=exclusive, reverse=reverse)))


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumulative_products(exclusive: int, reverse: int) -> None:
    """Lines with no zero, one at either end or in the middle, and several."""
    build = Builder(opset=26)
    x, axis = build.input(5, 6, dtype="float64"), build.constant(np.array(1, np.int64))
    graph = build.graph(build.onnx("CumProd", x, axis, exclusive=exclusive, reverse=reverse))
    values = np.random.default_rng(0).uniform(0.5, 1.5, (5, 6))
    values[[1, 2, 3, 4, 4, 4], [0, 5, 2, 1, 2, 4]] = 0
    check_gradients(graph, {"x": values})


@pytest.mark.parametrize(
    ("equation", "a", "b", "shape"),
    [
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5), (2, 3, 5)),
        ("bqhd,bkhd->bhqk", (1, 2, 3, 4), (1, 5, 3, 4), (1, 3, 2, 5)),
        ("ij,j->i", (2, 3), (3,), (2,)),
    ],
)
def test_einsums(equation: str, a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]) -> None:
    build = Builder()
    left, right = build.input(*a, name="a", dtype="float64"), build.input(*b, name="b", dtype="float64")
    check_gradients(build.graph(build.onnx("Einsum", left, right, shape=shape, equation=equation)))


@pytest.mark.parametrize(
    ("equation", "shapes", "shape"),
    [
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)], (2, 2)),
        ("b,bi,bj,ij->b", [(2,), (2, 3), (2, 4), (3, 4)], (2,)),
        ("ij,jk->k", [(2, 3), (3, 4)], (4,)),
        ("ij->i", [(2, 3)], (2,)),
        ("ij->", [(2, 3)], ()),
        ("ij,jk", [(2, 3), (3, 4)], (2, 4)),
        ("...ij,...jk->...ik", [(2, 5, 2, 3), (2, 5, 3, 4)], (2, 5, 2, 4)),
        ("a...,ab->...b", [(2, 3, 4), (2, 2)], (3, 4, 2)),
        ("ii,ij->ij", [(3, 3), (3, 2)], (3, 2)),
        ("bii->b", [(2, 3, 3)], (2,)),
        ("ijij,jk->ik", [(2, 3, 2, 3), (3, 4)], (2, 4)),
        ("iii->i", [(3, 3, 3)], (3,)),
        ("ii", [(3, 3)], ()),
    ],
)
def test_einsums_of_any_number_of_operands(
    equation: str, shapes: list[tuple[int, ...]], shape: tuple[int, ...]
) -> None:
    build = Builder()
    names = [build.input(*one, name=f"x{place}", dtype="float64") for place, one in enumerate(shapes)]
    check_gradients(build.graph(build.onnx("Einsum", *names, shape=shape, equation=equation)))


def test_the_identity_matrix_of_a_diagonal_is_no_constant() -> None:
    """It would be as large as the operand."""
    build = Builder()
    graph = build.graph(build.onnx("Einsum", build.input(500, 500), shape=(), equation="ii->"))
    step = training_step(graph, Differentiate(inputs=True))
    assert max(array.size for array in step.graph.constants.values()) <= 500


@pytest.mark.parametrize("equation", ["ij,jk->kk", "...ij,j...->i..."])
def test_equations_that_have_no_gradient(equation: str) -> None:
    build = Builder()
    names = [build.input(3, 3, name=name, dtype="float64") for name in "ab"[: equation.count(",") + 1]]
    shape = (3,) * len(equation.partition("->")[2].replace("...", ""))
    with pytest.raises(ModelError, match="Einsum"):
        check_gradients(build.graph(build.onnx("Einsum", *names, shape=shape, equation=equation)))


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_over_an_axis(zeros: int) -> None:
    """A single zero factor has the product of the others as its gradient; with two zeros no factor has one."""
    build = Builder()
    x = build.input(2, 3)
    graph = build.graph(build.onnx("ReduceProd", x, shape=(2, 1), axes=(1,)))
    step = training_step(graph, Differentiate(inputs=True)).graph
    given = np.array([[2, 3, 5], [7, 11, 13]], np.float32)
    given[0, :zeros] = 0
    made = run_in_ort(step, {"x": given, f"{graph.outputs[0]}.gradient": np.ones((2, 1), np.float32)})["x.gradient"]
    assert made.tolist() == [[[15, 10, 6], [15, 0, 0], [0, 0, 0]][zeros], [143, 91, 77]]


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (2, 3, 2, 2), (3, 1, 1), (1, 8, 8)])
def test_determinants(shape: tuple[int, ...]) -> None:
    build = Builder()
    check_gradients(build.graph(build.onnx("Det", build.input(*shape, dtype="float64"), shape=shape[:-2])))


def test_determinants_of_singular_matrices() -> None:
    """A matrix of rank 2 has no inverse, but the gradient exists: here, the product of the other diagonal elements."""
    build = Builder()
    graph = build.graph(build.onnx("Det", build.input(3, 3), shape=()))
    step = training_step(graph, Differentiate(inputs=True)).graph
    given = {"x": np.diag([2, 3, 0]).astype(np.float32), f"{graph.outputs[0]}.gradient": np.float32(1)}
    assert run_in_ort(step, given)["x.gradient"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 6]]


def test_determinants_of_large_matrices() -> None:
    build = Builder()
    with pytest.raises(ModelError, match="Det of matrices of 17 rows: 16 at most have a gradient rule"):
        check_gradients(build.graph(build.onnx("Det", build.input(17, 17, dtype="float64"), shape=())))

"""Einsum: pairwise products from the left, by the labels that are kept and summed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx
import pytest

import pimflow
from pimflow.runtime.gpu.work import MatrixWork, StreamWork
from support.opaque_models import kernels_of, opaque_model, work_of

Shapes = Sequence[tuple[int, ...]]


def model(equation: str, shapes: Shapes) -> onnx.ModelProto:
    inputs = {f"x{place}": shape for place, shape in enumerate(shapes)}
    return opaque_model("Einsum", inputs, equation=equation)


PRODUCTS: list[tuple[str, Shapes, tuple[int, int, int, int]]] = [
    ("ij,jk->ik", [(4, 5), (5, 6)], (4, 6, 5, 1)),
    ("bhqd,bhkd->bhqk", [(2, 3, 5, 7), (2, 3, 6, 7)], (5, 6, 7, 6)),
    ("bqhd,bkhd->bhqk", [(2, 5, 3, 7), (2, 6, 3, 7)], (5, 6, 7, 6)),
    ("...ij,jk->...ik", [(2, 3, 4, 5), (5, 6)], (24, 6, 5, 1)),
    ("...ij,...jk", [(2, 3, 4, 5), (2, 3, 5, 6)], (4, 6, 5, 6)),
    ("i,i->", [(9,), (9,)], (1, 1, 9, 1)),
    ("ijk,jkl->il", [(2, 3, 4), (3, 4, 5)], (2, 5, 12, 1)),
    ("abc,ad->bd", [(2, 3, 4), (2, 5)], (3, 5, 8, 1)),
]


@pytest.mark.parametrize(("equation", "shapes", "expected"), PRODUCTS)
def test_two_operands_are_one_product(equation: str, shapes: Shapes, expected: tuple[int, int, int, int]) -> None:
    (work,) = kernels_of(model(equation, shapes))
    assert isinstance(work, MatrixWork)
    assert (work.m, work.n, work.k, work.groups) == expected
    result = np.einsum(equation, *(np.zeros(shape) for shape in shapes))
    assert work.bytes == 2 * (sum(map(prod, shapes)) + result.size)


@pytest.mark.parametrize("equation", ["ij,ij->ij", "ii->i", "ij->ji", "ij->"])
def test_einsums_without_products_are_streams(equation: str) -> None:
    shapes = [(4, 4)] * (1 + equation.count(","))
    (work,) = kernels_of(model(equation, shapes))
    assert isinstance(work, StreamWork)


def test_three_operands_are_contracted_from_the_left() -> None:
    first, second = kernels_of(model("ij,jk,kl->il", [(4, 5), (5, 6), (6, 7)]))
    assert first == MatrixWork(4, 6, 5, 1, 2 * (20 + 30 + 24))
    assert second == MatrixWork(4, 7, 6, 1, 2 * (24 + 42 + 28))


def test_multiply_accumulates_of_two_operands_are_the_product_of_all_sizes() -> None:
    assert work_of(model("abc,acd->abd", [(2, 3, 4), (2, 4, 5)])).macs == 2 * 3 * 4 * 5


@pytest.mark.parametrize(("equation", "shapes", "expected"), PRODUCTS[:3])
def test_values_match_the_model(equation: str, shapes: Shapes, expected: tuple[int, int, int, int]) -> None:
    assert pimflow.compile(model(equation, shapes), use_cache=False).verify().passed

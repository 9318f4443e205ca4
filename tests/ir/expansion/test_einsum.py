"""Einsum as a product of matrices."""

from __future__ import annotations

import pytest

from support.expansions import check_expansion, reason
from support.opaque_models import normal, opaque_model


@pytest.mark.parametrize(
    ("equation", "a", "b", "kinds"),
    [
        ("bij,bjk->bik", (4, 8, 64), (4, 64, 32), ["MatMul"]),
        ("...ij,...jk->...ik", (3, 8, 64), (3, 64, 16), ["MatMul"]),
        ("bqhd,bkhd->bhqk", (2, 5, 4, 16), (2, 7, 4, 16), ["Transpose", "Transpose", "MatMul"]),
    ],
)
def test_two_activations(equation: str, a: tuple[int, ...], b: tuple[int, ...], kinds: list[str]) -> None:
    check_expansion(opaque_model("Einsum", {"a": a, "b": b}, equation=equation), kinds)


def test_weights_are_transposed_in_advance() -> None:
    model = opaque_model("Einsum", {"a": (2, 5, 64)}, {"w": normal(64, 4, 16)}, equation="bsd,dhk->bhsk")
    check_expansion(model, ["Reshape", "MatMul", "Reshape", "Transpose"])
    model = opaque_model("Einsum", {"a": (64, 8)}, {"w": normal(32, 64)}, equation="ki,jk")
    check_expansion(model, ["Transpose", "MatMul"])


@pytest.mark.parametrize(
    ("equation", "text"),
    [
        ("bi,bi->bi", "sums over no axis"),
        ("bi,jk->bk", "sums over no axis"),
        ("bic,bjk->bik", "sums over no axis"),
        ("bij,jk->bk", "one operand alone"),
        ("bii,ik->bk", "diagonal"),
    ],
)
def test_reasons_against_expansion(equation: str, text: str) -> None:
    shapes = [
        tuple({"b": 3, "i": 4, "j": 4, "k": 5, "c": 1}[label] for label in term)
        for term in equation.partition("->")[0].split(",")
    ]
    assert text in reason(opaque_model("Einsum", dict(zip("ab", shapes, strict=True)), equation=equation))

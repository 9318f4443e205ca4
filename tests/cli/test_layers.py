"""Values of --conv and --matmul."""

from __future__ import annotations

import pytest

from pimflow.cli.layers import parse_conv, parse_matmul
from pimflow.codegen import ConvProblem, MatmulProblem
from pimflow.errors import OptionError


def test_convolutions_are_read() -> None:
    assert parse_conv("ic=16,oc=96,h=112,w=112,k=1,s=1,p=0") == ConvProblem(1, 16, 96, 112, 112, (1, 1))
    text = "ic=6, oc=4, h=9, w=8, kh=2, kw=3, s=2/1, p=1/0/2/3, d=1/2, g=2, n=5"
    assert parse_conv(text) == ConvProblem(5, 6, 4, 9, 8, (2, 3), (2, 1), (1, 0, 2, 3), (1, 2), 2)
    assert parse_matmul("m=1,k=1280,n=1000") == MatmulProblem(1, 1280, 1000)
    assert parse_matmul("m=1,k=8,n=10,b=3") == MatmulProblem(1, 8, 10, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not key=value"),
        ("ic=16", "lacks oc, h, w"),
        ("ic=16,oc=3,h=8,w=8", "kernel once"),
        ("ic=16,oc=3,h=8,w=8,k=1,kh=2,kw=2", "kernel once"),
        ("ic=16,oc=3,h=8,w=8,kh=2", "kernel once"),
        ("ic=16,oc=3,h=8,w=8,k=1,stride=2", "unknown --conv key 'stride'"),
        ("ic=16,oc=3,h=8,w=8,k=1,k=2", "twice"),
        ("ic=x,oc=3,h=8,w=8,k=1", "ic=x is not a number"),
        ("ic=-1,oc=3,h=8,w=8,k=1", "not a number"),
        ("ic=0,oc=3,h=8,w=8,k=1", "out of range"),
        ("ic=1,oc=3,h=8,w=8,k=1,p=1/2", "4 numbers"),
        ("ic=1,oc=3,h=8,w=8,k=9", "larger than the padded input"),
        ("ic=3,oc=4,h=8,w=8,k=1,g=2", "multiples of g"),
        ("ic=99999999999999,oc=4,h=8,w=8,k=1", "out of range"),
    ],
)
def test_mistakes_are_reported(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_conv(text)


@pytest.mark.parametrize("text", ["m=" + "9" * 5000 + ",k=1,n=1", "m=1,k=1,n=" + "0" * 5000 + "1"])
def test_a_number_of_thousands_of_digits_gives_a_short_error(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_matmul(text)
    assert len(str(caught.value)) < 200

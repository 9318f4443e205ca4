"""Values of --shape."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.cli.shapes import parse_shapes
from pimflow.errors import ShapeError


def test_parse() -> None:
    assert parse_shapes(["input:1x3x224x224", "N=1", "a:b:2X5", "x=y=3", "gpu_0/data_0:7"]) == {
        "input": (1, 3, 224, 224),
        "N": 1,
        "a:b": (2, 5),
        "x=y": 3,
        "gpu_0/data_0": (7,),
    }


@pytest.mark.parametrize(
    "text",
    ["", "input", "input:", ":1x2", "=1", "N=", "N=-1", "N=1.5", "x:1x", "x:1xx2", "x:-1x3", "x:1,3", "N=²"],
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ShapeError) as caught:
        parse_shapes([text])
    assert repr(text) in str(caught.value)


def test_a_name_bound_twice() -> None:
    assert parse_shapes(["N=1", "N=1"]) == {"N": 1}
    with pytest.raises(ShapeError, match="twice"):
        parse_shapes(["N=1", "N=2"])


@settings(max_examples=60)
@given(st.dictionaries(st.text("abc/_.:=0", min_size=1), st.lists(st.integers(1, 10**6), min_size=1, max_size=5)))
def test_parse_reads_spelled_shapes(shapes: dict[str, list[int]]) -> None:
    texts = [f"{name}:{'x'.join(map(str, dims))}" for name, dims in shapes.items()]
    assert parse_shapes(texts) == {name: tuple(dims) for name, dims in shapes.items()}


def test_a_number_of_thousands_of_digits_gives_a_short_error() -> None:
    for text in (f"N={'9' * 5000}", f"x:1x{'9' * 5000}"):
        with pytest.raises(ShapeError) as caught:
            parse_shapes([text])
        assert len(str(caught.value)) < 300

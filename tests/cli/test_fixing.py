"""Values of --fix: one number, true or false, or a list; an unreadable value gives a one-line error."""

from __future__ import annotations

import pytest

from pimflow.cli.fixing import parse_fixed
from pimflow.errors import OptionError


def test_reads_numbers_words_and_lists() -> None:
    texts = ["sr=16000", "flag=True", "scales=1,0.5", "a=b=-2", " x=1e3 "]
    found = parse_fixed(texts)
    assert found == {"sr": 16000, "flag": True, "scales": (1, 0.5), "a=b": -2, "x": 1000.0}
    assert isinstance(found["sr"], int)
    assert found["flag"] is True


@pytest.mark.parametrize("text", ["sr", "=1", "sr=", "sr=16k", "sr=1,,2", "sr=yes"])
def test_refuses_unreadable_values(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_fixed([text])
    assert "--fix" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_input_has_one_value() -> None:
    assert parse_fixed(["n=1", "n=1"]) == {"n": 1}
    with pytest.raises(OptionError, match="two values"):
        parse_fixed(["n=1", "n=true"])

"""Arguments of a wrong type: what every function of the API says of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pimflow


def assert_type_error(call: Callable[[], object], message: str) -> None:
    """The call raises a `TypeError` that is also one of ours, and says what is wrong in one line."""
    with pytest.raises(TypeError) as caught:
        call()
    assert isinstance(caught.value, pimflow.PimflowError)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)

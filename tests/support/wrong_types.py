"""Arguments of a wrong type: the errors of every function of the API."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pimflow


def assert_type_error(call: Callable[[], object], message: str) -> None:
    """Assert that the call raises a `TypeError` that is also a `PimflowError`, and says what is wrong in one line."""
    with pytest.raises(TypeError) as caught:
        call()
    assert isinstance(caught.value, pimflow.PimflowError)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)

"""Reads from stdin in place of a file."""

from __future__ import annotations

import sys

from pimflow.errors import ModelError

STDIN = "-"
MAX_BYTES = 2**31 - 1
"""The largest message that protobuf can read."""


def stdin_bytes(most: int = MAX_BYTES) -> bytes:
    """All of stdin.

    Raises:
        ModelError: it is closed, unreadable or empty, or holds too much.
    """
    if sys.stdin is None:
        raise ModelError("stdin is closed", "give a file")
    try:
        data = sys.stdin.buffer.read(most + 1)
    except OSError as error:
        raise ModelError(f"stdin cannot be read: {error.strerror}", "give a file") from None
    if not data:
        raise ModelError("stdin is empty", "pipe a model into it, or give a file")
    if len(data) > most:
        raise ModelError(f"stdin holds more than {most:,} bytes", "give a file, with its weights as external data")
    return data


def given_model(text: str) -> str | bytes:
    """The model that an argument names: the bytes on stdin for "-", otherwise the text itself."""
    return stdin_bytes() if text == STDIN else text

"""Lazy import of ONNX Runtime: a model that has already been compiled does not need it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

QUIET = 4
"""The log level at which ONNX Runtime does not also write the errors that it raises to stderr."""

_MANY_NODES = 10_000
"""The number of nodes from which a session's memory, 30 MB, is worth returning to the system."""

_LARGE_BYTES = 1 << 26
"""The size of constants in bytes from which the memory that a session took for them is worth returning."""

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")


@cache
def onnx_runtime() -> ModuleType:
    """The module, with logging off: its errors are raised as well, and would take several lines on stderr."""
    runtime = import_module("onnxruntime")
    runtime.set_default_logger_severity(QUIET)
    return runtime


@cache
def runtime_errors() -> tuple[type[Exception], ...]:
    """The exceptions that ONNX Runtime raises for a model or an input that it refuses."""
    found = vars(import_module("onnxruntime.capi.onnxruntime_pybind11_state")).values()
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception)]
    return (*kinds, RuntimeError, ValueError, IndexError, OverflowError)


@cache
def runtime_version() -> str:
    """The version of ONNX Runtime, from the metadata of the installed package."""
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            return version(package)
    found: str = onnx_runtime().__version__
    return found


def return_memory(nodes: int, constant_bytes: int) -> None:
    """Makes the C library return the memory of a session to the system, if that was a lot.

    The library keeps freed memory, which Python's own allocator cannot use: up to 0.3 GiB after VGG-16. Other libraries
    do the same, but only glibc can be told to return it.

    Args:
        nodes: the number of nodes of the session's model.
        constant_bytes: the size of its constants in bytes.
    """
    if nodes < _MANY_NODES and constant_bytes < _LARGE_BYTES:
        return
    with suppress(OSError, AttributeError):  # another library
        ctypes.CDLL("libc.so.6").malloc_trim(0)

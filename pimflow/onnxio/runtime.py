"""ONNX Runtime itself, imported where it is first run: a model that was compiled before has nothing to run."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

QUIET = 4
"""The level at which ONNX Runtime writes nothing to stderr of what it raises anyway."""

_MANY_NODES = 10_000
"""A session over as many takes 30 MB, and is looked for when it is gone."""

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")


@cache
def onnx_runtime() -> ModuleType:
    """The module, quiet: what it says of a model is raised too, and more than one line of it reaches stderr."""
    runtime = import_module("onnxruntime")
    runtime.set_default_logger_severity(QUIET)
    return runtime


@cache
def runtime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises for a model or an input that it refuses."""
    found = vars(import_module("onnxruntime.capi.onnxruntime_pybind11_state")).values()
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception)]
    return (*kinds, RuntimeError, ValueError, IndexError, OverflowError)


@cache
def runtime_version() -> str:
    """Its version, as the package installed says it."""
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            return version(package)
    found: str = onnx_runtime().__version__
    return found


def return_memory(nodes: int) -> None:
    """Has the C library give back to the system what a session over so many nodes took, if that was much.

    It keeps what is freed, and Python's own allocator cannot use that: of 100,000 nodes 0.3 GiB. Not glibc alone has
    such memory, but it alone can be asked.
    """
    if nodes < _MANY_NODES:
        return
    with suppress(OSError, AttributeError):  # another library
        ctypes.CDLL("libc.so.6").malloc_trim(0)

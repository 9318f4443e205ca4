"""ONNX Runtime itself, imported where it is first run: a model that was compiled before has nothing to run."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

QUIET = 4
"""The level at which ONNX Runtime writes nothing to stderr of what it raises anyway."""

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

"""The result of a compilation: `CompiledModel`, its `Machine`, and reading and writing both as a folder."""

from pimflow.compiled.machine import Machine
from pimflow.compiled.model import CompiledModel
from pimflow.compiled.reading import load
from pimflow.compiled.writing import FORMAT

__all__ = ["FORMAT", "CompiledModel", "Machine", "load"]

"""What a compilation made: `CompiledModel`, the `Machine` it is for, and both as a folder."""

from pimflow.compiled.machine import Machine
from pimflow.compiled.model import CompiledModel
from pimflow.compiled.reading import load
from pimflow.compiled.writing import FORMAT

__all__ = ["FORMAT", "CompiledModel", "Machine", "load"]

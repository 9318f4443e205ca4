"""The GPU: what a kernel does, what it costs, and how the model is fitted to measured times."""

from pimflow.runtime.gpu import kept

__all__ = ["kept"]

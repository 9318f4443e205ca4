"""The GPU: what a kernel does, what it costs, and how the model is fitted to measured times."""

from pimflow.runtime.gpu import kept, sparse_work

__all__ = ["kept", "sparse_work"]

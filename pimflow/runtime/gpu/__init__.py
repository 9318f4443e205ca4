"""The GPU: the work of a kernel, its cost, and fitting the cost model to measured times."""

from pimflow.runtime.gpu import kept, sparse_work

__all__ = ["kept", "sparse_work"]

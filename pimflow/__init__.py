"""pimflow: a deep-learning compiler, profiler and simulator for processing-in-memory DRAM."""

from pimflow.version import __version__

__all__ = ["__version__"]

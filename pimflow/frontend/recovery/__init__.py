"""Recovers the aggregations of graph networks from their exported form, by data flow rather than by names."""

from pimflow.frontend.recovery.recover import Recovered, recover

__all__ = ["Recovered", "recover"]

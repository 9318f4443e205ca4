"""Recovers the aggregations of graph networks from what exporters make of them, by the data that flow, not by names."""

from pimflow.frontend.recovery.recover import Recovered, recover

__all__ = ["Recovered", "recover"]

"""Aggregation over a graph on UPMEM cores: strategies of parallelism, and the division of rows and edges."""

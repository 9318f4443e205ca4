"""UPMEM modules: the cost of an aggregation on them, its values, and the choice of a strategy."""

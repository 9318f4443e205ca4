"""UPMEM modules: what an aggregation takes on them, what it computes, and which strategy is best."""

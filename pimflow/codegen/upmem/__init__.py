"""What UPMEM cores execute when they aggregate over a graph: strategies of parallelism, and who gets which edges."""

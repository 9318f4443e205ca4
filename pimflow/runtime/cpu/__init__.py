"""A CPU as a host or as a unit: the cost of kernels on its cores and from its memory."""

"""A CPU: what kernels cost on its cores and from its memory, as a host and as a unit."""

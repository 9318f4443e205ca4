"""Whether the compiled model computes what the original computes, and each pass what the one before."""

"""Verification: whether the compiled model computes the same as the original, and each pass the same as before it."""

"""Activations that do not fit: which of those saved for the backward pass to keep, offload or recompute."""

"""Activations that do not fit: what is saved for the backward pass, and what is kept, offloaded or recomputed of it."""

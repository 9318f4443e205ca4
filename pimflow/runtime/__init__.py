"""Prices, plans and executes compiled graphs: timing, energy, memory, offload decisions, values."""

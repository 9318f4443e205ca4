"""What a compiled graph costs and computes: timing, energy, memory, execution."""

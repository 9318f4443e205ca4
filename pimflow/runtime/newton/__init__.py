"""Newton-style PIM: exact timing, execution by value, energy, cost, and the choice of a mapping."""

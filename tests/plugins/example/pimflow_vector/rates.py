"""The number of elements that a unit processes at once."""

LANES = 4

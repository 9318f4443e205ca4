"""What the units do at once."""

LANES = 4

"""The choice of a mapping: its space, closed-form estimates, and exact timing of the best."""

"""Exact timing of PIM command streams: rules are automata; the cost grows with loops and refreshes, not commands."""

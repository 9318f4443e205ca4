"""Exact timing of PIM command streams: rules as automata, loop nests in the number of loops and refreshes."""

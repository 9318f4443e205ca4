"""Output folders: their contents, the source of their model, and how they are written and read."""

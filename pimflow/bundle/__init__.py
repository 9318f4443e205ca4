"""Output folders: what is in one, where its model came from, and how it is written and read."""

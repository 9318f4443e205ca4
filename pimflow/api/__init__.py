"""The functions behind Python's `pimflow` and the command line, one per verb and of the same name."""

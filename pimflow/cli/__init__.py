"""The command line: parses, calls the library, prints. It decides nothing."""

from pimflow.cli.main import main

__all__ = ["main"]

"""The version, alone in a file that imports nothing, so that the build can read it."""

__version__ = "0.1.0"

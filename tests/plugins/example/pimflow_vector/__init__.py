"""What this package adds to pimflow; its entry points are in pyproject.toml."""

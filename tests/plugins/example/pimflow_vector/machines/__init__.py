"""Targets: NAME.toml is the target of the entry point NAME."""

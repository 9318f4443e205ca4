"""A campaign of generated and damaged input against the whole compiler: `python -m fuzz` from tests/."""

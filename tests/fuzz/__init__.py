"""A campaign of made-up and damaged input against the whole compiler: `python -m fuzz` from tests/."""

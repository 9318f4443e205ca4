"""Settings of the whole suite."""

import os

from hypothesis import settings

# On CI the same cases run every time; elsewhere new ones are tried at every run.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

"""Settings of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# On CI the same cases run every time; elsewhere new ones are tried at every run.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's price cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield

"""Settings of the whole test suite."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from support.golden import UPDATE, Golden

# No test depends on how busy the machine is. CI runs the same cases every time; elsewhere every run draws new ones.
settings.register_profile(
    "suite", derandomize=bool(os.environ.get("CI")), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


# Tests leave many objects alive; with Python's default, going through them took a sixth of the suite's time.
gc.set_threshold(50_000)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's price cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as in a pipe, whatever the size of the terminal that runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(UPDATE, action="store_true", help="write golden files anew instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The golden files of the folder that contains the test."""
    return Golden(request.path.parent / "golden", update=bool(request.config.getoption(UPDATE)))

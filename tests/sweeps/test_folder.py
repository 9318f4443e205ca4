"""The folder of a sweep: errors around it are distinguished from errors in the sweep."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from pimflow.errors import OutputError
from pimflow.sweeps.folder import STORE, sweep_folder, write_generated


def test_an_error_of_the_sweep_is_not_reported_as_the_folders(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no route"), sweep_folder(tmp_path / "runs"):
        raise OSError("no route to the cluster")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"), sweep_folder(tmp_path / "file" / "runs"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no umask")
@pytest.mark.parametrize("mask", [0o077, 0o002])
def test_files_are_made_under_the_users_mask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with sweep_folder(tmp_path) as store:
            write_generated(tmp_path, store, {"points.csv": "text"})
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("points.csv", STORE)}
    assert modes == {0o666 & ~mask}

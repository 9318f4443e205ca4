"""Other packages, as an installer leaves them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLE = Path(__file__).parent.parent / "plugins" / "example"
Entries = Mapping[str, Mapping[str, str]]


def install(folder: Path, name: str, entries: Entries, *, version: str = "1.0", metadata: bool = True) -> None:
    """Write what an installer leaves of a package, apart from its modules."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in items.items())
        for group, items in entries.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    if metadata:
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def install_example(folder: Path) -> Path:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "pimflow_vector", folder / "pimflow_vector", ignore=shutil.ignore_patterns("*.pyc"))
    install(folder, project["name"], project["entry-points"], version=project["version"])
    return folder


def python(folder: Path, code: str, **environment: str) -> str:
    """The output of a program that sees a folder of installed packages."""
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    given = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True).stdout

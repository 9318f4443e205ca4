"""What `pip install .` installs: all packages and data files; an editable install does not miss them."""

from __future__ import annotations

import configparser
from pathlib import Path

ROOT = Path(__file__).parent.parent


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_every_package_is_installed() -> None:
    there = {".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / "pimflow").rglob("__init__.py")}
    folders = {".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / "pimflow").rglob("*.py")}
    assert folders == there
    assert set(setup()["options"]["packages"].split()) == there | {"pimflow_zoo"}


def test_every_data_file_is_installed() -> None:
    data = setup()["options.package_data"]
    for file in (ROOT / "pimflow").rglob("*"):
        if file.is_file() and file.suffix not in (".py", ".pyc"):
            package = ".".join(file.parent.relative_to(ROOT).parts)
            assert any(file.match(pattern) for pattern in data.get(package, "").split()), file

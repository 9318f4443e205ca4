"""What `pip install .` installs: all packages and data files; an editable install does not miss them."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

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


PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def requirements(text: str) -> list[Requirement]:
    return [Requirement(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def oldest(name: str, python: str) -> set[str]:
    """What .ci/oldest.txt pins a package to on one Python."""
    pins = requirements((ROOT / ".ci" / "oldest.txt").read_text())
    there = {"python_version": python}
    found = [pin for pin in pins if pin.name == name and (pin.marker is None or pin.marker.evaluate(there))]
    return {spec.version for pin in found for spec in pin.specifier}


def test_the_oldest_dependencies_that_are_tested_are_those_that_are_allowed() -> None:
    """On the oldest Python exactly, on others no older ones, and one of each: what is claimed is tried."""
    options = setup()
    allowed = options["options"]["install_requires"] + options["options.extras_require"]["test"]
    for requirement in requirements(allowed):
        (bound,) = requirement.specifier
        for python in PYTHONS:
            (pin,) = oldest(requirement.name, python)
            assert bound.operator == ">="
            assert Version(pin) >= Version(bound.version), requirement
        assert {Version(pin) for pin in oldest(requirement.name, PYTHONS[0])} == {Version(bound.version)}, requirement


def test_the_pythons_that_are_claimed_are_those_that_are_tested() -> None:
    metadata = setup()["metadata"]["classifiers"]
    assert tuple(re.findall(r"Python :: (3\.\d+)$", metadata, re.MULTILINE)) == PYTHONS
    script = (ROOT / ".ci" / "run").read_text()
    assert all(f"python{python}" in script for python in PYTHONS)


def test_every_data_file_is_installed() -> None:
    data = setup()["options.package_data"]
    for file in (ROOT / "pimflow").rglob("*"):
        if file.is_file() and file.suffix not in (".py", ".pyc"):
            package = ".".join(file.parent.relative_to(ROOT).parts)
            assert any(file.match(pattern) for pattern in data.get(package, "").split()), file

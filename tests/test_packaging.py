"""What `pip install .` installs (all packages and data files, which an editable install would not miss), what a package
index shows, and what a source archive contains."""

from __future__ import annotations

import configparser
import re
import runpy
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


def pinned(file: str, name: str, python: str) -> set[str]:
    """The versions that .ci/`file` pins a package to on one Python."""
    pins = requirements((ROOT / ".ci" / file).read_text())
    there = {"python_version": python, "python_full_version": f"{python}.1"}
    found = [pin for pin in pins if pin.name == name and (pin.marker is None or pin.marker.evaluate(there))]
    return {spec.version for pin in found for spec in pin.specifier}


def test_the_oldest_dependencies_that_are_tested_are_those_that_are_allowed() -> None:
    """The oldest Python tests exactly the oldest allowed versions, other Pythons no older ones, each pinned once."""
    options = setup()
    allowed = options["options"]["install_requires"] + options["options.extras_require"]["test"]
    for requirement in requirements(allowed):
        (bound,) = requirement.specifier
        for python in PYTHONS:
            (pin,) = pinned("oldest.txt", requirement.name, python)
            assert bound.operator == ">="
            assert Version(pin) >= Version(bound.version), requirement
        assert {Version(pin) for pin in pinned("oldest.txt", requirement.name, PYTHONS[0])} == {
            Version(bound.version)
        }, requirement


def test_every_dependency_is_pinned_where_the_newest_are_tested() -> None:
    """An unpinned dependency could fail because of a release elsewhere."""
    options = setup()
    named = [options["options"]["install_requires"], *dict(options["options.extras_require"]).values()]
    for requirement in requirements("\n".join(named)):
        for python in PYTHONS:
            if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
                (pin,) = pinned("newest.txt", requirement.name.lower(), python)
                assert requirement.specifier.contains(pin), requirement


def test_tests_that_run_once_exist() -> None:
    names = [line for line in (ROOT / ".ci" / "once.txt").read_text().splitlines() if not line.startswith("#")]
    assert names
    assert not [name for name in names if not (ROOT / name).exists()]


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


def test_links_of_the_description_lead_somewhere_from_an_index_of_packages() -> None:
    made = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    base = made["repository"]()
    text = made["with_absolute_links"]((ROOT / "README.md").read_text(), base)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 9
    for link in links:
        found = re.fullmatch(rf"{re.escape(base)}/(blob|raw)/main/(.*)", link)
        assert found, link
        assert (ROOT / found[2]).is_file(), link
        assert (found[1] == "raw") == link.endswith((".png", ".svg"))
    assert made["with_absolute_links"]("[a](https://b.c) [d](#e)", base) == "[a](https://b.c) [d](#e)"


def test_addresses_of_the_project_are_within_its_repository() -> None:
    urls = setup()["metadata"]["project_urls"].split()[2::3]
    base = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["repository"]()
    assert len(urls) == 4
    assert all(url.startswith(base) for url in urls)


def test_an_archive_of_the_source_has_all_that_tests_read() -> None:
    rules = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
    taken = {name for rule in rules if rule[:1] in (["graft"], ["include"]) for name in rule[1:]}
    assert all((ROOT / name).exists() for name in taken)
    of_setuptools = {"LICENSE", "MANIFEST.in", "README.md", "pimflow", "pyproject.toml", "setup.cfg", "setup.py"}
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    read = {name for text in texts for name in re.findall(r'\bROOT / "([^"{}]+)"', text)}
    assert {"docs", "benchmarks", "CHANGELOG.md"} & read
    assert {"tests"} | read <= taken | of_setuptools

"""Which package may import which, as in docs/architecture.md; checked on the source text, lazy imports included."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pimflow"

# Room -> the rooms that it may import from, besides itself. Rooms are packages of pimflow/, or the top-level files.
BASE = {"errors", "data", "records"}
FORMS = {"ir", "sparse", "targets"} | BASE
ALLOWED = {
    "records": set(),
    "errors": set(),
    "garbage": set(),
    "data": {"errors", "records"},
    "version": set(),
    "ir": BASE,
    "cache": {"errors"},
    "plugins": {"errors", "records"},
    "sparse": {"cache"} | BASE,
    "targets": {"plugins"} | BASE,
    "options": {"sparse", "targets"} | BASE,
    "onnxio": FORMS,
    "frontend": {"onnxio"} | FORMS,
    "passes": {"onnxio", "plugins"} | FORMS,
    "codegen": FORMS,
    "runtime": {"plugins", "codegen", "frontend", "onnxio"} | FORMS,
    "search": {"cache", "garbage", "plugins", "options", "runtime", "passes", "codegen", "version"} | FORMS,
    "report": {"options", "search", "runtime", "passes", "codegen", "version"} | FORMS,
    "bundle": {"frontend", "onnxio", "codegen", "zoo", "version"} | FORMS,
    "verify": {"runtime", "codegen", "frontend", "onnxio"} | FORMS,
    "compiler": {
        "options",
        "report",
        "bundle",
        "verify",
        "search",
        "passes",
        "runtime",
        "codegen",
        "frontend",
        "onnxio",
        "garbage",
        "version",
    }
    | FORMS,
}
ALLOWED["sweeps"] = {"compiler"} | ALLOWED["compiler"]
ALLOWED["api"] = {"sweeps", "compiler", "zoo"} | ALLOWED["compiler"]
ALLOWED["cli"] = {"api", "garbage", "options", "report", "bundle", "search", "sparse", "targets", "version"} | BASE
# The command line makes no decisions: it calls these modules of the rooms that do the work, and no others.
ALSO = {
    "cli": {"pimflow.codegen"},
}
# The top-level files that make up the compiler.
COMPILER = {"compiled", "compiler"}
# What Python code can import apart from `pimflow` itself.
API = {"gnn"}


def room_of(module: str) -> str:
    """The room of a dotted module name."""
    parts = module.split(".")
    if parts[0] == "pimflow_zoo":
        return "zoo"
    name = parts[1] if len(parts) > 1 else "__init__"
    if name in ("__init__", "__main__"):
        return "api" if name == "__init__" else "cli"
    if name in API:
        return "api"
    return "compiler" if name in COMPILER else name


def imports_of(path: Path, module: str) -> set[str]:
    """Every pimflow module that a file imports, including inside functions and under TYPE_CHECKING."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "pimflow":
                found |= {f"pimflow.{alias.name}" for alias in node.names}
            else:
                found.add(node.module or "")
    return {name for name in found if name.split(".")[0] in ("pimflow", "pimflow_zoo")}


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_rule(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    room = room_of(module)
    assert room in ALLOWED, f"{module} is in no room; add it to docs/architecture.md and to this test"
    for imported in imports_of(path, module):
        other = room_of(imported)
        allowed = other == room or other in ALLOWED[room] or imported in ALSO.get(room, set())
        assert allowed, f"{module} must not import {imported}"


def test_the_rule_is_checked_on_every_room() -> None:
    rooms = {room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in source_files()}
    assert rooms == set(ALLOWED)


def test_the_rule_has_no_cycle() -> None:
    """Imports inside functions and for type checkers also follow the rule, so they form no cycles between rooms."""
    edges = {room: set(others) | {room_of(name) for name in ALSO.get(room, ())} for room, others in ALLOWED.items()}
    TopologicalSorter(edges).prepare()  # CycleError names the cycle


def test_the_rule_matches_the_documentation() -> None:
    """In the documentation, rooms on the left import those on the right: the rule allows no import to the left or
    across a bar."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    (line,) = re.findall(r"^cli ─▶ .*$", text, re.MULTILINE)
    above = rooms_above(line)
    assert set(above) == set(ALLOWED) - {"version"}
    for room, others in ALLOWED.items():
        assert not {other for other in others & set(above) if room not in above[other]}, room


def rooms_above(line: str) -> dict[str, set[str]]:
    """The rooms that may import each room, from a line like `a ─▶ { b ─▶ c | d } ─▶ e`: those where arrows start."""
    above: dict[str, set[str]] = {}
    before: set[str] = set()
    groups: list[tuple[set[str], set[str]]] = []  # for every open brace: the rooms before it, and those of its branches
    for word in re.findall(r"\w+|[{|}]", line):
        if word == "{":
            groups.append((set(before), set()))
        elif word == "|":
            outside, inside = groups[-1]
            inside |= before
            before = set(outside)
        elif word == "}":
            before |= groups.pop()[1]
        else:
            above[word] = set(before)
            before.add(word)
    return above


def test_the_zoo_imports_only_onnx_and_numpy() -> None:
    for path in sorted((ROOT / "models").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] != "pimflow", f"{path} imports {name}"
                assert not name.startswith(("torch", "onnxruntime")), f"{path} imports {name}"


def test_no_path_of_one_machine_is_committed() -> None:
    roots = [PACKAGE, ROOT / "models", ROOT / "docs", ROOT / "benchmarks", ROOT / "README.md"]
    files = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*"))]
    for path in files:
        if path.suffix in {".py", ".md", ".toml", ".csv"}:
            assert "/" + "work/" not in path.read_text(), path


TESTS = ROOT / "tests"
NO_ROOMS = {"data", "fuzz", "models", "support"}
"""Folders of tests/ that are not rooms of the package: data, the fuzzing campaign, the zoo's tests, shared helpers."""


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_tests_mirror_the_package(path: Path) -> None:
    """tests/ROOM/test_MODULE.py, or test_MODULE_WHAT.py: MODULE is a module or folder of pimflow/ROOM, or ROOM itself.

    MODULE may also be a folder next to the test that holds what the test runs.
    """
    room = path.parent.relative_to(TESTS)
    if room == Path() or room.parts[0] in NO_ROOMS:
        return
    package = PACKAGE / room
    assert package.is_dir(), f"there is no {package.relative_to(ROOT)}"
    entries = [*package.iterdir(), *(entry for entry in path.parent.iterdir() if entry.is_dir())]
    modules = {package.name, *(entry.stem for entry in entries)} - {"__init__", "__pycache__"}
    words = path.stem.removeprefix("test_").split("_")
    prefixes = {"_".join(words[:length]) for length in range(1, len(words) + 1)}
    assert prefixes & modules, f"{room} has no module that {path.name} is named after"


def test_every_folder_of_tests_is_a_room() -> None:
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name[0] not in "._"}  # none of tools
    assert folders <= {path.name for path in PACKAGE.iterdir()} | NO_ROOMS

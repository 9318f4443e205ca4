"""House rules beyond the import rules: few loose modules, no cycles, one home for one idea."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from pimflow.options import Options, option_texts
from pimflow.runtime.costs import CostModel

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pimflow"
SOURCES = {path.relative_to(PACKAGE): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
NEWTON = re.compile(r"newton|GWRITE|G_ACT|READRES|command stream", re.IGNORECASE)


@cache
def modules() -> dict[str, ast.Module]:
    """All modules by name, parsed when the first test asks for them: every process that collects imports this file."""
    return {
        ".".join(("pimflow", *path.with_suffix("").parts)).removesuffix(".__init__"): ast.parse(text)
        for path, text in SOURCES.items()
    }


def files_with(pattern: re.Pattern[str], *, apart_from: tuple[str, ...] = ()) -> list[str]:
    """Files that match a pattern, without those in the named folders."""
    files = [path for path, text in SOURCES.items() if pattern.search(text)]
    return [path.as_posix() for path in files if not set(path.parts[:-1]) & set(apart_from)]


def imported_by(tree: ast.Module) -> Iterator[str]:
    """Modules that a module imports: at load time, inside functions, and for type checkers."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            names = {f"{statement.module}.{alias.name}" for alias in statement.names}
            yield from (name if name in modules() else statement.module or "" for name in names)


def test_few_modules_are_at_the_root() -> None:
    assert len([path for path in SOURCES if len(path.parts) == 1]) <= 8


def test_no_modules_import_each_other_in_a_cycle() -> None:
    edges = {name: set(imported_by(tree)) & set(modules()) - {name} for name, tree in modules().items()}
    TopologicalSorter(edges).prepare()  # CycleError names the cycle


def test_the_cost_model_is_made_from_data_alone() -> None:
    """A callable passed to it would be a cycle that no import shows."""
    parameters = inspect.signature(CostModel).parameters.values()
    assert not [parameter.name for parameter in parameters if "Callable" in str(parameter.annotation)]


def test_an_op_is_named_in_few_files() -> None:
    assert len(files_with(re.compile("MatMul"))) <= 9


def test_newtons_terms_stay_in_its_rooms() -> None:
    named = files_with(NEWTON, apart_from=("newton", "targets"))
    assert len(named) <= 6, named


def test_named_tuples_compile_their_methods_lazily() -> None:
    assert files_with(re.compile(r"from typing import [^\n]*\bNamedTuple\b")) == ["records.py"]


def test_frozen_dataclasses_compile_their_methods_lazily() -> None:
    """Nor may `pimflow.records` leave it to Python because of other options, except for the one class with an order."""
    others = files_with(re.compile(r"frozen=True, (?!eq=|repr=|slots=)"))
    assert others == ["codegen/upmem/strategy.py"]
    frozen = files_with(re.compile(r"@dataclass.*frozen=True"))
    assert not set(frozen) & set(files_with(re.compile(r"from dataclasses import [^\n]*\bdataclass\b")))


def test_no_timing_profile_is_chosen_by_comparing_its_name() -> None:
    assert files_with(re.compile(r"""["']artifact["']"""), apart_from=("newton", "targets")) == []


def test_no_type_lists_the_devices() -> None:
    assert files_with(re.compile(r"""Literal\[\s*["'](gpu|pim)["']""")) == []


@cache
def readers() -> dict[str, list[str]]:
    """The files with `options.ATTRIBUTE` by attribute, whether a variable, a field or a call holds the options."""
    holders = re.compile(r"(^|[._])(options|asked)$|^Options\b")
    found: dict[str, list[str]] = {}
    for path, tree in zip(SOURCES, modules().values(), strict=True):
        attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        for name in {node.attr for node in attributes if holders.search(ast.unparse(node.value))}:
            found.setdefault(name, []).append(path.as_posix())
    return found


READ_TWICE = {
    # random inputs of the checks and of `verify`
    "seed": ["compiled/model.py", "compiled/original.py", "compiled/writing.py", "compiler.py"],
    "check": ["compiled/original.py", "compiled/writing.py"],  # the model as given, and as written
    "jobs": ["compiled/writing.py", "compiler.py"],  # tasks that run concurrently with these checks
}


@pytest.mark.parametrize("name", [field.name for field in fields(Options)])
def test_an_option_is_read_in_one_file(name: str) -> None:
    files = readers().get(name, [])
    assert len(files) == 1 or files == READ_TWICE.get(name), f"{name} is read in {files}"


@pytest.mark.parametrize(
    ("name", "users"),
    [
        # the search for a plan, and the one for activations
        ("time_budget_s", ["search/solver.py", "api/training.py", "cli/verbs/train.py"]),
        ("use_cache", ["search/solver.py"]),
        ("disabled_passes", ["compiler.py"]),
    ],
)
def test_an_option_is_named_where_it_is_described_and_where_it_is_used(name: str, users: list[str]) -> None:
    assert sorted(files_with(re.compile(rf"\b{name}\b"))) == sorted(["options.py", *users])


@pytest.mark.parametrize("name", [name for name, text in option_texts().items() if text.flag])
def test_an_option_is_spelled_once(name: str) -> None:
    own = {"seed": ["cli/verbs/verify.py"]}.get(name, [])  # for its own inputs
    assert files_with(re.compile(rf'"{option_texts()[name].flag}"')) == [*own, "options.py"]

"""The commands and links in README and docs work as written."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import runpy
import shlex
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import pimflow
from pimflow import compiler, errors
from pimflow.cli import main
from pimflow.cli.main import build_parser
from pimflow.search import policies
from pimflow.targets import load_target

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pimflow"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


MADE_FOR_THE_SITE = {"example-report.md", "reference.md"}
"""Pages that docs/site/hooks.py generates; links to them are inside comments that only the site shows."""


def shell_blocks(page: Path) -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    return [[line for line in block.splitlines() if line.strip()] for block in blocks]


def shell_blocks_with_output(page: Path) -> list[tuple[list[str], list[str]]]:
    """The commands of every block, and the lines of the output block that follows it."""
    blocks = re.findall(r"```sh\n(.*?)```(?:\n\n```output\n(.*?)```)?", page.read_text(), re.DOTALL)
    return [(commands.splitlines(), shown.splitlines()) for commands, shown in blocks]


def unmatched(shown: Sequence[str], printed: str) -> list[str]:
    """The lines from the first one that was not printed after those before it; "..." stands for any lines."""
    lines = iter([line.rstrip() for line in printed.splitlines()])
    for place, line in enumerate(shown):
        if line != "..." and not any(line == other for other in lines):
            return list(shown[place:])
    return []


def runnable(line: str) -> bool:
    """Whether to run a command: not those that install something, name a file of the reader's own, or take long."""
    left_out = ("my-model", "resnet", "h200-fp", "--folds-by")
    return line.startswith("pimflow ") and not any(word in line for word in left_out)


def expanded(word: str) -> list[str]:
    """The files of the repository that a glob pattern matches, as a shell expands it; any other word unchanged."""
    return sorted(map(str, ROOT.glob(word))) if word.startswith("tests/") else [word]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    if page.name == "README.md":
        assert main(["compile", "zoo:toy", "-o", "out"]) == 0
    for name, text in re.findall(r"```toml\n# (\w+\.toml)\n(.*?)```", page.read_text(), re.DOTALL):
        Path(name).write_text(text)
    for commands, shown in shell_blocks_with_output(page):
        printed = ""
        for line in filter(runnable, commands):
            command, _, redirect = line.partition("#")[0].partition(">")
            capsys.readouterr()
            assert main([word for text in shlex.split(command)[1:] for word in expanded(text)]) == 0, line
            out = capsys.readouterr().out
            printed += out
            if redirect:
                Path(redirect.strip()).write_text(out)
        missing = unmatched(shown, printed)
        assert not missing, f"{missing[0]!r} is not in the output:\n{printed}"


def test_a_line_that_was_not_printed_is_found() -> None:
    assert unmatched(["a", "...", "c"], "a\nb\nc\nd\n") == []
    assert unmatched(["a", "c", "b"], "a\nb\nc\n") == ["b"]


def test_the_quick_start_is_two_commands_that_match_the_project() -> None:
    first, second = shell_blocks(ROOT / "README.md")[0]
    assert "pip install" in first
    assert "pimflow compile zoo:mobilenet-v2" in first
    test_command = re.search(r"python -m pytest.*", second)
    assert test_command is not None
    assert test_command.group() in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists() or target in MADE_FOR_THE_SITE, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lists_are_lists_on_the_site_too(page: Path) -> None:
    """Python-Markdown needs an empty line before a list and four spaces to nest; GitHub needs less."""
    lines = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines()
    for before, line in pairwise(["", *lines]):
        item = re.match(r"( *)(?:-|\d+\.) ", line)
        if item is not None:
            assert len(item[1]) % 4 == 0, line
            assert not before or re.match(r" +\S|- |\d+\. ", before), line


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, on GitHub and on the site."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_a_page_lead_to_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


def test_the_pictures_of_the_tutorial_match_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = ROOT / "benchmarks" / "tutorial_pictures.py"
    for name, text in runpy.run_path(str(script))["pictures"]().items():
        assert f"](images/{name})" in (ROOT / "docs" / "tutorial.md").read_text()
        assert (ROOT / "docs" / "images" / name).read_text() == text, f"{name} is outdated: run {script.name}"


def test_the_charts_of_the_results_are_drawn_from_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    page = (ROOT / "docs" / "results.md").read_text()
    drawn = runpy.run_path(str(ROOT / "benchmarks" / "results_charts.py"))["charts"](page)
    assert re.findall(r"\]\(images/([^)]+)\)", page) == list(drawn)
    for name, text in drawn.items():
        assert (ROOT / "docs" / "images" / name).read_text() == text, f"{name} is outdated: run results_charts.py"


def test_the_page_of_window_order_matches_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    made = runpy.run_path(str(ROOT / "benchmarks" / "im2win_results.py"))
    page = (ROOT / "docs" / "im2win.md").read_text()
    rows = (*made["memory_rows"](), *made["Speeds"].of(made["LAYERS"]).rows(), *made["fill_rows"]())
    assert all(f"\n{row}\n" in page for row in rows)
    chart = (ROOT / "docs" / "images" / made["CHART"]).read_text()
    assert chart == made["chart"](), "the chart is outdated: run im2win_results.py"


@pytest.mark.parametrize(
    ("heading", "name", "rows"),
    [
        ("Convolutions in window order", "im2win.md", 3),
        ("Relations that repeat", "relational-results.md", 3),
        ("Activations that do not fit", "training.md", 4),
    ],
)
def test_rows_of_the_results_match_the_named_page(heading: str, name: str, rows: int) -> None:
    """Both published figures and ours."""
    _, _, section = (ROOT / "docs" / "results.md").read_text().partition(f"\n## {heading}\n")
    told, page = section.partition("\n## ")[0], (ROOT / "docs" / name).read_text()
    assert f"]({name})" in told
    cells = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", told, re.MULTILINE)[1:]
    figures = {figure for pair in cells for cell in pair for figure in re.findall(r"[\d.]*\d", cell)}
    assert len(cells) == rows
    assert len(figures) > rows
    assert figures <= set(re.findall(r"[\d.]*\d", page))


def test_the_figures_of_feature_placement_match_their_page() -> None:
    page = (ROOT / "docs" / "gnn-epoch.md").read_text()
    about = "## Features that the GPU does not hold"
    told = (ROOT / "docs" / "results.md").read_text().partition(about)[2].partition("\n## ")[0]
    figures = re.findall(r"\| -?([\d.]+) ?[%x] \| [-+]?([\d.]+) ?[%x] \|", told)
    assert len(figures) == 4
    assert all(re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", page) for pair in figures for figure in pair)


def test_transfers_measured_on_an_h200_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads over the link within 8 %, gathers and their copies within 20 %; and the page has these figures."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    made = runpy.run_path(str(ROOT / "benchmarks" / "epoch_results.py"))
    measured = json.loads(made["MEASURED"].read_text())["epochs"]
    page = (ROOT / "docs" / "gnn-epoch.md").read_text()
    assert all(f"\n{row}\n" in page for row in (*made["measured_rows"](measured), *made["request_rows"]()))
    for found in measured.values():
        for placement, one in found["placements"].items():
            ratio = made["predicted_transfer_us"](found, placement) / one["transfer_us"]
            bound = 0.08 if "zero-copy" in placement else 0.2
            assert placement == "resident" or abs(ratio - 1) < bound


@pytest.mark.long
def test_the_page_of_epochs_matches_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    made = runpy.run_path(str(ROOT / "benchmarks" / "epoch_results.py"))
    graph, machine = "ogbn-papers100m", load_target(made["MACHINE"])
    drawn = [made["sampled"](graph, model, hidden, machine, 4) for model, hidden in made["MODELS"].items()]
    row = made["graph_row"](graph, [one.on(machine) for one in drawn])
    assert f"\n{row}\n" in (ROOT / "docs" / "gnn-epoch.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    """Paths in backticks, relative to the root of the repository or package; a lone folder name may be anywhere."""
    files = r"[\w./-]+/\w+\.(?:py|toml|md|csv)"
    folders = r"[\w.-]+/[\w./-]+/|(?:pimflow|tests|benchmarks|models)/[a-z_][\w/]*"
    for name in re.findall(rf"`({files}|{folders})`", page.read_text()):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


def test_the_documented_pipeline_matches_the_code() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)
    source = [line.strip() for line in inspect.getsource(compiler.compile_with).splitlines()]
    shown = [line.split("#")[0].strip() for line in block.splitlines()]
    assert len(shown) == 8
    assert [line for line in source if line in shown] == shown


def test_every_verb_and_policy_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    verbs = re.findall(r"^    ([a-z-]+)(?: |$)", help_of(capsys), re.MULTILINE)
    assert {"compile", "calibrate", "compare", "tune-graph"} <= set(verbs)
    for verb in verbs:
        assert f"`{verb}" in text, verb
    shown = " ".join(help_of(capsys, "compile").split())
    for policy in policies():
        assert f"| `{policy}` |" in text, policy
        assert re.search(rf"(: | ){re.escape(policy)}(,| or| \()", shown), policy


def help_of(capsys: pytest.CaptureFixture[str], *verb: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*verb, "--help"])
    return capsys.readouterr().out


SECTIONS = (ROOT / "docs" / "errors.md").read_text().split("\n## ")[1:]
ERRORS = {section.split("\n", 1)[0]: section for section in SECTIONS}


def test_the_readme_and_the_page_of_bounds_show_what_a_compilation_prints() -> None:
    (shown,) = re.findall(r"```\n(region .*?)\nwritten to", (ROOT / "README.md").read_text(), re.DOTALL)
    compiled = compiler.compile("zoo:mobilenet-v2", use_cache=False)
    assert max(map(len, shown.splitlines())) <= 100
    printed = without_wraps(compiled.summary())
    assert [part for part in without_wraps(shown).split(" ... ") if part not in printed] == []
    row, _ = re.findall(r"^\| mobilenet-v2 \|.*$", (ROOT / "docs" / "bounds.md").read_text(), re.MULTILINE)
    cells, report = row.split(" | "), compiled.report
    assert cells[1:3] == [f"{report.bound.time_us:,.1f}", report.bound.binding]
    assert cells[7:9] == [f"{report.result.time_us:,.1f}", f"{report.bound_ratio:.2f}"]


def without_wraps(summary: str) -> str:
    """A summary in one line, without the rule below the headings; of fields that differ elsewhere only the names."""
    unruled = re.sub(r"^[\u2500-]+ .*$", "", summary, flags=re.MULTILINE)
    return re.sub(r"\s+", " ", re.sub(r"^(digests|made by|search) .*$", r"\1", unruled, flags=re.MULTILINE)).strip()


def test_every_class_of_error_has_a_section_with_an_example() -> None:
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert set(ERRORS) == classes
    assert all("```console" in section or "```pycon" in section for section in ERRORS.values())


@pytest.mark.parametrize("name", ERRORS)
def test_an_example_of_an_error_raises_it_word_for_word(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```console\n(.*?)```", ERRORS[name], re.DOTALL):
        assert run_console(name, block, capsys), f"no command of the block fails:\n{block}"
    examples = "\n\n".join(re.findall(r"```pycon\n(.*?)```", ERRORS[name], re.DOTALL))
    assert name == "PimflowError" or "Traceback" not in examples or f"pimflow.errors.{name}: " in examples
    test = doctest.DocTestParser().get_doctest(examples, {}, name, "docs/errors.md", 0)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    assert runner.run(test).failed == 0, capsys.readouterr().out


def test_the_examples_of_the_python_api_are_right_word_for_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    text = (ROOT / "docs" / "api.md").read_text()
    examples = "\n\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(examples, {}, "api", "docs/api.md", 0)
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0, capsys.readouterr().out


def test_every_public_name_is_in_the_page_of_the_python_api() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert [name for name in pimflow.__all__ if not name.startswith("__") and not re.search(rf"\b{name}\b", text)] == []


def run_console(name: str, block: str, capsys: pytest.CaptureFixture[str]) -> int:
    """Run a block of `$ command` lines, each followed by its output; return how many raised the error of that name."""
    raised = 0
    for entry in block.split("$ ")[1:]:
        command, _, expected = entry.partition("\n")
        words, _, redirect = command.partition(" > ")
        if not words.startswith("pimflow "):
            subprocess.run(command, shell=True, check=True)
            continue
        capsys.readouterr()
        code = main(shlex.split(words)[1:])
        shown = capsys.readouterr()
        assert (code, shown.err) == (2 if expected else 0, expected), command
        if redirect:
            Path(redirect).write_text(shown.out)
        if expected:
            with pytest.raises(getattr(errors, name)):
                run_verb(shlex.split(words)[1:])
            raised += 1
    return raised


def run_verb(words: list[str]) -> None:
    """Do what `main` does, without its error handling."""
    arguments = build_parser().parse_args(words)
    arguments.run(arguments)

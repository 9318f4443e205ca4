"""The commands and links in README and docs work as they stand."""

import re
import shlex
from pathlib import Path

import pytest

from pimflow.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shell_blocks(page: Path) -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    return [[line for line in block.splitlines() if line.strip()] for block in blocks]


def runnable(line: str) -> bool:
    """Not those that install, name a file of the reader's own, or take long."""
    return line.startswith("pimflow ") and "my-model" not in line and "resnet" not in line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    if page.name == "README.md":
        assert main(["compile", "zoo:toy", "-o", "out"]) == 0
    for line in (line for block in shell_blocks(page) for line in block if runnable(line)):
        command, _, redirect = line.partition("#")[0].partition(">")
        capsys.readouterr()
        assert main(shlex.split(command)[1:]) == 0, line
        if redirect:
            Path(redirect.strip()).write_text(capsys.readouterr().out)


def test_the_quick_start_is_two_commands_that_match_the_project():
    first, second = shell_blocks(ROOT / "README.md")[0]
    assert "pip install" in first
    assert "pimflow compile zoo:mobilenet-v2" in first
    test_command = re.search(r"python -m pytest.*", second)
    assert test_command is not None
    assert test_command.group() in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_verb_and_policy_is_documented():
    from pimflow.cli.main import build_parser
    from pimflow.search import policies

    text = (ROOT / "docs" / "cli.md").read_text()
    verbs = next(action for action in build_parser()._actions if action.dest == "verb").choices
    for verb in verbs:
        assert f"`{verb}" in text, verb
    shown = next(action for action in verbs["compile"]._actions if action.dest == "policy").help
    for policy in policies():
        assert f"| `{policy}` |" in text, policy
        assert re.search(rf"(: | ){re.escape(policy)}(,| or| \()", shown), policy

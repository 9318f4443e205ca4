"""Completion scripts, tried in the shell itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import Capture, assert_one_line, run


def script(shell: str, capsys: Capture) -> str:
    with pytest.raises(SystemExit) as ended:
        run("--completion", shell)
    assert not ended.value.code
    return capsys.readouterr().out


def completed(words: str, capsys: Capture) -> list[str]:
    """The completions that bash offers for the last word."""
    *before, last = words.split(" ")
    program = (
        f"{script('bash', capsys)}\n"
        f"COMP_WORDS=({' '.join(before)} '{last}'); COMP_CWORD={len(before)}\n"
        "_shtab_pimflow pimflow; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


OFFERED = [
    ("pimflow exp", "explain"),
    ("pimflow tune", "tune-graph"),
    ("pimflow inspect --roo", "--roofline"),
    ("pimflow verify --pim v", "values"),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(("words", "offered"), OFFERED)
def test_bash_completes_verbs_options_and_values(words: str, offered: str, capsys: Capture) -> None:
    assert completed(words, capsys) == [offered]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(("words", "offered"), OFFERED)
def test_zsh_completes_verbs_options_and_values(words: str, offered: str, tmp_path: Path, capsys: Capture) -> None:
    """Runs in a terminal, since zsh completes only there; a key bound by the test prints the completed line."""
    (tmp_path / "_pimflow").write_text(script("zsh", capsys))
    program = f"""
        cd {tmp_path}; zmodload zsh/zpty; zpty shell zsh -f -i
        zpty -w shell 'fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D'
        zpty -w shell 'kept() {{ print -r -- $BUFFER > line; }}; zle -N kept; bindkey "^G" kept'
        zpty -n -w shell "{words}"$'\\t\\a'
        repeat 200 {{ [[ -s line ]] && break; sleep 0.05 }}
        zpty -d shell; cat line
    """
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    *before, _ = words.split(" ")
    assert done.stdout.split() == [*before, offered]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_all_verbs(shell: str, capsys: Capture) -> None:
    text = script(shell, capsys)
    assert all(verb in text for verb in ("compile", "tune-graph", "explain", "diff"))


def test_without_shtab_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert run("--completion", "bash") == 2
    assert_one_line(capsys, "pip install 'pimflow[completion]'")


def test_an_unsupported_shell_is_refused(capsys: Capture) -> None:
    assert run("--completion", "fish") == 2
    assert_one_line(capsys, "bash, zsh, tcsh")

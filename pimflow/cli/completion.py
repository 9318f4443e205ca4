"""`pimflow --completion SHELL`: the script that lets a shell complete the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from pimflow.cli.output import print_data
from pimflow.errors import OptionError

SHELLS = ("bash", "zsh", "tcsh")
_FILES = {"MODEL", "FILE", "GRAPH", "TABLE.csv", "NAME|FILE.toml", "IN", "OUT"}
_FOLDERS = {"DIR", "A", "B", "FOLDER"}
"""The metavars of arguments that stand for files and folders."""


class PrintCompletion(argparse.Action):
    """Print the completion script for a shell, which shtab makes from the parser itself, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        text = f"print what {', '.join(SHELLS[:-1])} or {SHELLS[-1]} needs to complete this command line"
        super().__init__(option_strings, argparse.SUPPRESS, choices=SHELLS, metavar="SHELL", help=text)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print and exit.

        Raises:
            OptionError: shtab is not installed.
        """
        try:
            import shtab
        except ImportError:
            raise OptionError("completion needs shtab", "pip install 'pimflow[completion]'") from None
        for action in _arguments(parser):
            if action.metavar in _FILES | _FOLDERS:
                action.complete = shtab.DIRECTORY if action.metavar in _FOLDERS else shtab.FILE  # type: ignore[attr-defined]
        print_data((shtab.complete(parser, shell=str(values)),))
        parser.exit()


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of its verbs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from _arguments(verb)
        else:
            yield action

"""`pimflow VERB ...`: dispatches to the verbs and reports errors."""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import shlex
import sys
import warnings
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from pimflow.cli import verbs as verb_files
from pimflow.cli.completion import PrintCompletion
from pimflow.cli.output import escape_unencodable, say
from pimflow.cli.parsing import Parser, add_quiet
from pimflow.errors import OptionError, PimflowError
from pimflow.garbage import rare_collections
from pimflow.options import option_texts
from pimflow.version import __version__

_EPILOG = """examples:
  pimflow compile zoo:mobilenet-v2 -o out     compile a model of the zoo into the folder out
  pimflow verify out                          check that the result computes what the model computes
  pimflow inspect model.onnx                  which nodes can run on PIM, and why the others cannot
  pimflow layer --conv ic=64,oc=64,h=56,w=56,k=3,p=1 --mapping auto
"""

_COLLECT_AFTER = 100_000
"""The number of new objects that triggers a garbage collection, unless a verb sets its own (`collect_after`)."""


def verb_names() -> tuple[str, ...]:
    """All verbs."""
    return tuple(module.name for module in pkgutil.iter_modules(verb_files.__path__))


def build_parser(described: Sequence[str] | None = None) -> Parser:
    """The parser of the command line, with arguments for the verbs in `described`: by default all, which is slow
    because their modules must be imported."""
    parser = Parser(
        prog="pimflow",
        description="A deep-learning compiler, profiler and simulator for processing-in-memory DRAM.\n"
        "`pimflow help VERB` shows the options of a verb.",
        epilog=_EPILOG,
    )
    parser.set_defaults(collect_after=_COLLECT_AFTER, quiet=False)
    parser.add_argument("--version", action="version", version=f"pimflow {__version__}")
    parser.add_argument("--completion", action=PrintCompletion)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    for name in verb_names() if described is None else described:
        importlib.import_module(f"{verb_files.__name__}.{name}").add(verbs)
    for verb in verbs.choices.values():
        add_quiet(verb)
    return parser


def _words(argv: Sequence[str]) -> list[str]:
    """The words of a command line, verb first: `help VERB` becomes `VERB --help`, and -v and -q may come before."""
    words = list(argv)
    if any("\0" in word for word in words):  # no file name can contain it
        raise OptionError("an argument holds a NUL character", "leave it out")
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    before = list(takewhile({"-v", "--verbose", "-q", "--quiet"}.__contains__, words))
    verb, rest = words[len(before) : len(before) + 1], words[len(before) + 1 :]
    return [*verb, *before, *rest]


def _described(words: Sequence[str]) -> Sequence[str] | None:
    """The verbs whose arguments a command line needs."""
    verb = words[0].replace("-", "_") if words else ""
    if verb in verb_names():
        return (verb,)
    return () if words[:1] == ["--version"] else None


def command_line(argv: Sequence[str]) -> str:
    """The command as a shell takes it, for the record, without options that do not affect the result: the output and
    the number of jobs."""
    jobs = option_texts()["jobs"]
    left_out = ("-o", "--output", jobs.short, jobs.flag)
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            kept += [word, *words]
        elif word in left_out:
            next(words, None)
        elif not word.startswith(tuple(f"{flag}=" if flag.startswith("--") else flag for flag in left_out)):
            kept.append(word)
    return shlex.join(["pimflow", *kept])


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


def _show_warning(message: Warning | str, *_place: Any, **_more: Any) -> None:
    """Print a warning as one line, without its place in the source."""
    say(f"pimflow: warning: {' '.join(str(message).split())}", sys.stderr)


def _silence_stdout() -> None:
    """Discard any further output, including the interpreter's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Returns:
        The exit code: 0; 1 if a check failed; 2 for a user's mistake or insufficient memory.
    """
    try:
        with escape_unencodable(), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            words = _words(sys.argv[1:] if argv is None else argv)
            arguments = build_parser(_described(words)).parse_args(words)
            arguments.command = command_line(words)
            with rare_collections(arguments.collect_after):
                code: int = arguments.run(arguments)
                if sys.stdout is not None:  # None: closed by the parent process
                    sys.stdout.flush()
        return code
    except PimflowError as error:
        say(f"pimflow: error: {' '.join(str(error).split())}", sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has gone (`pimflow ... | head`): not an error
        _silence_stdout()
        return 0
    except OSError as error:
        if error.errno in _NO_PATH:
            say(f"pimflow: error: {error.filename}: {error.strerror}; give another path", sys.stderr)
            return 2
        if error.errno == errno.ENOENT and error.filename is None:  # of os.getcwd
            say("pimflow: error: the current folder does not exist any more; change to another", sys.stderr)
            return 2
        if error.errno not in _FULL or error.filename is not None:
            raise
        _silence_stdout()
        say(f"pimflow: error: cannot write to stdout: {error.strerror}; make space", sys.stderr)
        return 2
    except MemoryError as error:  # numpy's message names the array
        what = str(error) or "the model is too large"
        say(f"pimflow: error: not enough memory: {what}; use a machine with more", sys.stderr)
        return 2

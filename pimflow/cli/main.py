"""`pimflow VERB ...`: the verbs, and what happens to errors."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pimflow.cli import verbs as verb_files
from pimflow.cli.output import say
from pimflow.cli.parsing import Parser
from pimflow.errors import PimflowError
from pimflow.version import __version__

_EPILOG = """examples:
  pimflow compile zoo:mobilenet-v2 -o out     compile a model of the zoo into the folder out
  pimflow verify out                          show that the result computes what the model computed
  pimflow inspect model.onnx                  which nodes can run on PIM, and why the others cannot
  pimflow layer --conv ic=64,oc=64,h=56,w=56,k=3,p=1 --mapping auto
"""


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="pimflow",
        description="A deep-learning compiler, profiler and simulator for processing-in-memory DRAM.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"pimflow {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    for module in pkgutil.iter_modules(verb_files.__path__, f"{verb_files.__name__}."):
        importlib.import_module(module.name).add(verbs)
    return parser


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _show_warning(message: Warning | str, *_place: Any, **_more: Any) -> None:
    """A warning as one line, without the place in our source."""
    say(f"pimflow: warning: {' '.join(str(message).split())}", sys.stderr)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Looks for cyclic garbage less often: a compilation leaves next to none, and looking takes a tenth of its time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _silence_stdout() -> None:
    """Nothing more can be written there, not even by the interpreter's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Returns:
        The exit code: 0, 1 where a check failed, 2 for a mistake of the user's, 130 when interrupted.
    """
    try:
        with _rare_collections(), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            arguments = build_parser().parse_args(argv)
            code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except PimflowError as error:
        say(f"pimflow: error: {' '.join(str(error).split())}", sys.stderr)
        return 2
    except BrokenPipeError:  # the reader went away (`pimflow ... | head`): not an error
        _silence_stdout()
        return 0
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _silence_stdout()
        say(f"pimflow: error: cannot write to stdout: {error.strerror}; make space", sys.stderr)
        return 2
    except KeyboardInterrupt:
        say("pimflow: interrupted", sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""`pimflow calibrate`: fits a target's GPU parameters to measured times."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pimflow.cli.output import STDOUT, print_data, say, show
from pimflow.cli.parsing import Parser, add_json, add_target, positive_int, target_of
from pimflow.errors import OptionError


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "calibrate",
        help="fit a target's GPU parameters to measured kernel times",
        description="Fits a target's GPU parameters to measured (op, shape, time) rows, with cross-validation.",
    )
    parser.add_argument(
        "--from",
        dest="tables",
        required=True,
        nargs="+",
        metavar="TABLE.csv",
        help="output of `pimflow profile`, or published tables (*_fp16_gemm.csv and the like, see docs/gpu-model.md)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.toml",
        help="where to write the fitted target (-: stdout, with the errors on stderr)",
    )
    parser.add_argument(
        "--check", action="store_true", help="do not fit; only report the errors of the target as it is"
    )
    parser.add_argument(
        "--folds",
        type=positive_int,
        default=5,
        metavar="K",
        help="number of folds of the cross-validation (default: 5)",
    )
    parser.add_argument(
        "--folds-by",
        metavar="turn|size",
        default="turn",
        help="what each fold holds out: every K-th kernel (turn) or kernels of similar size (size); default: turn",
    )
    add_target(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fit, write the target and print the errors of the fit; with --check, print those of the target as it is."""
    import pimflow
    from pimflow.bundle.files import write_new_file

    if arguments.folds < 2:
        raise OptionError("--folds 1 leaves nothing to validate on", "give 2 or more")
    if arguments.check and arguments.output:
        raise OptionError("--check fits nothing that --output could write", "leave one of them out")
    to_stdout = arguments.output == STDOUT
    if to_stdout and arguments.json:
        raise OptionError("-o - and --json both write to stdout", "give a FILE, or leave one of them out")
    result = pimflow.calibrate(
        arguments.tables,
        target=target_of(arguments),
        folds=arguments.folds,
        folds_by=arguments.folds_by,
        check=arguments.check,
        name=Path(arguments.output).stem if arguments.output and not to_stdout else None,
    )
    if to_stdout:
        print_data((result.toml(),))
        if not arguments.quiet:
            say(result.text(), sys.stderr)
        return 0
    if arguments.output:
        write_new_file(Path(arguments.output), result.toml().encode())
    show("calibrate", result, arguments)
    return 0

"""`pimflow calibrate`: fits a target's GPU parameters to measured times."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pimflow.cli.output import print_json
from pimflow.cli.parsing import Parser, add_json, add_target, positive_int, target_of
from pimflow.errors import OptionError


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "calibrate",
        help="fit a target's GPU parameters to measured times",
        description="Fits a target's GPU parameters to measured (op, shape, time) rows, cross-validated.",
    )
    parser.add_argument("--from", dest="table", required=True, metavar="TABLE.csv", help="rows of `pimflow profile`")
    parser.add_argument("-o", "--output", metavar="FILE.toml", help="write the fitted target here")
    parser.add_argument("--folds", type=positive_int, default=5, metavar="K", help="folds of the cross-validation")
    add_target(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fits, writes the target and prints the errors of the fit."""
    from pimflow.bundle.folder import write_whole
    from pimflow.runtime.gpu.calibrate import calibrate
    from pimflow.targets import to_toml

    if arguments.folds < 2:
        raise OptionError("--folds 1 leaves nothing to validate on", "give 2 or more")
    result = calibrate(target_of(arguments), arguments.table, folds=arguments.folds)
    if arguments.output:
        write_whole(Path(arguments.output), to_toml(result.target).encode())
    if arguments.json:
        print_json(result.as_json())
    else:
        print(result.text())
    return 0

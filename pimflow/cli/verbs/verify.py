"""`pimflow verify`: shows that a compiled model computes what the original computes."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json, positive_float, whole_number
from pimflow.errors import OptionError
from pimflow.report.tables import wrapped


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "verify",
        help="check that a compiled model computes what the original computes",
        description="Runs the original and the compiled model on the same inputs and compares the outputs.\n"
        "The result is kept in the folder, and reports show it.",
    )
    parser.add_argument("folder", metavar="DIR", help="an output folder of `pimflow compile`")
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--seed", type=whole_number, metavar="N", help="seed of the random inputs (default: compile's)")
    inputs.add_argument("--inputs", metavar="FILE.npz", help="inputs by name, instead of random ones")
    parser.add_argument(
        "--rtol",
        type=positive_float,
        metavar="R",
        help="largest error allowed, relative to the largest magnitude of an output",
    )
    parser.add_argument(
        "--pim",
        choices=("ort", "values"),
        default="ort",
        help="execute PIM nodes with ONNX Runtime (ort, the default) or by value from their programs (values)",
    )
    parser.add_argument("--operand", choices=("fp16", "bf16", "fp32"), help="operand type for --pim values")
    parser.add_argument("--arena", action="store_true", help="run the compiled model inside its planned memory arena")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Verify and print; the exit code is 1 if an output differs."""
    from pimflow.api.outputs import verify_output

    if arguments.operand and arguments.pim != "values":
        raise OptionError("--operand needs --pim values", "add --pim values")
    with Progress(quiet=arguments.quiet) as progress:
        result = verify_output(
            arguments.folder,
            inputs=arguments.inputs,
            seed=arguments.seed,
            rtol=arguments.rtol,
            pim=arguments.pim,
            operand=arguments.operand,
            arena=arguments.arena,
            progress=progress,
        )
    show("verify", result, arguments, _wrapped)
    return 0 if result.passed else 1


def _wrapped(text: str) -> str:
    return "\n".join(wrapped(line, " " * 6) for line in text.splitlines())

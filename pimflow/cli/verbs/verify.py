"""`pimflow verify`: shows that a compiled model computes what the original computes."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.output import Progress, show
from pimflow.cli.parsing import Parser, add_json, positive_float, whole_number
from pimflow.errors import OptionError
from pimflow.report.tables import wrapped


def add(verbs: Any) -> None:
    """Describes the verb."""
    parser: Parser = verbs.add_parser(
        "verify",
        help="show that a compiled model computes what the original computes",
        description="Runs the original and the compiled model on the same inputs and compares the outputs.\n"
        "The folder keeps what came of it, for reports to say.",
    )
    parser.add_argument("folder", metavar="DIR", help="an output folder of `pimflow compile`")
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--seed", type=whole_number, metavar="N", help="seed of the random inputs (default: compile's)")
    inputs.add_argument("--inputs", metavar="FILE.npz", help="inputs by name")
    parser.add_argument("--rtol", type=positive_float, metavar="R", help="largest error over largest magnitude")
    parser.add_argument(
        "--pim",
        choices=("ort", "values"),
        default="ort",
        help="how PIM nodes are executed: by ONNX Runtime (default), or by value, from what the units execute",
    )
    parser.add_argument(
        "--operand", choices=("fp16", "bf16", "fp32"), help="element type of the operands, with --pim values"
    )
    parser.add_argument("--arena", action="store_true", help="run inside the planned memory arena")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Verifies and prints; the exit code is 1 if an output is off."""
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

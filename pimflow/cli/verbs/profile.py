"""`pimflow profile`: times a model's kernels on this machine."""

from __future__ import annotations

import argparse
from typing import Any

from pimflow.cli.options import add_options, keywords_of
from pimflow.cli.output import Progress, output_file, print_data, say
from pimflow.cli.parsing import Parser, add_model, positive_int, whole_number
from pimflow.cli.stdin import given_model


def add(verbs: Any) -> None:
    """Add the verb and its arguments."""
    parser: Parser = verbs.add_parser(
        "profile",
        help="time a model's kernels on this machine",
        description="Times a model's kernels on this machine and writes (op, shapes, time) rows as CSV.",
    )
    add_model(parser)
    add_options(parser, only=("shapes", "fixed"))
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cpu with ONNX Runtime, or cuda with PyTorch (default: cpu)",
    )
    parser.add_argument(
        "--gpu-operand",
        choices=("fp16", "fp32"),
        metavar="TYPE",
        help="type of operands on cuda: fp16 (the default) or fp32",
    )
    parser.add_argument(
        "--runs", type=positive_int, default=20, metavar="N", help="timed runs per kernel (default: 20)"
    )
    parser.add_argument(
        "--warmup", type=whole_number, default=5, metavar="N", help="untimed runs before those (default: 5)"
    )
    parser.add_argument("-o", "--output", metavar="FILE.csv", help="where to write the table (default: stdout)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Time the kernels and write the table."""
    import pimflow
    from pimflow.bundle.files import check_new, write_new_file

    path = output_file(arguments.output)
    if path is not None:
        check_new(path)
    options = keywords_of(arguments)
    with Progress(quiet=arguments.quiet) as progress:
        profile = pimflow.profile(
            given_model(arguments.model),
            device=arguments.device,
            gpu_operand=arguments.gpu_operand,
            runs=arguments.runs,
            warmup=arguments.warmup,
            progress=progress,
            shapes=options["shapes"],
            fixed=options["fixed"],
        )
    text = profile.csv()
    if path is None:
        print_data((text,))
        return 0
    write_new_file(path, text.encode())
    if not arguments.quiet:
        say(str(path))
    return 0

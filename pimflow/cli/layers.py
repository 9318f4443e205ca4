"""Parses the values of --conv and --matmul."""

from __future__ import annotations

from collections.abc import Mapping

from pimflow.codegen import ConvProblem, MatmulProblem
from pimflow.errors import OptionError, choice

_CONV_KEYS = ("ic", "oc", "h", "w", "k", "kh", "kw", "s", "p", "d", "g", "n")
_MATMUL_KEYS = ("m", "k", "n", "b")
_MAX_DIGITS = 18


def parse_conv(text: str) -> ConvProblem:
    """A convolution from "ic=16,oc=96,h=112,w=112,k=1,s=1,p=0".

    `ic`, `oc`, `h`, `w` and `k` (or `kh` and `kw`) are required; `s`, `p`, `d`, `g`, `n` are stride, padding, dilation,
    groups and batch. Stride and dilation are one number or "rows/columns", padding is one or "top/left/bottom/right".

    Raises:
        OptionError: a key is unknown, missing or repeated, or the values do not make a convolution.
    """
    values = _pairs(text, _CONV_KEYS, "--conv")
    _require(values, ("ic", "oc", "h", "w"), "--conv")
    if ("k" in values) == ("kh" in values or "kw" in values) or ("kh" in values) != ("kw" in values):
        raise OptionError(f"--conv {text!r} must give the kernel once", "write k=3, or kh=1,kw=3")
    kernel = _numbers(values["k"], "k", 2) if "k" in values else (_number(values, "kh"), _number(values, "kw"))
    pads = _numbers(values.get("p", "0"), "p", 4, least=0)
    problem = ConvProblem(
        batch=_number(values, "n", "1"),
        in_channels=_number(values, "ic"),
        out_channels=_number(values, "oc"),
        in_h=_number(values, "h"),
        in_w=_number(values, "w"),
        kernel=(kernel[0], kernel[1]),
        strides=_pair(values, "s"),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        dilations=_pair(values, "d"),
        groups=_number(values, "g", "1"),
    )
    if problem.in_channels % problem.groups or problem.out_channels % problem.groups:
        raise OptionError(f"--conv {text!r}: ic and oc must be multiples of g", "correct them")
    if problem.out_h < 1 or problem.out_w < 1:
        raise OptionError(f"--conv {text!r}: the kernel is larger than the padded input", "make h, w or p larger")
    return problem


def parse_matmul(text: str) -> MatmulProblem:
    """A matrix product [m, k] @ [k, n] from "m=1,k=1280,n=1000"; `b` products share the right-hand side.

    Raises:
        OptionError: a key is unknown, missing or repeated, or a value is below 1.
    """
    values = _pairs(text, _MATMUL_KEYS, "--matmul")
    _require(values, ("m", "k", "n"), "--matmul")
    m, k, n = (_number(values, key) for key in ("m", "k", "n"))
    return MatmulProblem(m, k, n, _number(values, "b", "1"))


def _pairs(text: str, keys: tuple[str, ...], option: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise OptionError(f"{option} {part!r} is not key=value", f"keys are {', '.join(keys)}")
        key = choice(f"{option} key", key, keys)
        if key in values:
            raise OptionError(f"{option} gives {key!r} twice", "give it once")
        values[key] = value
    return values


def _require(values: Mapping[str, str], keys: tuple[str, ...], option: str) -> None:
    missing = [key for key in keys if key not in values]
    if missing:
        raise OptionError(f"{option} lacks {', '.join(missing)}", "add them as key=value")


def _number(values: Mapping[str, str], key: str, default: str = "") -> int:
    return _numbers(values.get(key, default), key, 1)[0]


def _pair(values: Mapping[str, str], key: str) -> tuple[int, int]:
    first, second = _numbers(values.get(key, "1"), key, 2)
    return first, second


def _numbers(text: str, key: str, count: int, least: int = 1) -> tuple[int, ...]:
    """One number, repeated `count` times, or `count` numbers separated by slashes."""
    parts = text.split("/")
    if len(parts) not in (1, count) or not all(part.isascii() and part.isdigit() for part in parts):
        wanted = "a number" if count == 1 else f"a number or {count} numbers separated by '/'"
        raise OptionError(f"{key}={text[:40]} is not {wanted}", "give whole numbers")
    if max(map(len, parts)) > _MAX_DIGITS:
        raise OptionError(f"{key}={text[:40]}... is out of range", f"give {least} to {1 << 20}")
    numbers = tuple(map(int, parts)) * (count // len(parts))
    if min(numbers) < least or max(numbers) > 1 << 20:
        raise OptionError(f"{key}={text} is out of range", f"give {least} to {1 << 20}")
    return numbers

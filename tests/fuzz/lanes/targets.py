"""Target files with one value changed: refused in one line, or a machine whose figures are finite."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from random import Random

from fuzz.apart import apart
from fuzz.mutators import damaged
from fuzz.verdict import Verdict
from pimflow.cli import main
from pimflow.targets import target_names, target_text

_NUMBER = re.compile(r"(?<![\w.\"])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.\"])")
_STRING = re.compile(r'"[^"]*"')
_ODD = ("0", "-1", "1", "2", "3", "1e308", "1e-308", "1000000000", "10000000000000000000000", "nan", "inf", "-0.0",
        "true", '"text"', "[]", "[" * 2000, "9" * 5000, "0.5", "65536", "1e12", "1e-9", "4294967296", "{}",
        "2024-01-01")  # fmt: skip
_LAYERS = ("--conv=ic=64,oc=64,h=28,w=28,k=3,p=1", "--matmul=m=1,k=1280,n=1000", "--conv=ic=3,oc=5,h=7,w=9,k=1")


@cache
def _texts() -> tuple[str, ...]:
    return tuple(target_text(name) for name in target_names())


def _numbers(line: str) -> list[re.Match[str]]:
    """The numbers in a line of a file, outside of strings and comments."""
    return list(_NUMBER.finditer(_STRING.sub(lambda found: '"' * len(found[0]), line.partition("#")[0])))


def case(seed: int, folder: Path) -> Verdict:
    """Change one number of a shipped file (or a byte), and use it for a layer or a compilation."""
    rng = Random(seed)
    text = rng.choice(_texts())
    split = text.splitlines()
    index, odd = rng.choice([index for index, line in enumerate(split) if _numbers(line)]), rng.choice(_ODD)
    code, place = split[index].partition("#")[0], rng.choice(_numbers(split[index]))
    split[index] = code[: place.start()] + odd + code[place.end() :]
    path, out = folder / "machine.toml", folder / "out"
    what = f"{code.split('=')[0].strip()} = {odd[:24]}"
    if rng.random() < 0.1:
        what = "bytes"
        path.write_bytes(damaged(text.encode(), rng))
    else:
        path.write_text("\n".join(split), encoding="utf-8")
    timing = rng.choice(("artifact", "strict"))
    verb = ["layer", rng.choice(_LAYERS), "--target", str(path), "--timing", timing]
    if rng.random() < 0.25:
        verb = ["compile", "zoo:toy", "-o", str(out), "--policy", "pimflow", "--target", str(path), "--timing", timing]
    as_json = ["--json"] if rng.random() < 0.5 else []
    ended = apart(lambda: main([*verb, *as_json]), limit_bytes=3 << 30)
    if ended.complaint:
        return Verdict("fails badly", f"{what}, {verb[0]} {timing}: {ended.complaint}")
    if re.search(r"\b(inf|nan|Infinity|NaN)\b", ended.out):
        return Verdict("not finite", f"{what}, {verb[0]} {timing}: figures are not finite")
    return Verdict(f"exit {ended.code}")

"""Mutants of models through the command line: refused in one line, or compiled into what ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path
from random import Random

from fuzz.apart import Ended, apart
from fuzz.models import any_model
from fuzz.mutators import mutant
from fuzz.oracle import difference, drawn_inputs, run, session
from fuzz.verdict import Verdict
from pimflow.cli import main
from pimflow.search import policies


def case(seed: int, folder: Path) -> Verdict:
    """Compile a mutant; if that succeeds, compare it with the original, by ONNX Runtime and by `verify`."""
    rng = Random(seed)
    name, model = any_model(rng)
    how, data = mutant(model, rng)
    path, out = folder / "mutant.onnx", folder / "out"
    path.write_bytes(data)
    policy = rng.choice(sorted(policies()))
    shapes = ["--shape", f"N={rng.choice(('1', '2', '9' * 10))}"] if rng.random() < 0.1 else []
    compiled = apart(lambda: main(["compile", str(path), "-o", str(out), "--policy", policy, *shapes, "--no-cache"]))
    label = f"{how} of {name}, {policy}"
    if compiled.complaint:
        return Verdict("compile fails badly", f"{label}: {compiled.complaint}")
    if compiled.code == 2 and out.exists():
        return Verdict("compile leaves a folder", f"{label}: exit 2, and {out.name} is there")
    original = apart(lambda: _runs(str(path), seed))
    runs = original.code == 0 and not original.problem
    if compiled.code == 2:
        return Verdict("refused, though it runs" if runs else "refused, as it does not run")
    if not runs:
        return _unrunnable(label, original)
    return _compared(label, path, out, seed)


def _runs(path: str, seed: int) -> int:
    loaded = session(path)
    run(loaded, drawn_inputs(loaded, seed))
    return 0


def _unrunnable(label: str, original: Ended) -> Verdict:
    why = original.problem or "ONNX Runtime refuses it"
    if "drawn_inputs" in original.err:  # too large to try, or with inputs that cannot be drawn
        return Verdict("compiled, cannot be tried")
    return Verdict("compiled, cannot run", f"{label}: compiled with exit 0, but: {why}")


def _compared(label: str, path: Path, out: Path, seed: int) -> Verdict:
    values = apart(lambda: [difference(str(path), str(out / "model.onnx"), seed)])
    if values.code != 0 or values.result is None:
        alone = apart(lambda: _runs(str(out / "model.onnx"), seed))
        if "allocate" in values.err and alone.code == 0 and not alone.problem:  # either fits, but not both at once
            return Verdict("compiled, too large to compare")
        return Verdict("result does not run", f"{label}: {values.problem or values.err[-200:]}")
    if values.result[0]:
        return Verdict("wrong values", f"{label}: {values.result[0]}")
    verified = apart(lambda: main(["verify", str(out)]))
    if verified.complaint or verified.code != 0:
        return Verdict("verify fails", f"{label}: {verified.complaint or verified.out[-200:] or verified.err[-200:]}")
    return Verdict("compiled, values equal")

"""Random graphs under random prices: sooner or later the search picks every plan that it can pick."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from random import Random

import pimflow.search.solver
from fuzz.lanes.graphs import checked, judged
from fuzz.models import any_model
from fuzz.verdict import Verdict
from pimflow.ir import Decision
from pimflow.search.pricing import Pricer


def case(seed: int, folder: Path) -> Verdict:
    """Compile a drawn or stored model under random prices."""
    return judged(lambda: _checked(seed, folder))


def _checked(seed: int, folder: Path) -> list[str]:
    pimflow.search.solver.__dict__["Pricer"] = _drawing_pricer(seed)  # this process belongs to the trial alone
    policies = ("auto", "auto", "pimflow", "md-dp", "pipeline")
    return checked(seed, folder, any_model(Random(seed))[1], policies)


def _drawing_pricer(seed: int) -> type[Pricer]:
    """Prices far below the host's own, drawn by seed and content; they favour and disfavour kinds of decisions."""
    favour = Random(seed)
    favours: dict[str, float] = {}

    class DrawingPricer(Pricer):
        def cost(self, decisions: tuple[Decision, ...], bound_us: float = math.inf) -> float | None:
            if super().cost(decisions) is None:
                return None
            kinds = "+".join(sorted({type(decision).__name__ for decision in decisions}))
            if kinds not in favours:
                favours[kinds] = favour.choice((0.05, 0.3, 1.0)) * (20 if kinds == "OnDevice" else 1)
            covered = sum(len(decision.nodes) for decision in decisions)
            drawn = hashlib.blake2b(f"{seed} {decisions}".encode(), digest_size=4).digest()
            return 1e-6 * favours[kinds] * covered * (1 + int.from_bytes(drawn, "little") / 2**32)

    return DrawingPricer

"""Strategies: how one aggregation is divided among clusters of ranks, their cores, and the cores' tasklets.

The three levels of parallelism, and the names of their choices, are PyGim's (Giannoula et al., SIGMETRICS 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pimflow.errors import OptionError
from pimflow.records import dataclass

Format = Literal["csr", "coo"]
CoreBalance = Literal["row", "nnz", "nnz-exact"]
"""What is balanced over cores: destinations, or edges, in whole rows or exactly (a row may then straddle two cores)."""
TaskletBalance = Literal["row", "nnz", "nnz-exact"]
"""What is balanced over tasklets, likewise."""
Sync = Literal["none", "lock-free", "lock-free-2", "lock"]
"""How tasklets that share a row add up: into partial rows that one tasklet adds at the end, or before the other rows,
or each one under a lock."""

_CHOICES: dict[Format, tuple[tuple[CoreBalance, ...], tuple[tuple[TaskletBalance, Sync], ...]]] = {
    "csr": (("row", "nnz"), (("row", "none"), ("nnz", "none"))),
    "coo": (
        ("nnz", "nnz-exact"),
        (("nnz", "none"), ("nnz-exact", "lock-free"), ("nnz-exact", "lock-free-2"), ("nnz-exact", "lock")),
    ),
}


@dataclass(frozen=True, order=True)
class Strategy:
    """One way to run an aggregation.

    Args:
        edge_parts: equal ranges of sources; each yields a partial result, and the host adds these up.
        feature_parts: groups of columns. Every pair of an edge part and a feature part is a cluster of ranks.
        format: the storage format of edges.
        cores, tasklets: what is balanced over a cluster's cores, and over a core's tasklets.
        sync: how tasklets that share a row add up.
    """

    edge_parts: int
    feature_parts: int
    format: Format
    cores: CoreBalance
    tasklets: TaskletBalance
    sync: Sync = "none"

    def __post_init__(self) -> None:
        if self.edge_parts < 1 or self.feature_parts < 1:
            raise OptionError(f"strategy {self} has no parts", "give 1 or more edge parts and feature parts")
        cores, tasklets = _CHOICES[self.format]
        if self.cores not in cores or (self.tasklets, self.sync) not in tasklets:
            raise OptionError(
                f"there is no strategy {self}",
                f"choose one of the {self.format.upper()} strategies, such as {next(strategies_of(1, self.format))}",
            )

    def __str__(self) -> str:
        words = [f"{self.edge_parts}x{self.feature_parts}", self.format, self.cores, self.tasklets]
        return " ".join([*words, *([self.sync] if self.sync != "none" else [])])

    @property
    def clusters(self) -> int:
        """Pairs of an edge part and a feature part."""
        return self.edge_parts * self.feature_parts

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """The strategy that `str` writes as, for example, "2x16 csr row nnz" or "1x32 coo nnz-exact nnz-exact lock".

        Raises:
            OptionError: the text is not a strategy.
        """
        for known in strategies_of(1):
            name = str(known).partition(" ")[2]
            parts, _, rest = text.strip().lower().partition(" ")
            edges, cross, features = parts.partition("x")
            if rest.split() == name.split() and cross and edges.isdecimal() and features.isdecimal():
                return cls(int(edges[:9]), int(features[:9]), known.format, known.cores, known.tasklets, known.sync)
        raise OptionError(
            f"unknown strategy {text!r}",
            "write edge x feature parts, format, balance of cores and of tasklets, as in '2x16 csr row nnz'",
        )


def strategies_of(ranks: int, *formats: Format) -> Iterator[Strategy]:
    """All strategies for a machine: clusters of equal numbers of ranks, with none left over.

    Args:
        ranks: ranks of the machine.
        formats: by default CSR and COO.
    """
    for form in formats or tuple(_CHOICES):
        cores, tasklets = _CHOICES[form]
        for clusters in (count for count in range(1, ranks + 1) if ranks % count == 0):
            for edge_parts in (count for count in range(1, clusters + 1) if clusters % count == 0):
                for core in cores:
                    for tasklet, sync in tasklets:
                        yield Strategy(edge_parts, clusters // edge_parts, form, core, tasklet, sync)

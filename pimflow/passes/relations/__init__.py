"""What the passes on relational layers share: which rows a value of edges refers to, and constants of such indices."""

from pimflow.passes.relations.rows import (
    Ints,
    Picked,
    RowWriter,
    gathered,
    index_of,
    keeps_rows,
    picked,
    reduced_axes,
    reduces_within_rows,
    rewritten,
    types_of_rows,
    unmarked,
)

__all__ = [
    "Ints",
    "Picked",
    "RowWriter",
    "gathered",
    "index_of",
    "keeps_rows",
    "picked",
    "reduced_axes",
    "reduces_within_rows",
    "rewritten",
    "types_of_rows",
    "unmarked",
]

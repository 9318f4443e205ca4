"""verification.json: the results of verifying an output folder, stored in it.

It is added to a complete folder, so the manifest cannot list it. It contains the digest of the manifest, so that the
results for another output are not taken for this one's, and a digest of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pimflow.bundle.files import sha256_of
from pimflow.bundle.manifest import MANIFEST, VERIFICATION, read_sealed, sealed
from pimflow.bundle.scratch import NEW, parent_lock, scratch_folder
from pimflow.data import decode, encode
from pimflow.errors import DataError, OutputError
from pimflow.records import dataclass
from pimflow.version import format_of


@dataclass(frozen=True)
class Check:
    """One comparison of a compiled model with its original.

    Args:
        how: what was run and on which inputs; checks with equal values replace one another.
        passed: whether values agree.
        told: the result as a clause, with the errors.
        versions: of the software that ran both.
        result: the document of the comparison.
    """

    how: Mapping[str, Any]
    passed: bool
    told: str
    versions: Mapping[str, str]
    result: Mapping[str, Any]


def output_digest(folder: Path) -> str:
    """The identity of an output: the SHA-256 of its manifest, which holds those of all files.

    Raises:
        OSError: it cannot be read.
    """
    return sha256_of(folder / MANIFEST)


def stored_checks(folder: Path, digest: str) -> tuple[Check, ...]:
    """The checks stored in a folder for the output with this digest; empty if there are none.

    Raises:
        OSError: the file cannot be read.
        ValueError, DataError: it is damaged.
    """
    if not (folder / VERIFICATION).exists():
        return ()
    document = read_sealed(folder / VERIFICATION)
    if document.get("format") != format_of("verification") or document.get("of") != digest:
        return ()
    return decode(tuple[Check, ...], document.get("checks"), path="checks")


def store_check(folder: Path, digest: str, check: Check) -> None:
    """Store a check in a folder, replacing an earlier one of the same thing.

    Raises:
        OutputError: the folder holds another output than the one with this digest, or cannot be written.
    """
    place = folder.absolute()
    try:
        with scratch_folder(place) as scratch, parent_lock(place):
            if output_digest(place) != digest:
                raise OutputError(f"{folder} was rewritten after it was read", "verify it again")
            others = tuple(other for other in _readable_checks(place, digest) if other.how != check.how)
            document = {"format": format_of("verification"), "of": digest, "checks": encode((*others, check))}
            (scratch / NEW / VERIFICATION).write_text(sealed(document), encoding="utf-8")
            (scratch / NEW / VERIFICATION).replace(place / VERIFICATION)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}", "check space and permissions") from None


def _readable_checks(folder: Path, digest: str) -> tuple[Check, ...]:
    try:
        return stored_checks(folder, digest)
    except (ValueError, DataError):  # damaged: the new check replaces it
        return ()

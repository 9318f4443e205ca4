"""Output folders of which something was changed on purpose."""

from __future__ import annotations

from pathlib import Path

from pimflow.bundle.manifest import MANIFEST, write_manifest


def sign(folder: Path) -> None:
    """Writes the manifest anew, so that it is not by its digests that a change is noticed."""
    (folder / MANIFEST).unlink()
    write_manifest(folder)

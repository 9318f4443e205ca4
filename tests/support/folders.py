"""Output folders that were deliberately changed."""

from __future__ import annotations

from pathlib import Path

from pimflow.bundle.manifest import MANIFEST, write_manifest


def sign(folder: Path) -> None:
    """Rewrite the manifest, so that its digests do not reveal the change."""
    (folder / MANIFEST).unlink()
    write_manifest(folder)

"""A cache of models that ran successfully in an earlier run, so that ONNX Runtime does not run them again."""

from __future__ import annotations

from pathlib import Path

from pimflow.search.price_cache import PriceCache, code_fingerprint, key_of

_CODE = ("frontend", "verify")


class RunCache:
    """Successful runs of models, as read and written by this code, with one version of ONNX Runtime.

    Args:
        folder: where the file is; None caches nothing.
        runtime: the version of ONNX Runtime.
    """

    def __init__(self, folder: Path | None, runtime: str) -> None:
        scope = f"runs\n{code_fingerprint(_CODE)}\n{runtime}" if folder else ""
        self._table = PriceCache(folder, scope)

    @property
    def is_enabled(self) -> bool:
        """Whether runs are cached at all."""
        return self._table.path is not None

    def has(self, *model: object) -> bool:
        """Whether a model is known to run, by everything that its run depends on."""
        return _key(model) in self._table.texts

    def put(self, *model: object) -> None:
        """Record that a model ran, and write it to disk."""
        if self.is_enabled:
            self._table.put_text(_key(model), "ran")
            self._table.flush()


def _key(model: tuple[object, ...]) -> str:
    return key_of("\n".join(map(repr, model)))

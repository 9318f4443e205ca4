"""The source of a model: a file, a name of the zoo, or an ONNX model in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimflow.bundle.stamps import NOTHING_SEEN, digest_of, recall, stamps_of
from pimflow.errors import ArgumentError, ModelError, OptionError, did_you_mean, kind_of
from pimflow.onnxio.export import ModelContent, SplitModel
from pimflow.records import dataclass
from pimflow.sparse import Graph as Adjacency

if TYPE_CHECKING:
    import onnx

ZOO_PREFIX = "zoo:"


@dataclass(frozen=True)
class ModelSource:
    """One model as the user gave it. Exactly one of `path`, `zoo` and `given` is set.

    A relative path stays that of the same file if the process changes its current folder.
    """

    name: str
    path: Path | None = None
    zoo: str | None = None
    given: onnx.ModelProto | bytes | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_folder", _current_folder() if self.path is not None else None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_held"}

    @property
    def content(self) -> ModelContent:
        """The input of the frontend and of ONNX Runtime: the path, or the model in memory; the large constants of a zoo
        model are held apart from it."""
        return self._held if self.path is None else str(self._place(self.path))

    def _place(self, path: Path) -> Path:
        """The path as it was given, or from the root if the current folder is another one by now."""
        folder: str | None = vars(self)["_folder"]
        return path if folder is None or folder == _current_folder() else Path(folder, path)

    @cached_property
    def _held(self) -> SplitModel | onnx.ModelProto | bytes:
        if self.zoo is not None:
            import pimflow_zoo

            return SplitModel.of(*pimflow_zoo.build_apart(self.zoo))
        assert self.given is not None
        return self.given

    @property
    def adjacency(self) -> Adjacency | None:
        """The graph that comes with a graph network of the zoo; None for any other model."""
        if self.zoo is None:
            return None
        import pimflow_zoo

        edges = pimflow_zoo.graph(self.zoo)
        if edges is None:
            return None
        return Adjacency.from_edge_index(edges.index, edges.vertices, edge_type=edges.types, where=self.text)

    @property
    def text(self) -> str:
        """The name to give again: a path, or zoo:NAME."""
        if self.path is not None:
            return str(self.path)
        return f"{ZOO_PREFIX}{self.zoo}" if self.zoo is not None else self.name

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the model's bytes: of the file alone, if weights are in external files.

        For a model of the zoo, of the file that `pimflow zoo export` writes.
        """
        if self.zoo is not None:
            import pimflow_zoo

            return str(pimflow_zoo.SHA256[self.zoo])
        vars(self)["_stamp"] = self._stamp_now()
        content = self.as_file()
        return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else digest_of(Path(str(content)))

    def recall(self, seen: Mapping[str, str]) -> None:
        """Takes the digest of a file from an earlier run if the file has not changed since.

        Args:
            seen: digests by stamp, from `stamps` of earlier runs.

        Raises:
            OSError: the file cannot be read.
        """
        if self.path is not None and seen:
            recall(self._place(self.path), seen)

    @property
    def stamps(self) -> Mapping[str, str]:
        """The digest by the stamp of the file, for later runs, if the file is still the one that was read."""
        if self.path is None or self._stamp_now() != vars(self).get("_stamp"):
            return NOTHING_SEEN
        with suppress(OSError):  # it was removed a moment ago
            return stamps_of(self._place(self.path))
        return NOTHING_SEEN

    @property
    def is_whole(self) -> bool:
        """Whether the file is known to have no external data, from when it was read."""
        return bool(vars(self).get("_is_whole"))

    def note_whole(self) -> None:
        """Notes that the file has no external data, so that it is not parsed again to find out."""
        vars(self)["_is_whole"] = True

    def check_unchanged(self) -> None:
        """Check that the model is still the one whose digest was taken first.

        Raises:
            ModelError: its file is gone or was changed since, or the model in memory was changed.
        """
        first = self.sha256
        if isinstance(self.given, bytes) or self.zoo is not None:
            return
        if self.path is not None and self._stamp_now() == vars(self)["_stamp"] is not None:
            return
        fresh = replace(self, path=None if self.path is None else self._place(self.path))
        try:
            same = fresh.sha256 == first
        except OSError as error:
            raise ModelError(
                f"{self.text}, from which the model was compiled, cannot be read: {error.strerror}",
                "put the file back, or compile another one",
            ) from None
        if not same:
            raise ModelError(f"{self.text} was changed since it was compiled", "compile it again")

    def _stamp_now(self) -> tuple[int, ...] | None:
        """What identifies the state of the model's file without reading it; None if there is no file."""
        if self.path is None:
            return None
        try:
            status = self._place(self.path).stat()
        except (OSError, ValueError):
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def as_file(self) -> str | bytes | SplitModel:
        """The form that ONNX Runtime opens: the path, the bytes of the model as a file (which also sets the digest), or
        a model of the zoo.

        The bytes are not cached, because there may be many.
        """
        content = self.content
        if isinstance(content, (str, SplitModel)):
            return content
        data = onnx_bytes(content)
        vars(self).setdefault("sha256", hashlib.sha256(data).hexdigest())
        return data

    def in_newer_opset(self, opset: int) -> ModelSource | None:
        """The same model in another opset of the default domain; None if ONNX's converter cannot convert it."""
        from pimflow.onnxio.newer_opset import in_newer_opset

        content = self.content
        if isinstance(content, SplitModel):
            return None  # zoo models are in a new opset already
        found = in_newer_opset(content, opset)
        return None if found is None else replace(self, path=None, given=found)


def _current_folder() -> str | None:
    """The current folder; None if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def onnx_bytes(model: bytes | onnx.ModelProto) -> bytes:
    """A model in memory as the bytes of an ONNX file; equal models give equal bytes."""
    return model if isinstance(model, bytes) else model.SerializeToString(deterministic=True)


def model_source(model: str | Path | bytes | onnx.ModelProto | ModelSource) -> ModelSource:
    """The source that `model` names: a path, "zoo:NAME", serialized bytes, or an ONNX model in memory.

    Raises:
        OptionError: the zoo has no such model.
        ModelError: a text is not the name of a file, but close to that of a zoo model.
        ArgumentError: it is none of these.
    """
    if isinstance(model, ModelSource):
        return model
    if isinstance(model, str) and model.lower().startswith(ZOO_PREFIX):
        return ModelSource(*_zoo_name(model[len(ZOO_PREFIX) :]))
    if isinstance(model, (str, os.PathLike)):
        path = Path(os.fsdecode(model))
        if isinstance(model, str):
            _check_not_a_zoo_name(path)
        return ModelSource(path.stem or "model", path=path)
    if isinstance(model, bytes):
        return ModelSource("model", given=model)
    if not hasattr(model, "SerializeToString") or not hasattr(model, "graph"):
        hint = f'give a path, "{ZOO_PREFIX}NAME", the bytes of an ONNX file, or an ONNX model'
        raise ArgumentError(f"'model' is {kind_of(model)}", hint)
    return ModelSource(model.graph.name or "model", given=model)


def _check_not_a_zoo_name(path: Path) -> None:
    """Refuse the name of a zoo model given without its prefix, even if slightly misspelled."""
    if os.path.lexists(path) or path.parent != Path():
        return
    import pimflow_zoo

    name = path.name.lower().removesuffix(".onnx")
    models = (*pimflow_zoo.names(), *pimflow_zoo.networks())
    if did_you_mean(name, models):
        known = (f"{ZOO_PREFIX}{model}" for model in models)
        raise ModelError(f"no such file: {path}", did_you_mean(f"{ZOO_PREFIX}{name}", known))


def _zoo_name(name: str) -> tuple[str, None, str]:
    import pimflow_zoo

    try:
        known: str = pimflow_zoo.entry(name).name
    except LookupError as error:
        raise OptionError(str(error.args[0]), "see `pimflow zoo list`") from None
    return known, None, known

"""Where a model comes from: a file, a name of the zoo, or an ONNX model in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pimflow.bundle.files import sha256_of
from pimflow.errors import ModelError, OptionError, did_you_mean

if TYPE_CHECKING:
    import onnx

ZOO_PREFIX = "zoo:"


@dataclass(frozen=True)
class ModelSource:
    """One model as the user gave it. Exactly one of `path`, `zoo` and `given` is set."""

    name: str
    path: Path | None = None
    zoo: str | None = None
    given: onnx.ModelProto | bytes | None = None

    @cached_property
    def content(self) -> str | bytes | onnx.ModelProto:
        """What the frontend and ONNX Runtime read: the path, or the model in memory."""
        if self.path is not None:
            return str(self.path)
        if self.zoo is not None:
            import pimflow_zoo

            model: onnx.ModelProto = pimflow_zoo.build(self.zoo)
            return model
        assert self.given is not None
        return self.given

    @property
    def text(self) -> str:
        """How to name it again: a path, or zoo:NAME."""
        if self.path is not None:
            return str(self.path)
        return f"{ZOO_PREFIX}{self.zoo}" if self.zoo is not None else self.name

    def digest(self) -> str | None:
        """SHA-256 of the model's bytes (of the file alone, where weights are in external files).

        None for a model of the zoo: its name and the version of pimflow say what it is.
        """
        if self.zoo is not None:
            return None
        content = self.content
        if not isinstance(content, str):
            data = content if isinstance(content, bytes) else content.SerializeToString(deterministic=True)
            return hashlib.sha256(data).hexdigest()
        return sha256_of(Path(content))


def model_source(model: str | Path | bytes | onnx.ModelProto | ModelSource) -> ModelSource:
    """The source that `model` names: a path, "zoo:NAME", serialized bytes, or an ONNX model in memory.

    Raises:
        OptionError: the zoo has no such model.
        ModelError: a text names no file, but nearly a model of the zoo.
    """
    if isinstance(model, ModelSource):
        return model
    if isinstance(model, str) and model.lower().startswith(ZOO_PREFIX):
        return ModelSource(*_zoo_name(model[len(ZOO_PREFIX) :]))
    if isinstance(model, (str, Path)):
        path = Path(model)
        if isinstance(model, str):
            _check_not_of_zoo(path)
        return ModelSource(path.stem or "model", path=path)
    if isinstance(model, bytes):
        return ModelSource("model", given=model)
    return ModelSource(model.graph.name or "model", given=model)


def _check_not_of_zoo(path: Path) -> None:
    """Refuses the name of a zoo model that was given without its prefix, or nearly so."""
    if path.exists() or path.parent != Path():
        return
    import pimflow_zoo

    name = path.name.lower().removesuffix(".onnx")
    if did_you_mean(name, pimflow_zoo.names()):
        known = (f"{ZOO_PREFIX}{model}" for model in pimflow_zoo.names())
        raise ModelError(f"no such file: {path}", did_you_mean(f"{ZOO_PREFIX}{name}", known))


def _zoo_name(name: str) -> tuple[str, None, str]:
    import pimflow_zoo

    try:
        known: str = pimflow_zoo.entry(name).name
    except LookupError as error:
        raise OptionError(str(error.args[0]), "see `pimflow zoo list`") from None
    return known, None, known

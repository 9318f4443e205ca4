"""Validates JSON documents against their schemas in docs/schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import referencing

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
COMMON = "common"  # definitions that several schemas share


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Every schema by its kind of document."""
    files = {path.name.removesuffix(".schema.json"): path for path in sorted(FOLDER.glob("*.schema.json"))}
    return {kind: json.loads(path.read_text()) for kind, path in files.items()}


@cache
def _validator(kind: str) -> Any:
    resources = [(schema["$id"], referencing.Resource.from_contents(schema)) for schema in schemas().values()]
    return jsonschema.Draft202012Validator(schemas()[kind], registry=referencing.Registry().with_resources(resources))


def check(document: Any, kind: str | None = None) -> None:
    """Validate a document against its schema: that of its kind, or the one that its "format" names."""
    kind = kind or document["format"].removeprefix("pimflow-").partition("/")[0]
    error = jsonschema.exceptions.best_match(_validator(kind).iter_errors(document))
    assert error is None, f"{kind}: {error.json_path}: {error.message}"

"""Single files: written atomically, with the folders that contain them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from pimflow.bundle.files import json_text, parent_folders, read_packed, write_line, write_new_file, write_records
from pimflow.errors import OutputError


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_new_file(tmp_path / "a" / "b" / "file", b"data")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"data"


def test_created_folders_are_removed_if_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()

    def fail() -> None:
        with parent_folders(tmp_path / "there" / "a" / "b" / "file"):
            assert (tmp_path / "there" / "a" / "b").is_dir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_file_in_the_way_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        write_new_file(tmp_path / "file" / "more", b"data")


def test_a_packed_file_must_not_unpack_to_far_more_than_its_size(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"[]," * 1000))
    assert read_packed(path) == b"[]," * 1000
    for packed, words in (
        (gzip.compress(bytes(32 << 20)), "unpack to more than"),
        (gzip.compress(b"whole")[:-3], "cut short"),
        (b"no gzip", "broken"),
    ):
        path.write_bytes(packed)
        with pytest.raises(ValueError, match=words):
            read_packed(path)


@pytest.mark.parametrize("count", [0, 1, 1000, 1001, 3000])
def test_a_line_written_in_pieces_is_complete(tmp_path: Path, count: int) -> None:
    document = {"rows": [{"x": [i, None], "né": 1.5} for i in range(count)], "n": {"y": [[]]}, "last": [[1, 2]]}
    for part in ({}, document, {"only": document["rows"]}):
        write_line(tmp_path / "line", part)
        assert (tmp_path / "line").read_text(encoding="utf-8") == json_text(part, indent=None)
    write_line(tmp_path / "line", {**document, "rows": (row for row in document["rows"])})
    assert (tmp_path / "line").read_text(encoding="utf-8") == json_text(document, indent=None)


def test_records_have_a_line_each(tmp_path: Path) -> None:
    document = {
        "n": 1,
        "rows": [{"x": [1, {}], "name": 'a"é\n'}, {}],
        "by": {"name": {"k": [2]}},
        "none": [],
        "last": {},
    }
    write_records(tmp_path / "deep", document, depth=2)
    text = (tmp_path / "deep").read_text(encoding="utf-8")
    assert json.loads(text) == document
    assert text.splitlines() == [
        "{",
        '  "n": 1,',
        '  "rows": [',
        '    {"x": [1, {}], "name": "a\\"\\u00e9\\n"},',
        "    {}",
        "  ],",
        '  "by": {',
        '    "name": {"k": [2]}',
        "  },",
        '  "none": [],',
        '  "last": {}',
        "}",
    ]
    lazy = {key: iter(value) if isinstance(value, list) else value for key, value in document.items()}
    write_records(tmp_path / "lazy", lazy, depth=2)
    assert (tmp_path / "lazy").read_text(encoding="utf-8") == text
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_records(tmp_path / "nan", {"rows": [{"x": float("nan")}]}, depth=2)

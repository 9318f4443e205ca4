"""The price cache on disk: round trips, damage of every kind, several writers at once."""

from __future__ import annotations

import errno
import importlib
import os
import re
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import pytest

from pimflow.codegen.work import MATRIX_PROBLEMS
from pimflow.ir import Graph, Node, Op, Refusal
from pimflow.ir.registry import Registry, scratch_registrations
from pimflow.runtime.backends import HOSTS, UNITS
from pimflow.runtime.gpu.work import GPU_WORK
from pimflow.runtime.newton.profiles import PROFILES
from pimflow.search.price_cache import (
    CacheWarning,
    PriceCache,
    _package_fingerprint,
    _sources_of,
    cache_clear,
    cache_info,
    code_fingerprint,
    key_of,
    open_user_cache,
)
from pimflow.targets.schema import KINDS
from support.homeless import leave_home

FULL = Path("/dev/full")


def fill(folder: Path, count: int = 50, scope: str = "scope") -> dict[str, float | None]:
    table = PriceCache(folder, scope)
    costs = {key_of(f"candidate {index}"): index / 3 if index % 7 else None for index in range(count)}
    for key, cost in costs.items():
        table.put(key, cost)
    table.flush()
    return costs


def table_file(folder: Path) -> Path:
    (path,) = folder.glob("*.prices")
    return path


def test_stored_costs_are_found_exactly(tmp_path: Path) -> None:
    costs = fill(tmp_path)
    table = PriceCache(tmp_path, "scope")
    assert {key: table.get(key) for key in costs} == costs
    assert len(set(costs.values())) > 10
    assert key_of("something else") not in table
    assert table.get(key_of("something else"), 9.0) == 9.0


def test_first_cost_of_a_candidate_is_kept(tmp_path: Path) -> None:
    table = PriceCache(tmp_path, "scope")
    table.put("a" * 32, 1.0)
    table.put("a" * 32, 2.0)
    assert table.get("a" * 32) == 1.0
    table.flush()
    assert PriceCache(tmp_path, "scope").get("a" * 32) == 1.0
    assert cache_info(tmp_path).bytes < 120, "and written once"


def test_texts_are_found_and_damaged_ones_are_dropped(tmp_path: Path) -> None:
    table = PriceCache(tmp_path, "scope")
    table.put("a" * 32, 1.0)
    table.put_text("a" * 32, '{"order": "rows"}')
    table.put_text("b" * 32, "= none 0x1p0")
    table.put_text("b" * 32, "second")
    table.flush()
    kept = {"a" * 32: '{"order": "rows"}', "b" * 32: "= none 0x1p0"}
    again = PriceCache(tmp_path, "scope")
    assert (again.texts, again.get("a" * 32), len(again)) == (kept, 1.0, 1)
    assert cache_info(tmp_path).records == 3
    path = table_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"rows", b"cols"))
    with pytest.warns(CacheWarning, match="1 damaged record"):
        mended = PriceCache(tmp_path, "scope")
    assert (mended.texts, mended.get("a" * 32)) == ({"b" * 32: "= none 0x1p0"}, 1.0)
    assert PriceCache(tmp_path, "scope").texts == mended.texts, "and swept out of the file"


def test_another_scope_has_other_costs(tmp_path: Path) -> None:
    costs = fill(tmp_path)
    other = PriceCache(tmp_path, "another target")
    assert not any(key in other for key in costs)


def test_memory_only_table_touches_no_disk(tmp_path: Path) -> None:
    table = PriceCache(None, "scope")
    table.put("a" * 32, 1.5)
    table.flush()
    assert table.get("a" * 32) == 1.5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [1, 7, 31])
def test_any_flipped_byte_loses_one_or_two_records_and_never_lies(tmp_path: Path, step: int) -> None:
    costs = fill(tmp_path, count=12)
    path = table_file(tmp_path)
    good = path.read_bytes()
    for position in range(0, len(good), step):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x15]) + good[position + 1 :])
        with pytest.warns(CacheWarning, match="damaged"):
            table = PriceCache(tmp_path, "scope")
        assert len(table) >= len(costs) - 2
        for key, cost in costs.items():
            assert key not in table or table.get(key) == cost


def test_truncated_table_keeps_the_whole_lines_and_can_be_added_to(tmp_path: Path) -> None:
    costs = fill(tmp_path, count=10)
    path = table_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(CacheWarning, match="1 damaged"):
        table = PriceCache(tmp_path, "scope")
    last = list(costs)[-1]
    assert last not in table
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(PriceCache(tmp_path, "scope")) == 9, "repaired, so there is one warning"
    table.put(last, costs[last])
    table.flush()
    again = PriceCache(tmp_path, "scope")
    assert {key: again.get(key) for key in costs} == costs


@pytest.mark.parametrize("content", [b"\x00" * 4096, b"\xff\xfe garbage\n" * 30, b"\n\n\n", b" \n"])
def test_garbage_is_ignored(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path)
    table_file(tmp_path).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        table = PriceCache(tmp_path, "scope")
    assert len(table) == 0


def test_torn_line_of_an_interrupted_writer_does_not_swallow_the_next(tmp_path: Path) -> None:
    fill(tmp_path, count=3)
    table = PriceCache(tmp_path, "scope")
    with table_file(tmp_path).open("ab") as file:
        file.write(b"0123456789abcdef")
    table.put("9" * 32, 9.0)
    table.flush()
    with pytest.warns(CacheWarning, match="1 damaged"):
        again = PriceCache(tmp_path, "scope")
    assert again.get("9" * 32) == 9.0
    assert [path.suffix for path in tmp_path.iterdir()] == [".prices"]


def test_folder_in_place_of_the_file_is_one_warning(tmp_path: Path) -> None:
    fill(tmp_path)
    path = table_file(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.warns(CacheWarning, match="cannot read"):
        table = PriceCache(tmp_path, "scope")
    table.put("b" * 32, 2.0)
    table.flush()
    assert table.get("b" * 32) == 2.0


def test_file_in_place_of_the_folder_is_one_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("not a folder")
    said = f"the price cache in {re.escape(str(blocked))}: .*; continuing without it"  # once, whatever is cached there
    with pytest.warns(CacheWarning, match=said) as caught:
        fill(blocked)
    assert len(caught) == 1
    table = PriceCache(None, "scope")
    table.put("c" * 32, 3.0)
    assert table.get("c" * 32) == 3.0
    assert blocked.read_text() == "not a folder"


@pytest.mark.skipif(not FULL.exists(), reason="Linux only")
def test_full_disk_is_one_warning(tmp_path: Path) -> None:
    table = PriceCache(tmp_path, "scope")
    assert table.path is not None
    table.path.symlink_to(FULL)
    table.put("d" * 32, 4.0)
    with pytest.warns(CacheWarning, match="No space left"):
        table.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.put("e" * 32, 5.0)
        table.flush()
    assert (table.get("d" * 32), table.get("e" * 32)) == (4.0, 5.0)


def test_table_starts_over_when_too_big(tmp_path: Path) -> None:
    fill(tmp_path)
    table = PriceCache(tmp_path, "scope", most_bytes=table_file(tmp_path).stat().st_size + 10)
    table.put("f" * 32, 6.0)
    table.flush()
    assert table_file(tmp_path).stat().st_size < 100
    assert PriceCache(tmp_path, "scope").get("f" * 32) == 6.0


WRITER = """
import sys
from pathlib import Path
from pimflow.search.price_cache import PriceCache, key_of
folder, writer = Path(sys.argv[1]), int(sys.argv[2])
table = PriceCache(folder, "scope")
for index in range(400):
    table.put(key_of(f"{writer} {index}"), writer + index / 7)
    if index % 3 == 0:
        table.flush()
    if index % 20 == 0:
        PriceCache(folder, "scope")  # warnings are errors here: what is read is never half written
table.flush()
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-W", "error::UserWarning", "-c", WRITER, str(tmp_path), str(writer)])
        for writer in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = PriceCache(tmp_path, "scope")
    assert len(table) == 1600
    assert table.get(key_of("3 399")) == 3 + 399 / 7


def test_clear_and_info(tmp_path: Path) -> None:
    fill(tmp_path, count=5)
    fill(tmp_path, count=6, scope="other")
    (tmp_path / "notes.txt").write_text("mine")
    info = cache_info(tmp_path)
    assert (info.files, info.records, info.damaged) == (2, 11, 0)
    assert info.bytes > 11 * 40
    assert cache_clear(tmp_path) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert cache_info(tmp_path).files == 0
    assert cache_clear(tmp_path / "missing") == 0


def test_files_that_cannot_be_removed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, count=5)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.warns(CacheWarning, match="1 of the files in .* cannot be removed: Permission denied"):
        assert cache_clear(tmp_path) == 0


def test_fingerprint_is_stable_in_one_process() -> None:
    assert code_fingerprint() == code_fingerprint()
    assert len(code_fingerprint()) == 32


def test_fingerprint_covers_modules_outside_the_package_that_register_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def fingerprint(source: str) -> str:
        (tmp_path / "plugged_in.py").write_text(source)
        module = importlib.import_module("plugged_in")
        with scratch_registrations():
            GPU_WORK.left_out.add(Op, "not a function, so of no module")
            MATRIX_PROBLEMS.add(Op, module.rule)
            return code_fingerprint()

    base = code_fingerprint()
    plugged = fingerprint("def rule(graph, node, op): return None\n")
    assert plugged != base
    assert fingerprint("def rule(graph, node, op): return None\n") == plugged
    assert fingerprint("def rule(graph, node, op): return 1\n") != plugged
    assert code_fingerprint() == base
    del sys.modules["plugged_in"]


def test_fingerprint_is_of_the_sources_and_data_of_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pimflow.search.price_cache.__file__", str(tmp_path / "search" / "price_cache.py"))
    (tmp_path / "ir" / "ops").mkdir(parents=True)
    (tmp_path / "frontend").mkdir()

    monkeypatch.setattr("pimflow.search.price_cache._sources_of", _sources_of.__wrapped__)  # read each time

    def fingerprint(*also: str) -> str:
        return _package_fingerprint.__wrapped__(also)

    seen = [fingerprint()]
    for change in (
        lambda: (tmp_path / "ir" / "a.py").write_text("1"),
        lambda: (tmp_path / "ir" / "a.py").write_text("2"),
        lambda: (tmp_path / "ir" / "a.py").rename(tmp_path / "ir" / "b.py"),
        lambda: (tmp_path / "ir" / "b.py").rename(tmp_path / "ir" / "ops" / "b.py"),
        lambda: (tmp_path / "ir" / "machine.toml").write_text("2"),
    ):
        change()
        seen.append(fingerprint())
    assert len(set(seen)) == len(seen)
    beside = fingerprint("frontend")
    (tmp_path / "frontend" / "c.py").touch()
    (tmp_path / "ir" / "notes.txt").touch()
    assert fingerprint() == seen[-1]
    assert fingerprint("frontend") != beside


@pytest.mark.parametrize("registry", [UNITS, HOSTS, PROFILES], ids=lambda registry: registry.what)
def test_fingerprint_covers_modules_outside_the_package_that_add_to_a_machine(
    registry: Registry[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made_up_unit.py").write_text("class Spec: ...\nclass Made: ...\n")
    module = importlib.import_module("made_up_unit")
    base = code_fingerprint()
    with scratch_registrations():
        registry.add("made up", module.Made)
        by_backend = code_fingerprint()
    assert code_fingerprint() == base
    monkeypatch.setitem(KINDS, "made up", module.Spec)
    assert code_fingerprint() == by_backend != base
    del sys.modules["made_up_unit"]


def test_fingerprint_trusts_no_code_that_it_cannot_read() -> None:
    def from_a_prompt(graph: Graph, node: Node, op: Op) -> Refusal:
        return Refusal("never asked")

    from_a_prompt.__module__ = "no_such_module"
    with scratch_registrations():
        MATRIX_PROBLEMS.add(Op, from_a_prompt)
        here = code_fingerprint()
    program = (
        "from pimflow.codegen.work import MATRIX_PROBLEMS\nfrom pimflow.ir import Op\n"
        "from pimflow.search.price_cache import code_fingerprint\ndef rule(): ...\n"
        "rule.__module__ = 'no_such_module'\nMATRIX_PROBLEMS.add(Op, rule)\nprint(code_fingerprint())"
    )
    elsewhere = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert elsewhere.strip() != here


def test_without_a_home_folder_the_table_lives_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_home(monkeypatch)
    with pytest.warns(CacheWarning, match="set PIMFLOW_CACHE_DIR"):
        table = open_user_cache("scope")
    assert table.path is None


@pytest.mark.parametrize("value", ["nan", "inf", "-0x1.8p+1", "text", "", "0x1p+99999"])
def test_a_record_whose_value_no_candidate_can_cost_is_dropped(value: str, tmp_path: Path) -> None:
    table = fill(tmp_path, 3)
    body = f"{'e' * 32} {value}"
    with table_file(tmp_path).open("ab") as file:
        file.write(f"{body} {zlib.crc32(body.encode()):08x}\n".encode())
    with pytest.warns(CacheWarning, match="has 1 damaged record, now ignored"):
        found = PriceCache(tmp_path, "scope")
    assert len(found) == len(table)
    assert "e" * 32 not in found


def test_a_fifo_in_place_of_the_file_is_one_warning_and_no_wait(tmp_path: Path) -> None:
    path = PriceCache(tmp_path, "scope").path
    assert path is not None
    os.mkfifo(path)
    with pytest.warns(CacheWarning, match="not a regular file"):
        table = PriceCache(tmp_path, "scope")
    table.put("a" * 32, 1.0)
    table.flush()


def test_clear_removes_only_cache_files(tmp_path: Path) -> None:
    fill(tmp_path)
    ours = table_file(tmp_path)
    ours.with_suffix(".123.tmp").touch()  # left by a killed process
    others = {"mine.prices", "mine.profile", "a" * 32, "notes.tmp"}
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / f"{'b' * 32}.prices").symlink_to(tmp_path / "notes.tmp")
    assert cache_clear(tmp_path) == 2
    assert {path.name for path in tmp_path.iterdir()} == others | {f"{'b' * 32}.prices"}

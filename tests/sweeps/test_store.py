"""The store: its content survives any truncation, and foreign files are not taken for a store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pimflow.errors import OutputError
from pimflow.sweeps.store import Outcome, Store, is_store


def outcome(number: int, status: str = "ok") -> Outcome:
    return Outcome(f"key{number}", status, "", {"time_us": 1.5 * number}, {"pim.banks": 16}, 0.25)


def filled(path: Path, count: int) -> bytes:
    store = Store(path)
    with store.opened():
        for number in range(count):
            store.add(outcome(number), {"model": "m"})
    return path.read_bytes()


def read(path: Path) -> Store:
    store = Store(path)
    with store.opened():
        pass
    return store


def test_records_survive_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    filled(path, 3)
    store = read(path)
    assert [store[f"key{number}"] for number in range(3)] == [outcome(number) for number in range(3)]
    assert len(store) == 3
    assert store.damaged == 0
    assert is_store(path)


def test_a_truncated_file_keeps_complete_lines_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    whole = filled(path, 3)
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        assert is_store(path), cut
        store = Store(path)
        with store.opened():
            known = sum(end <= cut + 1 for end in ends[1:])  # a line may lack its newline
            assert len(store) == known, cut
            for number in range(3):
                store.add(outcome(number), {})
        again = read(path)
        assert [again[f"key{number}"] for number in range(3)] == [outcome(number) for number in range(3)], cut


def test_a_flipped_bit_loses_one_line(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    whole = bytearray(filled(path, 3))
    second = whole.index(b"key1")
    whole[second + 3] ^= 1
    path.write_bytes(whole)
    store = read(path)
    assert len(store) == 2
    assert store.damaged == 1
    assert "key1" not in store


def test_the_first_outcome_stays_and_a_failure_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    store = Store(path)
    with store.opened():
        store.add(outcome(1), {})
        store.add(Outcome("key1", "ok", "", {"time_us": 99.0}, {}, 0.0), {})
        store.add(outcome(2, "failed"), {})
        assert "key2" in store
    assert read(path)["key1"] == outcome(1)
    assert "key2" not in read(path)


@pytest.mark.parametrize(
    "content", [b"{}\n", b'{"format": "pimflow-sweep-store/1"}\n', b"mine\n", b"\xff\xfe", b"[]\n"]
)
def test_foreign_files_are_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_bytes(content)
    assert not is_store(path)
    with pytest.raises(OutputError):
        read(path)
    assert path.read_bytes() == content


def test_two_processes_cannot_share_a_store(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    with Store(path).opened(), pytest.raises(OutputError, match="another sweep is running"):
        read(path)


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    os.mkfifo(path)
    assert not is_store(path)
    with pytest.raises(OutputError):
        read(path)


def test_lines_are_readable(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    filled(path, 1)
    line = json.loads(path.read_text().splitlines()[1])
    assert line["point"] == {"model": "m"}
    assert line["figures"] == {"time_us": 0.0}

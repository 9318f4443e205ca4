"""Output folders: a user's changes survive, and so does the last output, through failures, kills and races."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pimflow.bundle import scratch
from pimflow.bundle.files import sha256_of
from pimflow.bundle.folder import check_output, find_output, new_output
from pimflow.bundle.manifest import MANIFEST, stamps, write_manifest
from pimflow.bundle.scratch import OutputWarning
from pimflow.errors import OutputError
from support.cli import Capture, assert_one_line, run

FORK = multiprocessing.get_context("fork")
NO_SPACE = OSError(28, "No space left on device")


def save(folder: Path, text: str) -> None:
    with new_output(folder) as made:
        fill(made, text)


def fill(made: Path, text: str) -> None:
    (made / "original").mkdir()
    for name in ("target.toml", "original/model.onnx"):
        (made / name).write_text(text)


def held(folder: Path) -> str:
    """The text that a complete output was saved with."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    assert names == ["manifest.json", "original/model.onnx", "target.toml"]
    (text,) = {(folder / name).read_text() for name in names[1:]}
    return text


def picture(folder: Path) -> dict[str, str]:
    """Everything below a folder: the kind and content of each entry."""
    return {path.relative_to(folder).as_posix(): content(path) for path in sorted(folder.rglob("*"))}


def content(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"link to {path.readlink()}"
    return path.read_text() if stat.S_ISREG(mode) else f"kind {stat.S_IFMT(mode)}"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output folder, alone in its parent folder."""
    save(tmp_path / "out", "first")
    return tmp_path / "out"


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """No warnings except those that a test expects."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutputWarning)
        yield


def alone(folder: Path) -> bool:
    return list(folder.parent.iterdir()) == [folder]


def change_same_size(folder: Path) -> str:
    """Change a file as an editor that preserves the timestamp does."""
    path = folder / "original/model.onnx"
    before = path.stat()
    path.write_text("fir5t")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return "original/model.onnx"


def replace_by_link(folder: Path) -> str:
    path = folder / "target.toml"
    path.rename(folder.parent / "mine.toml")
    path.symlink_to(folder.parent / "mine.toml")
    return "target.toml"


def edit_manifest(folder: Path) -> str:
    path = folder / "manifest.json"
    path.write_text(path.read_text() + "\n")
    return "manifest.json"


def does(make: Callable[[Path], object], name: str) -> Callable[[Path], str]:
    """Create an entry, replacing any of that name."""

    def change(folder: Path) -> str:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        return name

    return change


def remove_file(folder: Path) -> str:
    (folder / "target.toml").unlink()
    return "target.toml"


CHANGES: dict[str, Callable[[Path], str]] = {
    "a file of the same size": change_same_size,
    "a file replaced by a link to the same": replace_by_link,
    "the manifest": edit_manifest,
    "a file removed": remove_file,
    "a file added": does(lambda path: path.write_text("mine"), "original/notes.txt"),
    "an empty folder": does(Path.mkdir, "empty"),
    "an empty folder deep down": does(Path.mkdir, "original/empty"),
    "a FIFO": does(os.mkfifo, "pipe"),
    "a FIFO in a file's place": does(os.mkfifo, "target.toml"),
    "a dangling link": does(lambda path: path.symlink_to("nowhere"), "dangling"),
    "a link to a folder": does(lambda path: path.symlink_to("original"), "linked"),
    "a folder in a file's place": does(Path.mkdir, "target.toml"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_changed_output_is_refused_and_stays(change: Callable[[Path], str], out: Path) -> None:
    name = change(out)
    before = picture(out.parent)
    with pytest.raises(OutputError, match=f"{name} was added or changed"):
        check_output(out)
    with pytest.raises(OutputError, match=f"{name} was added or changed"):
        save(out, "second")
    assert picture(out.parent) == before


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_changes_made_while_pimflow_writes_survive(change: Callable[[Path], str], out: Path) -> None:
    def save_meanwhile() -> None:
        with new_output(out) as made:
            fill(made, "second")
            changed.append(change(out))
            pictures.append(picture(out))

    changed: list[str] = []
    pictures: list[dict[str, str]] = []
    with pytest.raises(OutputError, match="was added or changed"):
        save_meanwhile()
    assert picture(out) == pictures[0]
    assert not list(out.parent.glob(".*"))


def test_a_folder_created_while_pimflow_writes_survives(tmp_path: Path) -> None:
    def save_meanwhile() -> None:
        with new_output(tmp_path / "out") as made:
            fill(made, "second")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "thesis.txt").write_text("years of work")

    with pytest.raises(OutputError, match="not an output folder of pimflow"):
        save_meanwhile()
    assert picture(tmp_path) == {"out": f"kind {stat.S_IFDIR}", "out/thesis.txt": "years of work"}


Rename = Callable[[Path, Path], Path]


def rename_then(monkeypatch: pytest.MonkeyPatch, at: int, then: Callable[[Path], object]) -> None:
    """After the at-th rename, call `then` on the renamed folder, like a program that has it open."""

    def renamed(source: Path, target: Path) -> Path:
        place = rename(source, target)
        if next(count) == at:
            then(place)
        return place

    rename: Rename = Path.rename
    count = itertools.count(1)
    monkeypatch.setattr(Path, "rename", renamed)


def test_files_saved_while_the_folder_is_moved_aside_survive(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename_then(monkeypatch, 1, lambda old: (old / "notes.txt").write_text("mine"))
    with pytest.raises(OutputError, match=r"notes\.txt was added or changed"):
        save(out, "second")
    assert (out / "notes.txt").read_text() == "mine"
    assert alone(out)


@pytest.mark.parametrize("name", ["notes.txt", "original/notes.txt", "target.toml"])
def test_files_saved_into_the_replaced_folder_survive_with_a_warning(
    name: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(new: Path) -> None:
        (old,) = new.parent.glob(".out.*/old")
        (old / name).write_text("mine")

    rename_then(monkeypatch, 2, write)
    for text in ("second", "third"):  # reported again as long as it is there
        with pytest.warns(OutputWarning, match="was changed while it was being replaced") as caught:
            save(out, text)
        assert held(out) == text
        place = str(caught[0].message).rpartition(" ")[2]
        assert (Path(place) / name).read_text() == "mine"


def fail_renames(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
    def renamed(source: Path, target: Path) -> Path:
        if fails(next(count)):
            raise NO_SPACE
        return rename(source, target)

    rename: Rename = Path.rename
    count = itertools.count(1)
    monkeypatch.setattr(Path, "rename", renamed)


@pytest.mark.parametrize("at", [1, 2])
def test_the_old_output_survives_a_rename_that_fails(at: int, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_renames(monkeypatch, lambda count: count == at)
    with pytest.raises(OutputError, match="No space left on device"):
        save(out, "second")
    assert held(out) == "first"
    assert alone(out)


def test_nothing_is_left_if_the_only_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_renames(monkeypatch, lambda _: True)
    with pytest.raises(OutputError, match="No space left on device"):
        save(tmp_path / "out", "first")
    assert not list(tmp_path.iterdir())


def test_if_restoring_fails_the_error_names_the_place(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_renames(patch, lambda count: count > 1)
        with pytest.raises(OutputError, match="cannot put back") as caught:
            save(out, "second")
    place = str(caught.value).partition("it is in ")[2].partition(";")[0]
    assert held(Path(place)) == "first"
    with pytest.warns(OutputWarning, match="out has been restored"):
        check_output(out)
    assert held(out) == "first"
    assert alone(out)


STEPS = {
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"),
    *("os.listdir", "os.scandir", "fcntl.flock", "shutil.rmtree"),
}


def save_and_be_killed(folder: Path, text: str, at: int) -> None:
    """Kill the process with SIGKILL before its at-th disk operation."""

    def hook(event: str, _arguments: object) -> None:
        if event in STEPS and next(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    count = itertools.count(1)
    sys.addaudithook(hook)
    save(folder, text)


def exit_code(target: Callable[..., None], *arguments: object) -> int | None:
    process = FORK.Process(target=target, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def outcome_of_a_kill(out: Path, at: int) -> str | None:
    """What the next command finds in a folder: the old output, the new one, the old one restored, or nothing. None if
    the process ended before the kill."""
    code = exit_code(save_and_be_killed, out, "second", at)
    assert code in (0, -signal.SIGKILL)
    there = out.exists()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_output(out)
    assert not list(out.parent.glob(".*"))
    if code == 0:
        assert (held(out), caught) == ("second", [])
        return None
    if there or not out.exists():
        assert not caught
        return held(out) if there else "nothing"
    (said,) = caught
    assert f"{out} has been restored" in str(said.message)
    assert held(out) == "first"
    return "put back"


def outcomes_of_kills(prepare: Callable[[Path], None], tmp_path: Path) -> set[str]:
    found: set[str] = set()
    for at in itertools.count(1):
        out = tmp_path / str(at) / "out"
        out.parent.mkdir()
        prepare(out)
        outcome = outcome_of_a_kill(out, at)
        shutil.rmtree(out.parent)
        if outcome is None:
            assert at > 20
            return found
        found.add(outcome)
    raise AssertionError


def test_the_old_output_survives_a_kill_at_any_step(tmp_path: Path) -> None:
    assert outcomes_of_kills(lambda out: save(out, "first"), tmp_path) == {"first", "put back", "second"}


def test_a_kill_at_any_step_of_a_first_save_leaves_nothing_or_all(tmp_path: Path) -> None:
    assert outcomes_of_kills(lambda out: None, tmp_path) == {"nothing", "second"}


def test_an_output_moved_aside_by_a_killed_run_survives_next_to_its_replacement(out: Path) -> None:
    moved = out.with_name(".out.pimflow-abcdefgh")
    (moved / "new").mkdir(parents=True)
    out.rename(moved / "old")
    out.mkdir()
    with pytest.warns(OutputWarning, match=f"its previous content is in {moved / 'old'}"):
        save(out, "second")
    assert held(out) == "second"
    assert held(moved / "old") == "first"


def test_the_scratch_folder_of_a_live_process_is_not_swept(out: Path) -> None:
    with new_output(out) as made:
        check_output(out)
        assert made.exists()
        save(out, "another's")
        fill(made, "second")
    assert held(out) == "second"
    assert alone(out)


def test_folders_that_only_look_like_leftovers_stay(out: Path) -> None:
    for name in (".out.pimflow-mynotes1/mine", ".out.pimflow-my-longer-notes/new"):
        folder = out.parent / name
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("mine")
    before = picture(out.parent)
    check_output(out)
    assert picture(out.parent) == before


def save_often(folder: Path, name: str) -> None:
    for number in range(25):
        save(folder, f"{name} {number}")


def read_often(folder: Path) -> None:
    for _ in range(200):
        assert find_output(folder)


def test_processes_that_save_into_one_folder_wait_for_each_other(out: Path) -> None:
    tasks = [(save_often, (out, str(number))) for number in range(4)] + [(read_often, (out,))]
    processes = [FORK.Process(target=target, args=arguments) for target, arguments in tasks]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)
    assert held(out) in {f"{number} 24" for number in range(4)}
    assert alone(out)


def test_a_process_that_never_ends_is_not_waited_for_forever(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_WAIT_S", 0.05)
    handle = os.open(out.parent, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(OutputError, match="another process is writing into"):
        save(out, "second")
    os.close(handle)
    save(out, "second")
    assert held(out) == "second"


def test_without_locks_a_race_is_reported_correctly(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_handle: int, _operation: int) -> None:
        raise OSError(95, "Operation not supported")

    def take_the_place(old: Path) -> None:
        save(out, "another's")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    rename_then(monkeypatch, 1, take_the_place)
    with (
        pytest.warns(OutputWarning, match="was taken by something else") as caught,
        pytest.raises(OutputError, match="another process made"),
    ):
        save(out, "second")
    assert held(out) == "another's"
    assert held(Path(str(caught[0].message).rpartition(" ")[2])) == "first"


def test_an_empty_folder_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    save(tmp_path / "out", "first")
    assert held(tmp_path / "out") == "first"
    assert alone(tmp_path / "out")


def test_an_output_of_another_version_is_refused_with_that_reason(out: Path) -> None:
    (out / "manifest.json").write_text(json.dumps({"format": "pimflow-output/1", "files": {"target.toml": 5}}))
    before = picture(out)
    with pytest.raises(OutputError, match="another version of pimflow"):
        save(out, "second")
    assert picture(out) == before
    assert find_output(out)


def test_a_manifest_that_never_ends_is_not_read(out: Path) -> None:
    (out / "manifest.json").unlink()
    os.mkfifo(out / "manifest.json")
    with pytest.raises(OutputError, match="not an output folder of pimflow"):
        check_output(out)


def test_a_name_too_long_is_refused_before_the_work(tmp_path: Path, capsys: Capture) -> None:
    for length in (238, 300):
        assert run("compile", "zoo:toy", "-o", tmp_path / ("x" * length)) == 2
        assert_one_line(capsys, "longer than 237 bytes")
    save(tmp_path / ("x" * 237), "first")


def test_the_command_line_reports_restored_outputs(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert run("compile", "zoo:toy", "-o", out, "--policy", "gpu", "--no-cache") == 0
    capsys.readouterr()
    moved = tmp_path / ".out.pimflow-abcdefgh"
    (moved / "new").mkdir(parents=True)
    out.rename(moved / "old")
    with warnings.catch_warnings():
        warnings.resetwarnings()
        assert run("verify", out) == 0
    assert capsys.readouterr().err.startswith(f"pimflow: warning: {out} has been restored: an interrupted run")
    assert alone(out)


def test_missing_folders_around_it_are_made(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "b" / "out")
    assert not any(tmp_path.iterdir())
    save(tmp_path / "a" / "b" / "out", "first")
    assert held(tmp_path / "a" / "b" / "out") == "first"


def test_a_folder_inside_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file is not a folder"):
        check_output(tmp_path / "file" / "a" / "out")


def test_the_root_of_the_file_system_is_refused_like_any_folder() -> None:
    """Whether the user may write there or not."""
    refusal = r"/ is not empty, and is not an output folder|the folder / cannot be written"
    with pytest.raises(OutputError, match=refusal):
        check_output(Path("/"))


def test_digests_known_to_the_block_are_used(out: Path) -> None:
    known: dict[str, str] = {}
    with new_output(out, known) as made:
        fill(made, "text")
        known["target.toml"] = "0" * 64
    files = json.loads((out / "manifest.json").read_text())["files"]
    assert files["target.toml"]["sha256"] == "0" * 64
    assert files["original/model.onnx"]["sha256"] == hashlib.sha256(b"text").hexdigest()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files whose digests were computed."""
    found: list[str] = []

    def noted(path: Path) -> str:
        found.append(path.name)
        return sha256_of(path)

    for module in ("manifest", "stamps"):
        monkeypatch.setattr(f"pimflow.bundle.{module}.sha256_of", noted)
    return found


@pytest.fixture
def all_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all files as old."""
    monkeypatch.setattr("pimflow.bundle.stamps._SETTLED_NS", -1)


@pytest.mark.usefixtures("all_old")
def test_an_output_that_is_replaced_is_read_once(out: Path, reads: list[str]) -> None:
    check_output(out)
    save(out, "second")
    assert sorted(reads) == ["model.onnx"] * 2 + ["target.toml"] * 2  # of the first output, then of the second
    assert held(out) == "second"


@pytest.mark.usefixtures("all_old")
def test_a_change_of_a_file_that_was_read_before_is_noticed(out: Path) -> None:
    check_output(out)
    changed, before = out / "original/model.onnx", (out / "original/model.onnx").stat()
    while changed.stat().st_ctime_ns == before.st_ctime_ns:  # wait for a tick of the file system's clock
        change_same_size(out)
    with pytest.raises(OutputError, match=r"original/model\.onnx was added or changed"):
        save(out, "second")


def test_files_that_changed_a_moment_ago_are_read_again(out: Path, reads: list[str]) -> None:
    check_output(out)
    check_output(out)
    assert sorted(reads) == ["model.onnx"] * 2 + ["target.toml"] * 2


def save_later(folder: Path, text: str, seen: dict[str, str]) -> None:
    """Like `save`, with the stamps of earlier runs; the file system's clock advances before the manifest is written."""
    with new_output(folder, seen=seen) as made:
        fill(made, text)
        probe, last = made.parent / "probe", (made / "original/model.onnx").stat().st_ctime_ns
        probe.touch()
        while probe.stat().st_ctime_ns <= last:
            probe.touch()
        probe.unlink()


@pytest.fixture
def seen(out: Path) -> dict[str, str]:
    """The stamps of an output of which this process has read nothing."""
    found: dict[str, str] = {}
    save_later(out, "first", found)
    return found


def test_files_that_an_earlier_run_wrote_are_not_read(out: Path, seen: dict[str, str], reads: list[str]) -> None:
    check_output(out, seen)
    save_later(out, "second", seen)
    assert sorted(reads) == ["model.onnx", "target.toml"]  # those of the second output
    assert held(out) == "second"


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_change_of_an_earlier_runs_file_is_noticed(
    change: Callable[[Path], str], out: Path, seen: dict[str, str]
) -> None:
    name = change(out)
    before = picture(out.parent)
    with pytest.raises(OutputError, match=f"{name} was added or changed"):
        check_output(out, seen)
    with pytest.raises(OutputError, match=f"{name} was added or changed"):
        save_later(out, "second", seen)
    assert picture(out.parent) == before


def test_a_file_replaced_by_another_process_is_read(out: Path, seen: dict[str, str], reads: list[str]) -> None:
    shutil.copytree(out, out.parent / "copy")
    shutil.rmtree(out)
    (out.parent / "copy").rename(out)
    check_output(out, seen)
    assert sorted(reads) == ["model.onnx", "target.toml"]


def test_a_file_as_young_as_its_manifest_has_no_stamp(tmp_path: Path) -> None:
    """A change right after the manifest was written could leave the same timestamps."""
    (tmp_path / "old").touch()
    (tmp_path / "young").touch()
    while (tmp_path / "young").stat().st_ctime_ns <= (tmp_path / "old").stat().st_ctime_ns:
        (tmp_path / "young").touch()
    write_manifest(tmp_path)
    (tmp_path / "young").unlink()
    (tmp_path / "young").hardlink_to(tmp_path / MANIFEST)  # it gets the manifest's timestamps, whatever the clock
    assert list(stamps(tmp_path).values()) == [hashlib.sha256(b"").hexdigest()]

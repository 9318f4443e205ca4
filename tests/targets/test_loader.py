"""The strict loader, key by key: every key of the shipped targets missing, misspelt, mistyped and out of range."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from pimflow import layer
from pimflow.codegen import MatmulProblem
from pimflow.errors import ArgumentError, TargetError
from pimflow.targets import Gpu, load_target, override, parse_target, target_names, target_text, to_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "machine.toml"
OPTIONAL: dict[str, Any] = {
    "pim.transfer_gb_per_s": 12.5,
    "gpu.basis": "measured",
    "gpu.l2_kib": 2048.0,
    "gpu.sector_bytes": 64,
    "gpu.launches": "queued",
    "gpu.persistent_stages": True,
    "pim.buffer_parts": 2,
    "pim.buffer_pool": True,
    "cpu.link_gb_per_s": 12.0,
    "cpu.link_us": 8.0,
    "dpu.link.pcie_gb_per_s": 12.0,
    "memory.host.spin_w": 40.0,
    "memory.host.pageable_gather_gb_per_s": 10.0,
    "memory.pcie.sector_bytes": 64,
    "memory.pcie.header_bytes": 20.0,
}
"""Keys that a file may leave out, with a valid value for each."""
OPTIONAL_TABLES = {
    *("gpu.fp32.convolution.winograd", "gpu.fp16.convolution.few_channels"),
    *("memory", "memory.ssd"),
    *("gpu.fp16.product.unaligned", "gpu.fp16.convolution.unaligned", "gpu.fp32.convolution.unaligned"),
    *("gpu.fp16.softmax.short_rows", "gpu.fp32.softmax.short_rows"),
    "gpu.splits",
}
"""Tables and lists that a file may leave out: other algorithms, memory tiers."""
OF_FORMS = {"warm_activations", "row_multiple", "result_gb_per_s", "cache_gb_per_s", "tap_us", "row_us", "column_us"}
"""Keys that turn parts of a measured GPU's form on, wherever they are in its tables."""
MAY_BE_ZERO = {
    "pim.launch_us",
    "gpu.launch_cycles",
    "gpu.l2_kib",
    "cpu.cache_kib",
    "cpu.call_us",
    "cpu.link_us",
    "pim.timing.artifact.gwrite_to_next_hidden",
    "pim.timing.strict.t_drain",
    "pim.timing.strict.t_cl",
    "pim.timing.strict.t_cwl",
    "pim.timing.strict.t_wtr",
    "pim.timing.strict.t_mod",
    "pim.timing.strict.max_postponed_refreshes",
}
"""Keys that may be zero, in addition to all energies and powers: these times and shares of kernels."""
AMOUNTS = {"lead_us", "call_us", "step_us", "fill_us", "split_us", "throttling", "mac_pj"} | {
    *("launch_us", "stack_bytes", "nonzero", "row", "row_element", "add_element", "coo_nonzero", "zero_row", "barrier"),
    *("mutex", "wide", "head_nonzero"),
    *("reserved_gib", "gather_us", "copy_us", "zero_copy_us", "latency_us", "pj_per_byte", "dram_pj_per_byte"),
    *("idle_w", "busy_w", "gather_w", "sampling_w", "issuing_w", "reading_w", "step_us", "spin_us", "spin_w"),
    *("header_bytes", "lookup_ns"),
}


class Key(NamedTuple):
    """One key of one shipped target, by its path from the root of the file."""

    target: str
    path: str

    @property
    def name(self) -> str:
        return self.path.split(".")[-1]

    def table_in(self, data: dict[str, Any]) -> dict[str, Any]:
        """The table of a file that holds the key."""
        table: Any = data
        for step in self.path.split(".")[:-1]:
            table = table[step]
        return cast("dict[str, Any]", table)

    @property
    def value(self) -> Any:
        """The value in the file."""
        return self.table_in(_content(self.target))[self.name]

    @property
    def type(self) -> type[Any]:
        """The type of the value in the machine: a file may write a float as an integer."""
        if self.path in OPTIONAL:
            return type(OPTIONAL[self.path])
        machine = shipped(self.target)
        item: Any = {**machine.units, "memory": machine.memory} if "." in self.path else machine
        for step in self.path.split("."):
            item = item[step] if isinstance(item, Mapping) else getattr(item, step)
        return type(item)

    def changed(self, value: Any) -> str:
        """The file with another value for the key."""
        data = content(self.target)
        self.table_in(data)[self.name] = value
        return toml(data)

    def without(self) -> str:
        """The file without the key."""
        data = content(self.target)
        del self.table_in(data)[self.name]
        return toml(data)


shipped = cache(load_target)


def content(target: str) -> dict[str, Any]:
    """A copy of a shipped file as plain data, with optional keys added."""
    return deepcopy(_content(target))


@cache
def _content(target: str) -> dict[str, Any]:
    data: dict[str, Any] = tomllib.loads(target_text(target))
    for path, value in OPTIONAL.items():
        key = Key(target, path)
        if path.split(".", maxsplit=1)[0] in data:
            key.table_in(data).setdefault(key.name, value)
    return data


def toml(data: Mapping[str, Any], path: str = "") -> str:
    """TOML text, written independently of the package's writer."""
    lines = [f"{key} = {literal(value)}" for key, value in data.items() if not isinstance(value, dict)]
    for key, value in data.items():
        if isinstance(value, dict):
            lines += [f"[{path}{key}]", toml(value, f"{path}{key}.")]
    return "\n".join(lines)


def literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value)  # repr writes TOML's nan and inf


def walk(target: str, table: Mapping[str, Any], start: str = "") -> Iterator[Key]:
    for name, value in table.items():
        yield Key(target, start + name)
        if isinstance(value, dict):
            yield from walk(target, value, f"{start}{name}.")


WITH_PIM = [name for name in target_names() if "pim" in shipped(name).units]
OF_ALL_TARGETS = (key for target in target_names() for key in walk(target, content(target)))
LONGEST_FIRST = sorted(OF_ALL_TARGETS, key=lambda key: -len(target_text(key.target)))
KEYS = list({(key.path, type(key.value)): key for key in LONGEST_FIRST}.values())
"""Every key, once per type of value, in the shortest target that has it: the same values are refused in all of them."""
TABLES = [key for key in KEYS if isinstance(key.value, dict)]
LEAVES = [key for key in KEYS if key not in TABLES]
NUMBERS = [key for key in LEAVES if key.type in (int, float)]
FLOATS = [key for key in NUMBERS if key.type is float]
COUNTS = [key for key in NUMBERS if key.type is int]
LISTS = [key for key in LEAVES if isinstance(key.value, list)]
PAIRS = [key for key in LISTS if key.name == "tiles"]
COUNT_LISTS = [key for key in LISTS if key.name == "splits"]
MEASURED = [key for key in LISTS if key.path.startswith("dpu.")]
"""Columns of measured tables: increasing sizes, and one figure for each."""
WORD_LISTS = [key for key in LISTS if key not in PAIRS + COUNT_LISTS + MEASURED]
WORDS = [key for key in LEAVES if isinstance(key.value, str) and key.path not in ("name", "description", "gpu.basis")]
NAMED = [key for key in KEYS if key.name != "kind"]
"""Without its kind, a table has the kind that its name implies."""


def each(keys: list[Key]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("key", keys, ids=[f"{key.target}: {key.path}" for key in keys])


def refusal(text: str) -> str:
    """The refusal of a file: one line that begins with the file and ends with what to do."""
    with pytest.raises(TargetError) as caught:
        parse_target(text, FILE)
    message = str(caught.value)
    assert message.startswith(FILE)
    assert "\n" not in message
    assert caught.value.hint
    return message


def assert_refused(text: str, path: str) -> str:
    """The refusal names the key; returns its message."""
    message = refusal(text)
    assert re.search(rf"'{re.escape(path)}(\[\d+\])*'", message), f"{path} is not in: {message}"
    return message


def is_spare_library(key: Key) -> bool:
    """Whether it is the table of kernels for an element type that the GPU does not compute in."""
    gpu = shipped(key.target).units.get("gpu")
    return key.path in ("gpu.fp16", "gpu.fp32") and isinstance(gpu, Gpu) and key.path != f"gpu.{gpu.operand}"


def test_keys_of_every_kind_are_tested() -> None:
    assert len(target_names()) >= 3
    assert all(len(keys) >= 3 for keys in (TABLES, FLOATS, COUNTS, WORDS))
    assert PAIRS
    assert WORD_LISTS
    assert len(NUMBERS) > 150


@each(NAMED)
def test_a_missing_key_is_named(key: Key) -> None:
    is_third_unit = key in TABLES and "." not in key.path and len(shipped(key.target).units) > 2 and key.path != "gpu"
    is_optional = key.path in OPTIONAL or key.path in OPTIONAL_TABLES or key.name in OF_FORMS
    if is_optional or is_third_unit or is_spare_library(key):
        parse_target(key.without(), FILE)
        return
    if key in TABLES and "." not in key.path and "kind" in key.value:
        assert "missing key" in refusal(key.without())  # a host, or another unit, by the usual names
        return
    assert "missing key" in assert_refused(key.without(), key.path)


@each([key for key in NAMED if not (isinstance(key.value, dict) and "kind" in key.value)])  # those have any name
def test_a_misspelt_key_is_unknown_and_the_right_one_is_proposed(key: Key) -> None:
    data = content(key.target)
    table = key.table_in(data)
    table[key.name + "x"] = table[key.name]
    message = assert_refused(toml(data), key.path + "x")
    assert "unknown key" in message
    assert f"did you mean {key.name!r}?" in message


@pytest.mark.parametrize(
    ("number", "key"), list(enumerate(LEAVES)), ids=[f"{key.target}: {key.path}" for key in LEAVES]
)
def test_a_value_of_another_type_is_refused(number: int, key: Key) -> None:
    """Keys of one type take turns: all values for the first of them, then two values for each."""
    accepted: dict[type[Any], tuple[type[Any], ...]] = {float: (int, float), tuple: (list,)}
    values: tuple[Any, ...] = (True, 3, 2.5, "text", [1], {"a": 1})
    wrong = [value for value in values if type(value) not in accepted.get(key.type, (key.type,))]
    is_first = key == next(other for other in LEAVES if other.type is key.type)
    for value in wrong if is_first else (wrong[number % len(wrong)], wrong[(number + 1) % len(wrong)]):
        assert_refused(key.changed(value), key.path)


@each(TABLES)
def test_a_table_cannot_be_a_value(key: Key) -> None:
    for wrong in (1, "text", [1], True):
        assert_refused(key.changed(wrong), key.path)


@each(TABLES)
def test_an_unknown_table_is_refused(key: Key) -> None:
    data = content(key.target)
    key.table_in(data)[key.name]["nonsense"] = {"a": 1}
    assert "unknown key" in assert_refused(toml(data), f"{key.path}.nonsense")


@pytest.mark.parametrize("target", target_names())
def test_an_unknown_table_at_the_root_is_refused(target: str) -> None:
    assert "unknown key 'npu'" in refusal(toml(content(target)) + "\n[npu]\ncores = 4")


@each(NUMBERS)
def test_a_negative_number_is_refused(key: Key) -> None:
    assert_refused(key.changed(-1), key.path)
    if key.type is float:
        assert_refused(key.changed(-0.25), key.path)


@each(NUMBERS)
def test_zero_is_allowed_where_it_makes_sense(key: Key) -> None:
    if ".energy." in key.path or key.path in MAY_BE_ZERO or key.name in AMOUNTS:
        parse_target(key.changed(0), FILE)
    else:
        assert_refused(key.changed(0), key.path)


@pytest.mark.parametrize(
    ("number", "key"), list(enumerate(NUMBERS)), ids=[f"{key.target}: {key.path}" for key in NUMBERS]
)
def test_nan_and_infinity_are_refused(number: int, key: Key) -> None:
    """Keys take turns."""
    assert_refused(key.changed((math.nan, math.inf, -math.inf)[number % 3]), key.path)


@each(FLOATS)
def test_an_integer_is_accepted_as_a_float(key: Key) -> None:
    assert parse_target(key.changed(1), FILE) == parse_target(key.changed(1.0), FILE)


@each(WORDS)
def test_an_unknown_word_is_refused_with_the_allowed_ones(key: Key) -> None:
    message = assert_refused(key.changed("xyz"), key.path)
    assert "'xyz'" in message
    assert str(key.value) in message


@each(WORD_LISTS)
def test_every_word_of_a_list_is_checked(key: Key) -> None:
    assert "did you mean 'Relu'?" in assert_refused(key.changed(["Rely"]), key.path)
    for wrong in ([3], ["Relu", "any"], [["Relu"]], "xyz"):
        assert_refused(key.changed(wrong), key.path)
    parse_target(key.changed([]), FILE)
    parse_target(key.changed("any"), FILE)


@each(COUNT_LISTS)
def test_lists_of_counts_are_checked_element_by_element(key: Key) -> None:
    assert_refused(key.changed([]), key.path)
    for wrong in (0, -1, 1.5, True, "text", [1]):
        assert_refused(key.changed([*key.value, wrong]), key.path)


@each(MEASURED)
def test_measured_tables_are_checked(key: Key) -> None:
    for wrong in (0, -1, True, "text", [1]):
        assert_refused(key.changed([*key.value[:-1], wrong]), key.path)
    assert key.path.rpartition(".")[0] in refusal(key.changed(key.value[:-1]))
    if key.name in ("transfer_bytes", "block_kib", "row_bytes"):
        assert "must rise" in assert_refused(key.changed([*key.value[:-1], key.value[0]]), key.path)


@each(PAIRS)
def test_lists_of_pairs_are_checked_element_by_element(key: Key) -> None:
    assert_refused(key.changed([]), key.path)
    first, second = key.value[0]
    for wrong in ([], [first], [first, second, 1], [0, second], [first, -1], [first, 1.5], [first, True], "text", 3):
        assert_refused(key.changed([*key.value, wrong]), key.path)


@pytest.mark.parametrize(("path", "value"), [("dpu.tasklets", 25), ("dpu.cores", 31)])
def test_limits_between_keys_of_upmem_modules(path: str, value: int) -> None:
    assert_refused(Key("upmem", path).changed(value), path)


@pytest.mark.parametrize("target", WITH_PIM)
def test_limits_between_keys(target: str) -> None:
    machine = load_target(target)
    gpu, pim = machine.any_gpu, machine.pim
    wrong: dict[str, dict[str, Any]] = {
        "pim.channels": {"pim.channels": gpu.memory_channels, "pim.buffers": 1},
        "pim.bank_groups": {"pim.bank_groups": pim.banks - 1},
        "pim.buffers": {"pim.buffers": pim.channels + 1},
        "pim.buffer_parts": {"pim.buffer_parts": 5, "pim.buffer_columns": 32},
        "pim.buffers_per_channel": {"pim.buffers_per_channel": 32, "pim.buffer_parts": 4},
    }
    for path, changes in wrong.items():
        data = content(target)
        for changed, value in changes.items():
            key = Key(target, changed)
            key.table_in(data)[key.name] = value
        assert_refused(toml(data), path)


# Cycles to refresh and reopen all rows: 11 (tRP) + 105 (tRFC) + 4 * 17 (tFAW) + 25 (tRAS) + 11 (tRCD); in the published
# simulator 11 (PREA to REF) + 350 (REF to G_ACT) + 3 * 17 (G_ACT to G_ACT) + 11 (to COMP), and the COMP itself.
@pytest.mark.parametrize(
    ("timing", "name", "limit"), [("strict", "t_refi", 220), ("artifact", "refresh_interval", 424)]
)
def test_the_refresh_interval_must_exceed_what_a_refresh_takes(timing: str, name: str, limit: int) -> None:
    path = f"pim.timing.{timing}.{name}"
    key = Key("pimflow", path)
    shortest = override(parse_target(key.changed(limit + 1), FILE), timing=timing)
    for mapping in ("newton+", "newton++", "auto"):  # closed forms divide by what refreshes leave
        row, *_ = layer(MatmulProblem(4, 1280, 1000), mapping=mapping, target=shortest).records()
        assert row["refreshes"] > 800
    assert "leaves no time between refreshes" in assert_refused(key.changed(limit), path)


@pytest.mark.parametrize("text", ["gpu = ", "[gpu\n", "name = 'a'\nname = 'b'", "\x00", "a = 1979-13-01"])
def test_invalid_toml_is_refused(text: str) -> None:
    assert "not valid TOML" in refusal(text)


def test_a_date_is_no_value() -> None:
    assert_refused(Key("pimflow", "name").without() + "\n[name]\nday = 2023-02-25", "name")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"')
    (tmp_path / "folder.toml").mkdir()
    for name in ("absent.toml", "latin.toml", "folder.toml"):
        with pytest.raises(TargetError, match=rf"cannot read target file .*{name}"):
            load_target(tmp_path / name)


def test_a_file_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(target_text("pimflow"), encoding="utf-8")
    assert load_target(path) == load_target(str(path)) == load_target("pimflow")
    path.write_text(Key("pimflow", "gpu.sms").changed("many"), encoding="utf-8")
    with pytest.raises(TargetError, match=r"mine\.toml: 'gpu\.sms'"):
        load_target(path)


def test_shipped_targets_are_found_in_any_case() -> None:
    assert load_target("PIMFlow") == load_target("pimflow")
    assert target_text("AIM-GDDR6") == target_text("aim-gddr6")
    for find in (load_target, target_text):
        with pytest.raises(TargetError, match=r"unknown target 'pimfow'; did you mean 'pimflow'\?.* FILE\.toml"):
            find("pimfow")


@cache
def overridden() -> list[Any]:
    return [
        override(load_target(target), **options)
        for target in WITH_PIM
        for options in (
            {},
            {"timing": "artifact", "gwrite_latency": "exposed"},
            {"pim_channels": 1},
            {"pim_channels": 31, "buffers": 31, "buffers_per_channel": 64},
        )
    ]


@pytest.mark.parametrize("index", range(4 * len(WITH_PIM)))
def test_a_written_target_reads_back_equal(index: int) -> None:
    machine = overridden()[index]
    assert parse_target(to_toml(machine), FILE) == machine


def test_optional_keys_survive_writing() -> None:
    for path, value in OPTIONAL.items():
        target = {"dpu": "upmem", "memory": "rtx3090"}.get(path.partition(".")[0], "pimflow-cpu")
        machine = parse_target(Key(target, path).changed(value), FILE)
        assert parse_target(to_toml(machine), FILE) == machine
        assert machine != load_target(target)


@each(NUMBERS)
def test_a_number_beyond_any_machine_is_refused(key: Key) -> None:
    """Sums and products of allowed values stay finite."""
    assert_refused(key.changed(1e300 if key.type is float else 10**30), key.path)


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, "a = " + "9" * 5000, "a" + ".a" * 5000 + " = 1"])
def test_text_that_no_reader_can_hold_is_refused(text: str) -> None:
    assert refusal(text).startswith(FILE)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(target_text("pimflow"), encoding="utf-8-sig")
    assert load_target(path) == load_target("pimflow")


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    os.mkfifo(path)
    with pytest.raises(TargetError, match="not a regular file"):
        load_target(path)


def written(folder: Path, **files: str) -> Path:
    """Write several files into one folder, by their stems; return the path of the first."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(files))}.toml"


MINE = 'base = "pimflow"\n[pim]\nbanks = 32  # twice as many\n[pim.timing.strict]\nt_faw = 20\n'


def test_a_file_with_a_base_states_only_differences(tmp_path: Path) -> None:
    machine, base = load_target(written(tmp_path, mine=MINE)), load_target("pimflow")
    strict = replace(base.pim.timing.strict, t_faw=20)
    pim = replace(base.pim, banks=32, timing=base.pim.timing.with_tables(strict=strict))
    assert machine.units == base.with_units(pim=pim).units
    assert (machine.name, machine.description) == ("mine", "pimflow with pim.banks = 32, pim.timing.strict.t_faw = 20")
    assert machine.origin is not None
    assert (machine.origin.base, machine.overrides) == ("pimflow", ())
    assert parse_target(to_toml(machine), FILE) == machine


def test_a_base_may_be_a_file_in_the_same_folder(tmp_path: Path) -> None:
    second = 'base = "mine.toml"\nname = "second"\ndescription = "my own"\npim.rows = 512\n'
    machine = load_target(written(tmp_path, second=second, mine=MINE))
    assert (machine.pim.banks, machine.pim.rows, machine.pim.timing.strict.t_faw) == (32, 512, 20)
    assert (machine.name, machine.description) == ("second", "my own")


def test_a_unit_of_another_kind_inherits_nothing(tmp_path: Path) -> None:
    turing = load_target("turing-pim")
    gpu = to_toml(turing).split("[pim]")[0].split("[gpu]")[1]
    machine = load_target(written(tmp_path, mine=f'base = "pimflow"\n[gpu]{gpu}'))
    assert machine.units == load_target("pimflow").with_units(gpu=turing.any_gpu).units
    with pytest.raises(TargetError, match=r"missing key 'gpu\.clock_mhz'"):
        load_target(written(tmp_path, mine='base = "pimflow"\ngpu.kind = "measured-gpu"'))
    same = load_target(written(tmp_path, mine='base = "pimflow"\ngpu.kind = "gpu"\ngpu.sms = 40'))
    assert same.gpu == replace(load_target("pimflow").gpu, sms=40)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"mine": 'base = "pimflo"'}, "mine.toml: unknown base 'pimflo'; did you mean 'pimflow'? choose one of "),
        ({"mine": "base = 3"}, "mine.toml: 'base' is 3; it must be text"),
        ({"mine": 'base = "other.toml"'}, "cannot read target file "),
        ({"mine": 'base = "a\\u0000.toml"'}, "cannot read target file "),
        ({"mine": 'bsae = "pimflow"'}, "mine.toml: unknown key 'bsae'; did you mean 'base'?"),
        ({"mine": 'base = "pimflow"\nwhatever = 3'}, "mine.toml: unknown key 'whatever'; choose one of base, name, "),
        ({"mine": 'base = "mine.toml"'}, "mine.toml: base 'mine.toml' starts from this file itself; "),
        (
            {"mine": 'base = "a.toml"', "a": 'base = "b.toml"', "b": 'base = "./mine.toml"'},
            "b.toml: base './mine.toml' starts from this file itself; ",
        ),
        ({"mine": 'base = "pimflow"\npim.bankz = 3'}, "mine.toml: unknown key 'pim.bankz'; did you mean 'banks'? "),
        (
            {"mine": 'base = "pimflow"\npim.banks = 15'},
            "mine.toml: 'pim.bank_groups' must divide pim.banks; correct it",
        ),
        ({"mine": 'base = "pimflow"\npim = 15'}, "mine.toml: 'pim' is 15; it must be a table"),
        ({"mine": 'base = "a.toml"', "a": 'base = "pimflow"\npim.rows = 0'}, "a.toml: 'pim.rows' is 0; "),
        (
            {f"m{i}": f'base = "m{i + 1}.toml"' for i in range(40)},
            "m16.toml: more than 16 files start from each other; ",
        ),
    ],
)
def test_a_base_that_cannot_be_is_one_line(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(written(tmp_path, **files))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_anything_but_a_target_is_a_one_line_error() -> None:
    with pytest.raises(ArgumentError, match=r"'target' is an int; give a name, a FILE\.toml or a pimflow\.Target"):
        load_target(42)  # type: ignore[arg-type]
    assert issubclass(ArgumentError, TypeError)

"""The codec: data survive a round trip, and an error names the place of a value that does not fit."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.data import NOT_DATA, Limits, decode, encode, encode_json, pick, read_file
from pimflow.errors import DataError


@dataclass(frozen=True)
class Leaf:
    size: Annotated[int, Limits(above=0)]
    label: str = ""


@dataclass(frozen=True)
class Branch:
    parts: tuple[Tree, ...]
    weight: float = 1.0


Tree = Leaf | Branch


@dataclass(frozen=True)
class Everything:
    flag: bool
    count: Annotated[int, Limits(least=0, most=9)]
    share: Annotated[float, Limits(least=0)]
    name: str
    kind: Literal["tall", "wide"]
    pair: tuple[int, str]
    many: tuple[tuple[int, ...], ...]
    by_name: Mapping[str, Leaf]
    perhaps: int | None = None
    size: Mapping[str, tuple[int, ...] | int] = field(default_factory=dict)
    free: Any = None
    cache: object = field(default=None, metadata=NOT_DATA)
    doubled: int = field(init=False, default=2)


WHOLE = Everything(True, 3, 0.5, "n", "wide", (1, "a"), ((1, 2), ()), {"x": Leaf(1, "l")}, None, {"a": (1,), "b": 2})
PLAIN: dict[str, Any] = {
    "flag": True,
    "count": 3,
    "share": 0.5,
    "name": "n",
    "kind": "wide",
    "pair": [1, "a"],
    "many": [[1, 2], []],
    "by_name": {"x": {"size": 1, "label": "l"}},
    "perhaps": None,
    "size": {"a": [1], "b": 2},
    "free": None,
}


def test_fields_keep_their_order_in_a_round_trip() -> None:
    assert json.dumps(encode(WHOLE)) == json.dumps(PLAIN)
    assert decode(Everything, json.loads(json.dumps(PLAIN))) == WHOLE


class Pair(NamedTuple):
    """A named tuple is a record, not a list."""

    first: Annotated[int, Limits(above=0)]
    second: str = "b"


@dataclass(frozen=True)
class Holder:
    pairs: tuple[Pair, ...]
    either: Pair | tuple[int, ...]


def test_named_tuples_are_records() -> None:
    held = Holder((Pair(1), Pair(2, "c")), Pair(3))
    plain = {"pairs": [{"first": 1, "second": "b"}, {"first": 2, "second": "c"}], "either": {"first": 3, "second": "b"}}
    assert encode(held) == plain
    assert decode(Holder, {**plain, "pairs": [{"first": 1}, {"first": 2, "second": "c"}]}) == held
    with pytest.raises(DataError, match=r"'pairs\[0\]\.first' is 0"):
        decode(Holder, {"pairs": [{"first": 0}], "either": []})
    with pytest.raises(DataError, match=r"missing key 'either\.first'"):
        decode(Holder, {"pairs": [], "either": {}})


trees = st.recursive(
    st.builds(Leaf, st.integers(1, 1 << 70), st.text()),
    lambda inner: st.builds(Branch, st.lists(inner).map(tuple), st.floats(allow_nan=False)),
)


@given(trees)
def test_tagged_trees_survive_a_round_trip(tree: Tree) -> None:
    plain = json.loads(json.dumps(encode(tree, tagged=True)))
    assert plain["type"] == type(tree).__name__
    assert decode(Tree, plain, tagged=True) == tree
    assert decode(type(tree), plain, tagged=True) == tree


@given(trees, st.booleans())
def test_text_is_that_of_the_plain_data(tree: Tree, tagged: bool) -> None:
    held = Holder((Pair(1), Pair(1), Pair(True, "ä\n%s")), Pair(3))  # True == 1
    for item in (tree, held, (held, None, np.float32(0.5), {"%": 1.5}), "%d"):
        want = json.dumps(encode(item, tagged=tagged), separators=(",", ":"))
        assert encode_json(item, tagged=tagged) == want


def test_defaults_fill_what_is_left_out() -> None:
    assert decode(Leaf, {"size": 2}) == Leaf(2)
    assert decode(Branch, {"type": "Branch", "parts": []}, tagged=True) == Branch(())


def test_a_whole_number_is_a_float_too() -> None:
    weight = decode(Branch, {"parts": [], "weight": 2}).weight
    assert (weight, type(weight)) == (2.0, float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nome": 1}, "unknown key 'nome'; did you mean 'name'? choose one of flag, count"),
        ({"cache": 1}, "unknown key 'cache'; choose one of"),
        ({"doubled": 1}, "unknown key 'doubled'; choose one of"),
        ({"flag": 1}, "'flag' is 1; it must be true or false"),
        ({"count": True}, "'count' is True; it must be a whole number"),
        ({"count": 3.0}, "'count' is 3.0; it must be a whole number"),
        ({"count": -1}, "'count' is -1; it must be between 0 and 9"),
        ({"share": "x"}, "'share' is 'x'; it must be a number"),
        ({"share": -0.1}, "'share' is -0.1; it must be 0 or more"),
        ({"share": math.nan}, "'share' is nan; it must be finite"),
        ({"share": math.inf}, "'share' is inf; it must be finite"),
        ({"share": 10**400}, "a number that a float can hold"),
        ({"name": None}, "'name' is None; it must be text"),
        ({"kind": "wid"}, "'kind' is 'wid'; did you mean 'wide'? choose one of tall, wide"),
        ({"pair": [1]}, "'pair' is [1]; it must be a list of 2"),
        ({"pair": [1, 2]}, "'pair[1]' is 2; it must be text"),
        ({"many": [[1], ["x"]]}, "'many[1][0]' is 'x'; it must be a whole number"),
        ({"many": "x"}, "'many' is 'x'; it must be a list"),
        ({"by_name": {"x": {}}}, "missing key 'by_name.x.size'"),
        ({"by_name": {"x": {"size": 0}}}, "'by_name.x.size' is 0; it must be above 0"),
        ({"by_name": {"x": 3}}, "'by_name.x' is 3; it must be a table"),
        ({"by_name": []}, "'by_name' is []; it must be a table"),
        ({"perhaps": "x"}, "'perhaps' is 'x'; it must be a number"),
        ({"size": {"a": "x"}}, "'size.a' is 'x'; it must be a list or a number"),
    ],
)
def test_errors_name_the_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        decode(Everything, PLAIN | change)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"size": 1}, "missing key 'type'; it is one of Leaf, Branch"),
        ({"type": "Leave", "size": 1}, "'type' is 'Leave'; did you mean 'Leaf'? choose one of Leaf, Branch"),
        ({"type": ["Leaf"], "size": 1}, "'type' is ['Leaf']; "),
        ({"type": "Branch", "parts": [{"type": "Leaf"}]}, "missing key 'parts[0].size'"),
        (3, "the whole is 3; it must be a table"),
    ],
)
def test_errors_in_a_tagged_tree(data: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        decode(Tree, data, tagged=True)
    assert message in str(caught.value)


def test_paths_begin_where_the_caller_says() -> None:
    with pytest.raises(DataError, match=r"^missing key 'plan\.parts\[0\]\.size'$"):
        decode(Branch, {"type": "Branch", "parts": [{"type": "Leaf"}]}, tagged=True, path="plan")


def test_a_long_value_is_cut_short_in_the_message() -> None:
    with pytest.raises(DataError) as caught:
        decode(Leaf, {"size": "x" * 10_000})
    assert len(str(caught.value)) < 150


def test_values_without_a_plain_form_are_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        encode(Branch((Leaf(1),), {1.0}))  # type: ignore[arg-type]  # a set, by mistake


def test_limits_in_words() -> None:
    assert str(Limits(above=0)) == "above 0"
    assert str(Limits(least=1)) == "1 or more"
    assert str(Limits(most=5)) == "5 or less"
    assert str(Limits(least=1, most=5)) == "between 1 and 5"


def test_picking_ignores_other_keys() -> None:
    assert pick({"a": 1, "b": 2, "c": 3}, "c", "a") == (3, 1)
    with pytest.raises(DataError, match="missing key 'd'"):
        pick({"a": 1}, "d")
    with pytest.raises(DataError, match="must be a table"):
        pick([1], "a")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    path, fifo = tmp_path / "file", tmp_path / "fifo"
    path.write_bytes(b"data")
    os.mkfifo(fifo)
    assert read_file(path) == b"data"
    for other, number in ((fifo, errno.EINVAL), (tmp_path, errno.EINVAL), (Path("/dev/zero"), errno.EINVAL),
                          (tmp_path / "nul\0", errno.EINVAL), (tmp_path / "none", errno.ENOENT)):  # fmt: skip
        with pytest.raises(OSError, match=r".") as caught:
            read_file(other)
        assert caught.value.errno == number
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_file(path, 3)

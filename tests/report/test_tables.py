"""Tables in windows of any width, and in pipes."""

from __future__ import annotations

import io

import pytest
from wcwidth import wcswidth

from pimflow.report.tables import clipped, energies, megabytes, render_fields, render_table, window_columns, wrapped

HEADER = ("node", "op", "time us", "why")
ROWS = [
    ("stem", "Conv", "1,234.5", "33.6 us on PIM, 18.3 us on the GPU"),
    ("block1.depthwise", "GlobalAveragePool", "7.0", "groups == channels, depthwise runs on the GPU"),
    ("卷积层一二三四五", "Conv", "12.0", "因为这个节点在显卡上更快 and faster there"),
]


class Stdout(io.TextIOWrapper):
    """Stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, encoding: str = "utf-8") -> None:
    monkeypatch.setattr("sys.stdout", Stdout(io.BytesIO(), encoding))
    monkeypatch.setenv("COLUMNS", str(columns))


def table(prose: bool = True) -> str:
    return render_table(HEADER, ROWS, right=(2,), prose=prose)


def letters(text: str) -> str:
    return "".join(sorted(text)).strip()


def every_cell() -> str:
    return letters("".join("".join(row) for row in ROWS).replace(" ", ""))


def test_in_a_pipe_a_row_is_one_line_of_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert window_columns() is None
    long = "x" * 500
    lines = render_table(("a", "b"), [(long, "1"), ("y", "22")], right=(1,)).splitlines()
    assert lines == [f"a{' ' * 499}   b", f"{'-' * 500}  --", f"{long}   1", f"y{' ' * 499}  22"]
    assert wrapped(long + " " + long) == f"{long} {long}"
    assert render_fields([("name", long), ("é", "")]) == f"name  {long}\né"


def test_a_name_of_ten_thousand_letters_makes_no_other_row_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "x" * 10_000
    header, rule, first, second = render_table(("a", "b"), [(long, "1"), ("y", "22")], right=(1,)).splitlines()
    assert first == f"{long}   1"
    assert len(header) == len(rule) == len(second) == 504


def test_columns_may_be_given_for_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert window_columns() == 60
    assert max(map(wcswidth, table().splitlines())) <= 60
    for nothing in ("0", "", "wide", "-1"):
        monkeypatch.setenv("COLUMNS", nothing)
        assert window_columns() is None


@pytest.mark.parametrize("prose", [True, False])
@pytest.mark.parametrize("columns", [*range(24, 121, 4), 200])
def test_a_table_fits_its_window_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, columns: int, prose: bool
) -> None:
    on_terminal(monkeypatch, columns)
    text = table(prose)
    assert max(map(wcswidth, text.splitlines())) <= columns
    shown = letters("".join(text.split()).replace("─", ""))
    assert all(shown.count(letter) >= every_cell().count(letter) for letter in set(every_cell()))
    assert "1,234.5" in text


def test_a_wide_window_has_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch, 120)
    assert table().splitlines() == [
        "node              op                 time us  why",
        "────────────────  ─────────────────  ───────  ─────────────────────────────────────────────",
        "stem              Conv               1,234.5  33.6 us on PIM, 18.3 us on the GPU",
        "block1.depthwise  GlobalAveragePool      7.0  groups == channels, depthwise runs on the GPU",
        "卷积层一二三四五  Conv                  12.0  因为这个节点在显卡上更快 and faster there",
    ]


def test_prose_is_wrapped_between_words_before_names_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch, 76)
    assert table().splitlines()[2:5] == [
        "stem              Conv               1,234.5  33.6 us on PIM, 18.3 us on the",
        "                                              GPU",
        "block1.depthwise  GlobalAveragePool      7.0  groups == channels, depthwise",
    ]


def test_prose_that_does_not_fit_is_below_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch, 50)
    assert table().splitlines() == [
        "node              op                 time us",
        "────────────────  ─────────────────  ───────",
        "stem              Conv               1,234.5",
        "      33.6 us on PIM, 18.3 us on the GPU",
        "block1.depthwise  GlobalAveragePool      7.0",
        "      groups == channels, depthwise runs on the",
        "      GPU",
        "卷积层一二三四五  Conv                  12.0",
        "      因为这个节点在显卡上更快 and faster there",
    ]


def test_the_word_is_broken_that_costs_the_fewest_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch, 30)
    rows = [("abcdefghijkl", "Conv", "1"), ("abcdefghijkm", "GlobalAveragePool", "2")]
    assert render_table(("name", "op", "GPU share"), rows, right=(2,)).splitlines() == [
        "name          op           GPU",
        "                         share",
        "────────────  ─────────  ─────",
        "abcdefghijkl  Conv           1",
        "abcdefghijkm  GlobalAve      2",
        "              ragePool",
    ]


def test_very_narrow_windows_turn_rows_into_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch, 30)
    rows = [("a", *("1,234,567.8",) * 4), ("b", *("2.0",) * 4)]
    assert render_table(("name", "w", "x", "y", "z"), rows, right=range(1, 5)) == (
        "name  a\nw     1,234,567.8\nx     1,234,567.8\ny     1,234,567.8\nz     1,234,567.8\n\n"
        "name  b\nw     2.0\nx     2.0\ny     2.0\nz     2.0"
    )


def test_fields_go_on_below_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch, 44)
    assert render_fields([("energy", "47.85 mJ"), ("over", "GPU fitted to the paper's simulator; measured")]) == (
        "energy  47.85 mJ\nover    GPU fitted to the paper's simulator;\n        measured"
    )


def test_a_paragraph_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch, 24)
    assert wrapped("  12  no matrix product, runs on the GPU", "      ") == (
        "  12  no matrix product,\n      runs on the GPU"
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_escaped_characters_are_counted_as_shown(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    on_terminal(monkeypatch, 80, encoding)
    assert render_table(("name", "n"), [("节", "1"), ("abc", "2")], right=(1,)).splitlines() == [
        "name    n",
        "------  -",
        "\\u8282  1",
        "abc     2",
    ]


def test_unprintable_characters_are_escaped() -> None:
    assert "\\x1b[31mred" in render_table(("a",), [("\x1b[31mred",)])
    assert render_fields([("a", "\x07")]) == "a  \\x07"


def test_a_stdout_that_is_closed_is_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", None)
    assert render_table(("a",), [("b",)]) == "a\n-\nb"


def test_clipped_counts_columns() -> None:
    assert clipped("abcdef", 4) == ("abcd", 4)
    assert clipped("节点节点", 5) == ("节点 ", 5)


@pytest.mark.parametrize(
    ("millijoules", "shown"),
    [
        ((47.845, 69.756), ("47.84 mJ", "69.76 mJ")),
        ((1234.5, 0.0), ("1,234 mJ", "0.000 mJ")),
        ((0.7241, 1.708), ("0.7241 mJ", "1.708 mJ")),
        ((0.002156,), ("2.156 uJ",)),
        ((3.1e-6, 2e-7), ("3.100 nJ", "0.2000 nJ")),
        ((2e-9,), ("0.002000 nJ",)),
        ((0.0,), ("0.000 nJ",)),
        ((), ()),
    ],
)
def test_energies_share_a_unit_that_suits_the_largest(millijoules: tuple[float, ...], shown: tuple[str, ...]) -> None:
    assert energies(*millijoules) == shown


@pytest.mark.parametrize(
    ("size", "text"), [(14_687_232, "14.7 MB"), (2_048, "0.0020 MB"), (140_000, "0.1 MB"), (0, "0.0 MB")]
)
def test_sizes_that_are_not_zero_do_not_look_like_it(size: int, text: str) -> None:
    assert megabytes(size) == text

import re
import sys
from collections.abc import Callable
from decimal import Decimal

import pytest

from siltstone.cli import render

NAME = "catalogue.of_some_length.a_dataset_name"
AT = "2026-11-18T19:30:00Z"
STATUS = ["dataset", "base rows", "base files", "base size", "backlog rows", "batches", "since", "last job"]
STATUS_ROW = [NAME, "123,456,789", "1,234", "117.7 GB", "1,234,567", "12", AT, f"fold completed at {AT}: 12 batches"]

Terminal = Callable[[int], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    def of_width(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")

    return of_width


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return re.sub("\x1b\\[[0-9]*m", "", capsys.readouterr().out).splitlines()


def test_a_table_that_is_fitted_to_a_terminal_cuts_no_text(capsys: pytest.CaptureFixture[str], terminal: Terminal):
    terminal(40)
    render.write_table(["dataset", "at", "rows"], [[NAME, AT, 123_456]], numbers=["rows"])
    head, line, *rows = lines_of(capsys)
    assert head.split() == ["dataset", "at", "rows"]
    assert len(line) == 40
    cells = [row.split() for row in rows]
    assert "".join(cell[0] for cell in cells) == NAME
    assert "".join(cell[1] for cell in cells if len(cell) > 1) == AT
    assert cells[0][2] == "123456"


@pytest.mark.parametrize("width", [20, 60, 80, 100, 120, 160, 200])
def test_a_table_of_many_columns_has_every_cell_in_every_terminal(
    capsys: pytest.CaptureFixture[str], terminal: Terminal, width: int
):
    terminal(width)
    render.write_table(STATUS, [STATUS_ROW, STATUS_ROW], numbers=STATUS[1:6])
    lines = lines_of(capsys)
    if lines[0].split()[-1] == NAME:  # too narrow: blocks
        assert width < 100
        blocks = "\n".join(lines).split("\n\n")
        assert len(blocks) == 2
        for block in blocks:
            pairs = [re.split(" {3,}", line) for line in block.splitlines()]
            assert pairs == [list(pair) for pair in zip(STATUS, STATUS_ROW, strict=True)]
        return
    assert all(len(line) <= width for line in lines)
    rule = next(at for at, line in enumerate(lines) if line.startswith("─"))
    body = lines[rule + 1 :]
    for number in ("123,456,789", "1,234", "1,234,567"):
        assert " ".join(body).split().count(number) == 2
    assert sorted("".join(body).replace(" ", "")) == sorted("".join(STATUS_ROW * 2).replace(" ", ""))


def test_a_table_without_rows_has_its_headings_in_every_terminal(
    capsys: pytest.CaptureFixture[str], terminal: Terminal
):
    terminal(20)
    render.write_rows(STATUS, [])
    assert lines_of(capsys)[0].split("  ")[0] == STATUS[0]


@pytest.mark.parametrize("width", [20, 60, 80])
def test_numbers_of_rows_are_not_split_over_two_lines(
    capsys: pytest.CaptureFixture[str], terminal: Terminal, width: int
):
    terminal(width)
    row = [49_176_104_500, 1_763_280_000_000, Decimal("12345678901.23"), None, -0.000001234567891]
    render.write_rows(["account", "opened_ms", "balance", "limit", "a name"], [row])
    shown = " ".join(lines_of(capsys)).split()
    assert {"49176104500", "1763280000000", "12345678901.23", "NULL", "-1.234567891e-06"} <= set(shown)


def test_a_wide_table_has_a_block_for_each_row_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], terminal: Terminal
):
    terminal(20)
    names = ["id", "name", "city"]
    render.write_rows(names, [["P1", "A name of many characters", "Bern"], ["P2", None, "Castle Combe"]])
    first = ["id     P1", "name   A name of many characters", "city   Bern"]
    assert lines_of(capsys) == [*first, "", "id     P2", "name   NULL", "city   Castle Combe"]

import re
import sys

import pytest

from siltstone.cli import render


def test_a_table_that_is_fitted_to_a_terminal_cuts_no_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    name, at = "catalogue.of_some_length.a_dataset_name", "2026-11-18T19:30:00+00:00"
    render.write_table(["dataset", "at", "rows"], [[name, at, 123_456]], numbers=["rows"])
    head, line, *rows = re.sub("\x1b\\[[0-9]*m", "", capsys.readouterr().out).splitlines()
    assert head.split() == ["dataset", "at", "rows"]
    assert len(line) == 40
    cells = [row.split() for row in rows]
    assert "".join(cell[0] for cell in cells) == name
    assert "".join(cell[1] for cell in cells if len(cell) > 1) == at
    assert cells[0][2] == "123456"

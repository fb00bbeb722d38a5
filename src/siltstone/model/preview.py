"""Previews of tables for prompts and notebooks: a few rows and columns, short texts, escaped HTML."""

import html
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

MAX_ROWS: Final = 10
MAX_COLUMNS: Final = 20
MAX_CELL_CHARS: Final = 40
"""Rows, columns and characters of a value in a preview, because a wide value must not fill the screen."""


def cell(value: Any) -> str:  # noqa: ANN401
    """Return one value on one line; null is ``NULL``.

    >>> cell(None), cell("a b"), cell(3)
    ('NULL', 'a b', '3')
    """
    text = "NULL" if value is None else str(value)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: MAX_CELL_CHARS + 1])
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"


def cells(table: pa.Table) -> tuple[list[str], list[list[str]]]:
    """Return the column names and first rows of a table as text. Omitted columns and rows are shown as ``…``."""
    shown = table.slice(0, MAX_ROWS)
    names = [cell(name) for name in table.column_names[:MAX_COLUMNS]]
    columns = [[cell(value) for value in _values(column)] for column in shown.columns[:MAX_COLUMNS]]
    if table.num_columns > MAX_COLUMNS:
        names.append("…")
        columns.append(["…"] * shown.num_rows)
    return names, [list(row) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> Iterable[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):  # a time outside Python's range
        return list(column.cast(pa.string()).to_pylist())


def text_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a prompt.

    >>> print(text_table(["id", "n"], [["a", "1"], ["bc", "22"]]))
    id | n
    ---+---
    a  | 1
    bc | 22
    """
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    lines = [
        " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in (names, *rows)
    ]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def html_table(names: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> str:
    """Return a table for a notebook; every text is escaped.

    >>> html_table(["a"], [["<b>"]], caption="x")
    '<table><caption>x</caption><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

"""Writes answers: tables for people, JSON and CSV for machines, one form for errors.

Standard output has only the answer. Errors, questions and progress go to standard error. Values may come from
untrusted data, so control characters are escaped and never sent to the terminal.
"""

import base64
import datetime
import decimal
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from siltstone.model import units

if TYPE_CHECKING:
    from typing import TextIO

    from siltstone.spark.progress import Progress

MAX_CELL_CHARS: Final = 120
"""Most characters of one value in a table. JSON and CSV have the whole value."""
MAX_FITTED_ROWS: Final = 200
"""Most rows of a table that is fitted to the terminal's width, because fitting takes a millisecond per row."""
GAP: Final = 3
"""Blanks between two columns."""
MIN_TEXT_WIDTH: Final = 10
"""Least width of a column of text in a narrow terminal. In fewer characters a name is not readable."""
NULL: Final = "NULL"
size: Final = units.size_text
counted: Final = units.counted


def show_error(kind: str, message: str, *, as_json: bool, reason: str | None = None) -> None:
    """Write one error to standard error."""
    shape = {"error": {"kind": kind, "reason": reason, "message": message}}
    sys.stderr.write(f"{json.dumps(shape, ensure_ascii=False) if as_json else f'silt: {message}'}\n")


def write_json(data: Any, *, file: "TextIO | None" = None) -> None:  # noqa: ANN401
    """Write one JSON document; default: to standard output."""
    (file or sys.stdout).write(json.dumps(plain(data), ensure_ascii=False, indent=2) + "\n")


def plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value in its JSON form: times as ISO text, decimals as text, bytes in base 64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case decimal.Decimal():
            return str(value)
        case datetime.datetime() | datetime.date():
            return moment(value.isoformat())
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case _:
            return str(value)


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, file: "TextIO | None" = None) -> None:
    """Write rows as CSV with a header; default: to standard output.

    Null is an empty field, empty text is `""`, a nested value is JSON. A row with a single null is `""`, too, because
    readers skip empty lines.
    """
    out = file or sys.stdout
    out.write(",".join(map(_csv_text, columns)) + "\n")
    for row in rows:
        out.write((",".join(map(_csv_field, row)) or '""') + "\n")


def _csv_field(value: Any) -> str:  # noqa: ANN401
    if value is None:
        return ""
    text = _text_of(value)
    return text.lower() if isinstance(value, bool) else _csv_text(text)


def _text_of(value: Any) -> str:  # noqa: ANN401
    """Return a value that is not null as text, a nested one as JSON."""
    ready = plain(value)
    return json.dumps(ready, ensure_ascii=False) if isinstance(ready, dict | list) else str(ready)


def _csv_text(text: str) -> str:
    """Return text as a field, in quotes if it is empty or contains a special character of CSV."""
    return '"' + text.replace('"', '""') + '"' if _CSV_SIGNS.search(text) or not text else text


_CSV_SIGNS: Final = re.compile(r'[",\r\n]')


def write_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows of a dataset as a table that distinguishes null, empty text and all other text."""
    rows = list(rows)
    whole = [all(map(_is_number, values)) for values in zip(*rows, strict=True)] or [False] * len(columns)
    _write_cells(columns, [[value_cell(value) for value in row] for row in rows], whole, [False] * len(columns))


def _is_number(value: Any) -> bool:  # noqa: ANN401
    return value is None or (isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Sequence[str] = ()) -> None:
    """Write a table for people. The columns in `numbers` are aligned to the right."""
    whole = [name in numbers for name in columns]
    _write_cells(columns, [[cell(value) for value in row] for row in rows], whole, whole)


def _write_cells(
    columns: Sequence[str], shown: Sequence[Sequence[str]], whole: Sequence[bool], to_right: Sequence[bool]
) -> None:
    """Write a table. The values of the columns in `whole` are never split over two lines."""
    names = [printable(name) for name in columns]
    if sys.stdout.isatty() and 0 < len(shown) <= MAX_FITTED_ROWS:
        _write_fitted(names, shown, whole, to_right)
    else:
        _write_plain(names, shown, to_right)


def _write_plain(names: Sequence[str], rows: Sequence[Sequence[str]], to_right: Sequence[bool]) -> None:
    """Write a table as wide as its content."""
    lines = [names, *rows]
    lengths = _cell_lengths(lines)
    widths = [max(column) for column in zip(*lengths, strict=True)]
    out = []
    for line, line_lengths in zip(lines, lengths, strict=True):
        gaps = [" " * (width - length) for width, length in zip(widths, line_lengths, strict=True)]
        cells = [gap + text if right else text + gap for text, gap, right in zip(line, gaps, to_right, strict=True)]
        out.append((" " * GAP).join(cells))
    out.insert(1, "─" * (sum(widths) + GAP * (len(widths) - 1)))
    sys.stdout.write("\n".join(out) + "\n")


def _write_fitted(
    names: Sequence[str], rows: Sequence[Sequence[str]], whole: Sequence[bool], to_right: Sequence[bool]
) -> None:
    """Write a table that fits the terminal. A text that does not fit continues on the next line; none is cut off.

    In a terminal that is too narrow even for that, each row is a block with one line for each column.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = _fitted_widths(names, rows, whole, available=console.width)
    if widths is None:
        _write_blocks(names, rows)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name, right, width in zip(names, to_right, widths, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold", width=width)
    for row in rows:
        table.add_row(*[Text(text) for text in row])
    console.print(table)


def _fitted_widths(
    names: Sequence[str], rows: Sequence[Sequence[str]], whole: Sequence[bool], *, available: int
) -> list[int] | None:
    """Return the width of each column so that the table fits, or None if the terminal is too narrow.

    Texts continue on the next line, headings too, but values of columns in `whole` do not. The widest column gives
    way first.
    """
    lengths = _cell_lengths([names, *rows])
    widths = [max(column) for column in zip(*lengths, strict=True)]
    words = [max(_cell_lengths([name.split()])[0], default=0) for name in names]
    numbers = [max(column) for column in zip(words, *lengths[1:], strict=True)]
    least = [
        number if is_whole else min(width, MIN_TEXT_WIDTH)
        for number, width, is_whole in zip(numbers, widths, whole, strict=True)
    ]
    room = available - GAP * (len(names) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda at: widths[at] if widths[at] > least[at] else 0)
        widths[widest] -= 1
    return widths


def _write_blocks(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write each row as lines of a name and its value, with an empty line between two rows."""
    lengths = _cell_lengths([names])[0]
    gaps = [" " * (max(lengths) + GAP - length) for length in lengths]
    blocks = ("".join(f"{name}{gap}{text}\n" for name, gap, text in zip(names, gaps, row, strict=True)) for row in rows)
    sys.stdout.write("\n".join(blocks))


def _cell_lengths(lines: Sequence[Sequence[str]]) -> list[list[int]]:
    from rich.cells import cell_len

    return [[len(text) if text.isascii() else cell_len(text) for text in line] for line in lines]


def write_facts(facts: Mapping[str, Any]) -> None:
    """Write named values, one per line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        sys.stdout.write(f"{name.ljust(width)}  {cell(value)}\n")


def write_line(text: str) -> None:
    """Write one line for people."""
    sys.stdout.write(f"{printable(text)}\n")


def write_note(text: str) -> None:
    """Write one line for people to standard error, beside the answer."""
    sys.stderr.write(f"{printable(text)}\n")


def write_text(text: str) -> None:
    """Write trusted text line by line, without escaping."""
    sys.stdout.write(f"{text}\n")


def flush() -> None:
    """Flush standard output."""
    sys.stdout.flush()


def value_cell(value: Any) -> str:  # noqa: ANN401
    """Return a value of a row. Null is ``NULL``; empty text, and text that looks like null, is in quotes.

    >>> [value_cell(value) for value in (None, "", "NULL", "-", "a")]
    ['NULL', '""', '"NULL"', '-', 'a']
    """
    if value is None:
        return NULL
    return json.dumps(value) if isinstance(value, str) and value in ("", NULL, '""', f'"{NULL}"') else cell(value)


def cell(value: Any) -> str:  # noqa: ANN401
    """Return a value as text for a table."""
    text = "-" if value is None else printable(_text_of(value))
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"


def printable(text: str) -> str:
    r"""Escape control characters of a terminal.

    >>> printable("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(text: str | None) -> str:
    """Return a time in the one form of all output: ISO 8601, UTC as ``Z``. None is empty text.

    >>> moment("2026-11-16T08:00:00+00:00"), moment(None)
    ('2026-11-16T08:00:00Z', '')
    """
    text = text or ""
    return f"{text.removesuffix('+00:00')}Z" if text.endswith("+00:00") else text


def number(count: int) -> str:
    """Return a number with thousands separators."""
    return f"{count:,}"


def seconds(duration: float) -> str:
    """Return a duration as text.

    >>> seconds(0.0123), seconds(2.345)
    ('12 ms', '2.3 s')
    """
    return f"{duration * 1000:.0f} ms" if duration < 1 else f"{duration:.1f} s"


@contextmanager
def working(text: str, *, as_json: bool) -> "Iterator[Callable[[Progress | str], None] | None]":
    """Show at a terminal, and only there, that a long operation is running.

    Yields a function that shows progress or a line about the current step, or None if there is no terminal. The
    spinner writes to a copy of standard error, because the start of a JVM borrows the original.
    """
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with (
        os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal,
        Console(file=terminal).status(printable(text)) as line,
    ):
        yield lambda progress: line.update(printable(f"{text}: {progress_line(progress)}"))


def progress_line(progress: "Progress | str") -> str:
    """Return the progress of Spark as text; text is returned unchanged."""
    if isinstance(progress, str):
        return progress
    read = f", {size(progress.bytes_read)} read" if progress.bytes_read else ""
    return f"{number(progress.tasks_done)} of {counted(progress.tasks, 'task')}{read}"

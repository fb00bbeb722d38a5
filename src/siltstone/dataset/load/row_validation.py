"""Row checks as Spark expressions: counted while a load is written, reported in errors, written into the quarantine.

Only loads import this module, so it imports PySpark.
"""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from siltstone.dataset.load.source_files import TEXT_READ_ERRORS, open_text
from siltstone.dataset.read.dedup import RANK
from siltstone.dataset.store import Store
from siltstone.model.columns import REASON
from siltstone.model.schema import MAX_KEY_BYTES
from siltstone.spark_tasks.csv_rows import UNCLOSED
from siltstone.spark_tasks.json_rows import FILE, TEXT, UNREAD
from siltstone.spark_tasks.values import DAY_MICROS, FIRST_DAY, LAST_DAY

_ValueCheck = Callable[[Column, pa.DataType], Column | None]
EXAMPLES: Final = 3
EXAMPLE_CHARS: Final = 200
MATCHED_CHARS: Final = 1_000
MAX_SEARCHED_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of a file that are searched for the number of a bad line: some seconds."""
COPIES: Final = "_copies"
"""Column: number of rows with the same key."""
BAD: Final = {
    "null_keys": "without a key ({key})",
    "null_required": "without a value that must not be null",
    "long_keys": f"with a key of more than {MAX_KEY_BYTES} bytes",
    "bad_text": "with text that is not UTF-8",
    "bad_time": "with a time that is not in the years 1 to 9999",
    "bad_map": "with a map that has a key twice",
    "empty_partition": "with empty text in a partition column, which readers take for null",
}
"""Kinds of bad rows, each with its text for messages."""


def rows_text(count: int) -> str:
    """Return the beginning of a sentence about this number of rows."""
    return f"there {'is 1 row' if count == 1 else f'are {count} rows'}"


def _conditions(store: Store, columns: Sequence[str], *, keys_only: bool = False) -> dict[str, Column]:
    """Return the faults that a row can have, each as a condition that is never null."""
    none = F.lit(False)  # noqa: FBT003
    faults = {"unread": F.col(UNREAD).isNotNull() if UNREAD in columns else none, **dict.fromkeys(BAD, none)}
    for field in store.schema:
        for what, bad in _field_conditions(store, field, keys_only=keys_only).items():
            faults[what] |= bad
    return faults


def _field_conditions(store: Store, field: pa.Field, *, keys_only: bool = False) -> dict[str, Column]:
    """Return the faults that a value of a column can have, each as a condition that is never null."""
    none = F.lit(False)  # noqa: FBT003
    column = F.col(f"`{field.name}`")
    faults = {}
    for what, is_bad in (("bad_text", _bad_text), ("bad_time", _bad_time), ("bad_map", _bad_map)):
        if (bad := _bad_inside(column, field.type, is_bad)) is not None:
            faults[what] = F.coalesce(bad, none)
    if field.name in store.spec.key:
        faults["null_keys"] = column.isNull()
        if pa.types.is_string(field.type):
            faults["long_keys"] = F.coalesce(F.octet_length(column) > MAX_KEY_BYTES, none)
    elif not field.nullable and not keys_only:
        faults["null_required"] = column.isNull()
    if field.name in store.spec.partition_by and pa.types.is_string(field.type):
        faults["empty_partition"] = F.coalesce(column == "", none)
    return faults


def bad_examples(frame: DataFrame, store: Store, what: str) -> list[str]:
    """Return a few columns with a bad value of one kind, with their files if known, for an error message.

    Only times are shown: other bad values are missing, too long, or not text.
    """
    named = []
    for field in store.schema:
        bad = _field_conditions(store, field).get(what) if field.name in frame.columns else None
        if bad is not None:
            text = [F.lit(f"column {field.name!r}")]
            text += [F.lit(" is "), F.col(f"`{field.name}`").cast("string")] if what == "bad_time" else []
            named.append(F.when(bad, F.concat(*text)))
    if not named:
        return []
    file = F.col(FILE) if FILE in frame.columns else F.lit(None).cast("string")
    bad_rows = frame.select(F.coalesce(*named).alias("column"), file.alias("file")).where("column IS NOT NULL")
    return [
        row["column"][:EXAMPLE_CHARS] + (f" in {_path(row['file'])}" if row["file"] else "")
        for row in bad_rows.limit(EXAMPLES).toArrow().to_pylist()
    ]


def _path(uri: str) -> Path:
    return Path(unquote(uri).removeprefix("file:"))


def _bad_time(column: Column, kind: pa.DataType) -> Column | None:
    """Return whether a date or time is outside the years 1 to 9999, in UTC; None for other types."""
    if pa.types.is_date(kind):
        return ~F.unix_date(column).between(FIRST_DAY, LAST_DAY)
    if not pa.types.is_timestamp(kind):
        return None
    if kind.tz is None:
        return ~F.year(column).between(1, 9999)
    return ~F.unix_micros(column).between(FIRST_DAY * DAY_MICROS, (LAST_DAY + 1) * DAY_MICROS - 1)


def _bad_text(column: Column, kind: pa.DataType) -> Column | None:
    """Return whether text is not UTF-8; None for other types."""
    return ~F.is_valid_utf8(column) if pa.types.is_string(kind) else None


def _bad_map(column: Column, kind: pa.DataType) -> Column | None:
    """Return whether a map has a key twice; None for other types."""
    if not pa.types.is_map(kind):
        return None
    keys = F.map_keys(column)
    return F.size(F.array_distinct(keys)) < F.size(keys)


def _bad_inside(column: Column, kind: pa.DataType, is_bad: _ValueCheck) -> Column | None:
    """Return whether a value is bad at any depth; None if no value of the type can be bad."""
    if pa.types.is_list(kind):
        return _bad_items(column, kind.value_type, is_bad)
    if pa.types.is_map(kind):
        parts = [
            is_bad(column, kind),
            _bad_items(F.map_keys(column), kind.key_type, is_bad),
            _bad_items(F.map_values(column), kind.item_type, is_bad),
        ]
    elif pa.types.is_struct(kind):
        parts = [_bad_inside(column.getField(inner.name), inner.type, is_bad) for inner in kind.fields]
    else:
        return is_bad(column, kind)
    conditions = [F.coalesce(part, F.lit(False)) for part in parts if part is not None]  # noqa: FBT003
    return reduce(operator.or_, conditions) if conditions else None


def _bad_items(column: Column, kind: pa.DataType, is_bad: _ValueCheck) -> Column | None:
    def is_bad_item(item: Column) -> Column:
        condition = _bad_inside(item, kind, is_bad)
        return F.lit(False) if condition is None else F.coalesce(condition, F.lit(False))  # noqa: FBT003

    return None if _bad_inside(F.lit(None), kind, is_bad) is None else F.exists(column, is_bad_item)


def bad_reason(store: Store, columns: Sequence[str]) -> Column:
    """Return why a row is bad; null for a good row."""
    faults = _conditions(store, columns)
    reasons = [
        F.when(faults[name], F.lit("a row " + what.format(key=", ".join(store.spec.key)))) for name, what in BAD.items()
    ]
    return F.coalesce(*([F.col(UNREAD)] if UNREAD in columns else []), *reasons)


def quarantine_frame(frame: DataFrame, store: Store) -> DataFrame:
    """Return the bad rows with reason, file and source text, in the form of the quarantine."""
    marks = [F.col(mark) if mark in frame.columns else F.lit(None).cast("string").alias(mark) for mark in (FILE, TEXT)]
    reason = bad_reason(store, frame.columns)
    return frame.where(reason.isNotNull()).select(reason.alias(REASON), *marks, *store.schema.names)


def counts_of(store: Store, columns: Sequence[str], *, quarantine: bool, keys_only: bool = False) -> list[Column]:
    """Return the expressions to count; with `keys_only`, only the key is required.

    The total of bad rows is counted only for a `quarantine`, because it costs time.
    """

    def total(condition: Column) -> Column:
        return F.sum(F.when(condition, 1).otherwise(0))

    faults = _conditions(store, columns, keys_only=keys_only)
    counts = [F.count(F.lit(1)).alias("rows"), *[total(condition).alias(name) for name, condition in faults.items()]]
    good = F.lit(True)  # noqa: FBT003
    if quarantine:
        bad = reduce(operator.or_, faults.values())
        counts.append(total(bad).alias("bad"))
        if UNREAD in columns:
            counts.append(total(F.col(UNREAD) == UNCLOSED).alias("unclosed"))
        good = ~bad
    if COPIES in columns:
        counts.append(total(good & (F.col(COPIES) > 1)).alias("duplicates"))
    if RANK in columns:
        counts.append(total(good & (F.col(RANK) > 1)).alias("lost"))
    return counts


def duplicate_examples(frame: DataFrame, key: Sequence[str]) -> list[str]:
    """Return a few repeated keys with their counts, for an error message."""
    good = frame.where(F.col(UNREAD).isNull()) if UNREAD in frame.columns else frame
    repeated = good.groupBy(*key).agg(F.count(F.lit(1)).alias(COPIES)).where(F.col(COPIES) > 1)
    rows = repeated.orderBy(F.col(COPIES).desc(), *key).limit(EXAMPLES).toArrow().to_pylist()
    return [", ".join(f"{name}={row[name]!r}" for name in key) + f" ({row[COPIES]} times)" for row in rows]


def unread_examples(frame: DataFrame, *, encoding: str, reason: str | None = None) -> list[str]:
    """Return a few unreadable rows, of one reason or any, with files and lines, for an error message."""
    is_unread = F.col(UNREAD).isNotNull() if reason is None else F.col(UNREAD) == reason
    examples = []
    for row in frame.where(is_unread).limit(EXAMPLES).toArrow().to_pylist():
        file, text = _path(row[FILE]), row[TEXT]
        line = line_of(file, text, encoding=encoding)
        where = f"{file}, line {line}" if line is not None else str(file)
        examples.append(f"{where}: {row[UNREAD]} ({text[:EXAMPLE_CHARS]})")
    return examples


def line_of(file: Path, text: str, *, encoding: str) -> int | None:
    """Return the number, from 1, of the first line that starts with a text; None if no searched line does.

    Tasks read parts of files and do not know the numbers of their lines.
    """
    start = text[:MATCHED_CHARS]
    seen = 0
    try:
        with open_text(file) as lines:
            for number, line in enumerate(lines, start=1):
                if line.decode(encoding, errors="replace").lstrip("\ufeff").startswith(start):
                    return number
                seen += len(line)
                if seen > MAX_SEARCHED_BYTES:
                    return None
    except TEXT_READ_ERRORS:
        return None
    return None

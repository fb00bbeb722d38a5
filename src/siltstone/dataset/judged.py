"""What is wrong with rows on Spark, as expressions: counted while a load is written, told in errors, written into quarantine."""

import operator
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa

from siltstone.dataset.dedup import RANK
from siltstone.dataset.json_worker import FILE, TEXT, UNREAD
from siltstone.dataset.log_rows import DAY_MICROS, FIRST_DAY, LAST_DAY
from siltstone.dataset.store import Store
from siltstone.model.columns import REASON
from siltstone.model.schema import MAX_KEY_BYTES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXAMPLES: Final = 3
EXAMPLE_CHARS: Final = 200
COPIES: Final = "_copies"
"""How many rows have the key of this one."""
BAD: Final = {
    "null_keys": "without a key ({key})",
    "null_required": "without a value that must not be null",
    "long_keys": f"with a key of more than {MAX_KEY_BYTES} bytes",
    "bad_text": "with text that is not UTF-8",
    "bad_time": "with a time that is not in the years 1 to 9999",
    "empty_partition": "with empty text in a partition column, which readers take for null",
}
"""What is wrong with a row, and how it is told."""


def told_rows(count: int) -> str:
    """Begin a sentence about so many rows."""
    return f"there {'is 1 row' if count == 1 else f'are {count} rows'}"


def _conditions(store: Store, columns: Sequence[str], *, keys_only: bool = False) -> "dict[str, Column]":
    """Return what can be wrong with a row, each as a condition that is never null."""
    from pyspark.sql import functions as F

    none = F.lit(False)  # noqa: FBT003
    found = {"unread": F.col(UNREAD).isNotNull() if UNREAD in columns else none, **dict.fromkeys(BAD, none)}
    for field in store.schema:
        if (bad := _bad_text(F.col(f"`{field.name}`"), field.type)) is not None:
            found["bad_text"] |= F.coalesce(bad, none)
        if field.name in store.spec.key:
            found["null_keys"] |= F.col(field.name).isNull()
            if pa.types.is_string(field.type):
                found["long_keys"] |= F.coalesce(F.octet_length(field.name) > MAX_KEY_BYTES, none)
        elif not field.nullable and not keys_only:
            found["null_required"] |= F.col(field.name).isNull()
        if field.name == store.spec.time:
            found["bad_time"] |= F.coalesce(_bad_time(field), none)
        if field.name in store.spec.partition_by and pa.types.is_string(field.type):
            found["empty_partition"] |= F.coalesce(F.col(field.name) == "", none)
    return found


def _bad_time(field: pa.Field) -> "Column":
    """Return whether a time is outside of the years 1 to 9999, in UTC."""
    from pyspark.sql import functions as F

    if pa.types.is_timestamp(field.type) and field.type.tz is not None:
        return ~F.unix_micros(field.name).between(FIRST_DAY * DAY_MICROS, (LAST_DAY + 1) * DAY_MICROS - 1)
    return ~F.year(field.name).between(1, 9999)


def _bad_text(column: "Column", kind: pa.DataType) -> "Column | None":
    """Return whether there is text in a column, however deep inside, that is not UTF-8; None if there can be no text."""
    from pyspark.sql import functions as F

    if pa.types.is_string(kind):
        return ~F.is_valid_utf8(column)
    if pa.types.is_list(kind):
        return _bad_items(column, kind.value_type)
    if pa.types.is_map(kind):
        parts = [_bad_items(F.map_keys(column), kind.key_type), _bad_items(F.map_values(column), kind.item_type)]
    elif pa.types.is_struct(kind):
        parts = [_bad_text(column.getField(inner.name), inner.type) for inner in kind.fields]
    else:
        return None
    found = [F.coalesce(part, F.lit(False)) for part in parts if part is not None]  # noqa: FBT003
    return reduce(operator.or_, found) if found else None


def _bad_items(column: "Column", kind: pa.DataType) -> "Column | None":
    from pyspark.sql import functions as F

    def is_bad(item: "Column") -> "Column":
        found = _bad_text(item, kind)
        return F.lit(False) if found is None else F.coalesce(found, F.lit(False))  # noqa: FBT003

    return None if _bad_text(F.lit(None), kind) is None else F.exists(column, is_bad)


def bad_reason(store: Store, columns: Sequence[str]) -> "Column":
    """Return why a row is bad, null if it is good."""
    from pyspark.sql import functions as F

    found = _conditions(store, columns)
    reasons = [
        F.when(found[name], F.lit("a row " + what.format(key=", ".join(store.spec.key)))) for name, what in BAD.items()
    ]
    return F.coalesce(*([F.col(UNREAD)] if UNREAD in columns else []), *reasons)


def rejected(frame: "DataFrame", store: Store) -> "DataFrame":
    """Return the bad rows with the reason, the file and the text they come from, as the quarantine holds them."""
    from pyspark.sql import functions as F

    marks = [F.col(mark) if mark in frame.columns else F.lit(None).cast("string").alias(mark) for mark in (FILE, TEXT)]
    reason = bad_reason(store, frame.columns)
    return frame.where(reason.isNotNull()).select(reason.alias(REASON), *marks, *store.schema.names)


def counts_of(store: Store, columns: Sequence[str], *, aside: bool, keys_only: bool = False) -> "list[Column]":
    """Return what is counted; how many rows are bad in one way or another only if these are put aside: it costs.

    Of rows that are `keys_only` nothing but the key must be there.
    """
    from pyspark.sql import functions as F

    def total(condition: "Column") -> "Column":
        return F.sum(F.when(condition, 1).otherwise(0))

    found = _conditions(store, columns, keys_only=keys_only)
    counts = [F.count(F.lit(1)).alias("rows"), *[total(condition).alias(name) for name, condition in found.items()]]
    good = F.lit(True)  # noqa: FBT003
    if aside:
        bad = reduce(operator.or_, found.values())
        counts.append(total(bad).alias("bad"))
        good = ~bad
    if COPIES in columns:
        counts.append(total(good & (F.col(COPIES) > 1)).alias("duplicates"))
    if RANK in columns:
        counts.append(total(good & (F.col(RANK) > 1)).alias("lost"))
    return counts


def duplicate_examples(frame: "DataFrame", key: Sequence[str]) -> list[str]:
    """Return a few repeated keys with their counts, for an error message."""
    from pyspark.sql import functions as F

    good = frame.where(F.col(UNREAD).isNull()) if UNREAD in frame.columns else frame
    repeated = good.groupBy(*key).agg(F.count(F.lit(1)).alias(COPIES)).where(F.col(COPIES) > 1)
    rows = repeated.orderBy(F.col(COPIES).desc(), *key).limit(EXAMPLES).toArrow().to_pylist()
    return [", ".join(f"{name}={row[name]!r}" for name in key) + f" ({row[COPIES]} times)" for row in rows]


def unread_examples(frame: "DataFrame") -> list[str]:
    """Return a few rows that could not be read, with their files, for an error message.

    All columns are asked for: what Spark finds wrong with a line of CSV depends on the columns that it has to read.
    """
    from pyspark.sql import functions as F

    found = frame.where(F.col(UNREAD).isNotNull()).limit(EXAMPLES).toArrow().to_pylist()
    return [f"{unquote(row[FILE]).removeprefix('file:')}: {row[UNREAD]} ({row[TEXT][:EXAMPLE_CHARS]})" for row in found]

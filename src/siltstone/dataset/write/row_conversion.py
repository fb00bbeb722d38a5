"""Converts rows and keys of a caller (dicts, Arrow, pandas) to rows of a change file. Bad rows are rejected by name.

Nothing here writes. An error names the row, the column, the value and the rule, and nothing is changed.
"""

import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.schema_compat import all_fit, fits, refuse_unknown
from siltstone.errors import InvalidRequest, one_line
from siltstone.model.columns import ACTOR, BATCH_ID, OP, POS, REASON, ROW_SEQ, WRITTEN_AT, Op
from siltstone.model.schema import MAX_KEY_BYTES, a_type, type_name
from siltstone.spark_tasks.values import MISFITS, accepted, inner_arrays, outside_years, reader, shown

MAX_FILE_BYTES: Final = 512 * 1024 * 1024
"""Arrow bytes of the rows in one change file. A reader holds a file in memory, and Arrow's offsets end at 2 GiB."""
MAX_CAST_BYTES: Final = 1024 * 1024 * 1024
"""Arrow bytes that are cast at once. Text beyond 2 GiB does not fit one array with 32-bit offsets."""


class BadRow(InvalidRequest):
    """A row that does not fit. `detail` is the fault, without the dataset and the number of the row."""

    def __init__(self, message: str, *, detail: str) -> None:
        super().__init__(message)
        self.detail = one_line(detail)


def _bad_rows_error(dataset: str, detail: str) -> BadRow:
    """Return the error for rows that cannot be named one by one."""
    return BadRow(f"Dataset {dataset}: {detail}", detail=detail)


def _bad_row_error(dataset: str, row: int, what: str, rule: str = "") -> BadRow:
    return BadRow(f"Dataset {dataset}: {what} in row {row}.{rule}", detail=f"{what}.")


def to_table(rows: Any, schema: pa.Schema, *, dataset: str, any_year: bool = False) -> pa.Table:  # noqa: ANN401
    """Return the rows as an Arrow table with exactly the schema's columns; InvalidRequest names what does not fit.

    Missing columns become null where they may. Values are cast only without loss. Dates and times are in the years 1
    to 9999. Keys may have `any_year`, so that rows of earlier versions can be found and hidden.
    """
    try:
        source = _as_arrow(rows, schema, dataset)
        source.validate(full=True)  # text that is not UTF-8 could be written and never be read
    except MISFITS as error:
        raise _bad_rows_error(dataset, f"the rows cannot be read as columns of one type: {error}") from error
    if len(set(source.column_names)) != len(source.column_names):
        raise _bad_rows_error(dataset, f"a column is given twice ({', '.join(source.column_names)}).")
    refuse_unknown(source.column_names, schema, dataset=dataset)
    have = dict(zip(source.column_names, source.columns, strict=True))
    columns = [_convert_column(have.get(field.name), field, dataset, rows=source.num_rows) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    for field, column in zip(schema, table.columns, strict=True):
        if not field.nullable and column.null_count:
            row = pc.index(column.is_null(), value=True).as_py()
            raise _bad_row_error(dataset, row, f"column {field.name!r} must not be null, but is")
        if not any_year and outside_years(column):
            row = _first_row(column, outside_years)
            raise _bad_row_error(dataset, row, f"column {field.name!r} has a time that is not in the years 1 to 9999")
        if has_repeated_keys(column):
            row = _first_row(column, has_repeated_keys)
            rule = " Each key may be there once."
            raise _bad_row_error(dataset, row, f"column {field.name!r} has a map with a key twice", rule)
    return table


def _as_arrow(rows: Any, schema: pa.Schema, dataset: str) -> pa.Table:  # noqa: ANN401
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, Mapping):
        rows = [rows]
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return _from_dicts(rows, schema, dataset)
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):
        return _from_pandas(rows, schema, dataset)
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    raise _bad_rows_error(
        dataset, f"rows must be a list of dicts, an Arrow table, a pandas or a Spark frame, not {type(rows).__name__}."
    )


def _from_pandas(frame: Any, schema: pa.Schema, dataset: str) -> pa.Table:  # noqa: ANN401
    """Return a pandas frame as an Arrow table.

    Columns of Python objects whose type Arrow would guess wrong are read value by value. Arrow gives every dict of a
    column the keys of all of them, and cuts times to dates.
    """
    objects = {name for name, kind in zip(frame.columns, frame.dtypes, strict=True) if str(kind) == "object"}
    by_value = [f for f in schema if f.name in objects and (pa.types.is_nested(f.type) or pa.types.is_date(f.type))]
    if not by_value or not frame.columns.is_unique:
        return pa.Table.from_pandas(frame, preserve_index=False)
    rest = pa.Table.from_pandas(frame.drop(columns=[f.name for f in by_value]), preserve_index=False)
    read = {
        # pandas writes NaN for null
        f.name: _array([None if isinstance(v, float) and math.isnan(v) else v for v in frame[f.name]], f, dataset)
        for f in by_value
    }
    return pa.table(dict(zip(rest.column_names, rest.columns, strict=True)) | read)


def _from_dicts(rows: Sequence[Any], schema: pa.Schema, dataset: str) -> pa.Table:
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            what = f"is of type {type(row).__name__}, not a dict (an object, in JSON)."
            raise BadRow(f"Dataset {dataset}: row {number} {what}", detail=f"it {what}")
        names |= dict.fromkeys(row)
    refuse_unknown(names, schema, dataset=dataset)
    arrays = {name: _array([row.get(name) for row in rows], schema.field(name), dataset) for name in names}
    return pa.table(arrays) if arrays else pa.table({schema.names[0]: pa.nulls(len(rows), schema.field(0).type)})


def _array(values: list[Any], field: pa.Field, dataset: str) -> pa.Array:
    """Build one column. Text is parsed as a date, a time, a decimal or bytes, because JSON has no such values."""
    read = reader(field.type)
    try:
        return pa.array([read(value) for value in values], field.type)
    except MISFITS as error:
        row = next((row for row, value in enumerate(values) if not all_fit([value], field.type)), None)
        if row is None:
            what = f"column {field.name!r} does not fit {type_name(field.type)}: {error}"
            raise _bad_rows_error(dataset, what) from error
        raise _bad_value_error(row, shown(values[row]), field, dataset) from error


def _bad_value_error(row: int, value: str, field: pa.Field, dataset: str) -> InvalidRequest:
    """Return the error for one value, with the rule that it breaks."""
    what = f"column {field.name!r}: {value} is not {a_type(field.type)}. Accepted: {accepted(field.type)}."
    return BadRow(f"Dataset {dataset}: row {row}, {what}", detail=what)


def _convert_column(column: pa.ChunkedArray | None, field: pa.Field, dataset: str, *, rows: int) -> pa.ChunkedArray:
    """Return a column in the dataset's type. A value that would lose data is rejected."""
    if column is None:
        return pa.chunked_array([pa.nulls(rows, field.type)])
    if column.type == field.type:
        return column
    difference = f"column {field.name!r} is {a_type(field.type)}, the given column is {column.type}."
    if pa.types.is_nested(column.type) and pa.types.is_nested(field.type) and not fits(column.type, field.type):
        return _convert_nested(column, field, dataset, difference)
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(field.type):
        if (column.type.tz is None) != (field.type.tz is None):
            zone = "have no" if column.type.tz is None else "have a"
            what = f"column {field.name!r} is {a_type(field.type)}; the given times {zone} time zone."
            raise _bad_rows_error(dataset, what)
    elif _loses_meaning(column.type, field.type):
        raise _bad_rows_error(dataset, difference)
    try:
        return _cast(_in_castable_chunks(column), field.type)
    except MISFITS as error:
        if not len(column):
            raise _bad_rows_error(dataset, difference) from error
        row = _first_row(column, lambda part: not _can_cast(part, field.type))
        raise _bad_value_error(row, _shown(column[row]), field, dataset) from error


def _convert_nested(column: pa.ChunkedArray, field: pa.Field, dataset: str, difference: str) -> pa.ChunkedArray:
    """Return a nested column, read value by value in the dataset's type."""
    if _has_struct_for_map(column.type, field.type):
        raise _bad_rows_error(
            dataset,
            f"{difference} A struct has every field in every row, so it does not say which keys a row has. "
            "Give a map, or lists of [key, value] pairs.",
        )
    try:
        values = column.to_pylist()
    except MISFITS as error:  # a repeated field, or a time that Python cannot hold
        raise _bad_rows_error(dataset, f"column {field.name!r} cannot be read: {error}.") from error
    return pa.chunked_array([_array(values, field, dataset)])


def _has_struct_for_map(source: pa.DataType, target: pa.DataType) -> bool:
    """True if a type has a struct where the other has a map, at any depth."""
    if pa.types.is_map(target):
        return bool(pa.types.is_struct(source)) or (
            pa.types.is_map(source)
            and (
                _has_struct_for_map(source.key_type, target.key_type)
                or _has_struct_for_map(source.item_type, target.item_type)
            )
        )
    if pa.types.is_struct(target) and pa.types.is_struct(source):
        kinds = {field.name: field.type for field in target.fields}
        return any(_has_struct_for_map(f.type, kinds[f.name]) for f in source.fields if f.name in kinds)
    if pa.types.is_list(target) and pa.types.is_nested(source) and source.num_fields == 1:
        return _has_struct_for_map(source.field(0).type, target.value_type)
    return False


def _shown(value: pa.Scalar) -> str:
    try:
        return shown(value.as_py())
    except MISFITS:  # a time that Python cannot hold
        return f"the given {value.type}"


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column if nothing is lost. Arrow would turn values beyond a 4-byte float into infinity."""
    cast = column.cast(kind, safe=True)
    if pa.types.is_float32(kind) and pc.any(pc.and_(pc.is_inf(cast), pc.is_finite(column.cast(pa.float64())))).as_py():
        raise OverflowError(kind)
    return cast


def _can_cast(column: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        _cast(column, kind)
    except MISFITS:
        return False
    return True


def has_repeated_keys(column: pa.Array | pa.ChunkedArray) -> bool:
    """True if a map of a column, at any depth, has a key twice."""
    if isinstance(column, pa.ChunkedArray):
        return any(has_repeated_keys(chunk) for chunk in column.chunks)
    inner = inner_arrays(column)
    if pa.types.is_map(column.type):
        rows = np.repeat(np.arange(len(column)), np.diff(column.offsets.to_numpy()))
        if _has_key_twice(rows, inner[0]):
            return True
    return any(has_repeated_keys(part) for part in inner)


def _has_key_twice(rows: "np.ndarray[Any, Any]", keys: pa.Array) -> bool:
    if pa.types.is_nested(keys.type):  # Arrow groups by plain values alone
        pairs = list(zip(rows.tolist(), map(repr, keys.to_pylist()), strict=True))
        return len(set(pairs)) < len(pairs)
    pairs = pa.table({"row": rows, "key": keys})
    return bool(pairs.group_by(["row", "key"], use_threads=False).aggregate([]).num_rows < pairs.num_rows)


def _first_row(column: pa.ChunkedArray, is_bad: Callable[[pa.ChunkedArray], bool]) -> int:
    """Return the number of the first bad row of a column that has one, by bisection."""
    first, count = 0, len(column)
    while count > 1:
        if is_bad(column.slice(first, count // 2)):
            count //= 2
        else:
            first, count = first + count // 2, count - count // 2
    return first


def _in_castable_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column in chunks that fit a cast to 32-bit offsets."""
    if column.nbytes <= MAX_CAST_BYTES:
        return column
    step = max(1, len(column) * MAX_CAST_BYTES // column.nbytes)
    parts = [column.slice(first, step) for first in range(0, len(column), step)]
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], column.type)


def _loses_meaning(source: pa.DataType, target: pa.DataType) -> bool:
    """True if Arrow would convert between kinds: text to number, number to time, time to date, float to decimal."""
    if pa.types.is_null(source):
        return False
    if pa.types.is_dictionary(source):
        return _loses_meaning(source.value_type, target)
    if isinstance(source, pa.BaseExtensionType) and pa.types.is_integer(source.storage_type):
        return True  # a period of pandas, for example, which is not a number
    kinds = (_is_text, pa.types.is_boolean, pa.types.is_temporal, pa.types.is_date, pa.types.is_nested)
    return any(is_kind(source) != is_kind(target) for is_kind in kinds) or (
        pa.types.is_floating(source) and pa.types.is_decimal(target)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def key_table(keys: Any, schema: pa.Schema, key: Sequence[str], *, dataset: str) -> pa.Table:  # noqa: ANN401
    """Return keys in the dataset's types, one row for each.

    Keys are a list of key values, or of tuples or dicts of a composite key. An Arrow table or a pandas frame is
    accepted, too.
    """
    key_schema = pa.schema([schema.field(name) for name in key])
    if isinstance(keys, Sequence) and not isinstance(keys, str | bytes):
        keys = [_key_row(item, key, dataset) for item in keys]
    elif not isinstance(keys, pa.Table) and not hasattr(keys, "iloc"):
        raise InvalidRequest(f"Dataset {dataset}: pass the keys as a list, not as {type(keys).__name__}.")
    return to_table(keys, key_schema, dataset=dataset, any_year=True)


def _key_row(item: Any, key: Sequence[str], dataset: str) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(item, dict):
        return item
    values = item if isinstance(item, tuple | list) else (item,)
    if len(values) != len(key):
        raise InvalidRequest(f"Dataset {dataset}: a key has {len(key)} values ({', '.join(key)}), not {item!r}.")
    return dict(zip(key, values, strict=True))


def check_batch(table: pa.Table, key: Sequence[str], *, dataset: str) -> None:
    """Reject a batch without rows, or with null or oversized keys."""
    if not table.num_rows:
        raise InvalidRequest(f"Dataset {dataset}: the batch is empty; nothing was written.")
    check_keys(table, key, dataset=dataset)


def check_keys(table: pa.Table, key: Sequence[str], *, dataset: str) -> None:
    """Reject keys that are null or longer than 1 KB."""
    for name in key:
        column = table.column(name)
        if column.null_count:
            row = pc.index(column.is_null(), value=True).as_py()
            raise _bad_row_error(dataset, row, f"key column {name!r} is missing or null")
        if pa.types.is_string(column.type):
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            if longest > MAX_KEY_BYTES:
                raise _bad_rows_error(
                    dataset, f"a value of key column {name!r} takes {longest} bytes; {MAX_KEY_BYTES} at most."
                )


def file_parts(table: pa.Table, *, max_rows: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield parts of at most `max_rows` rows and about `MAX_FILE_BYTES`, each with the position of its first row."""
    by_size = table.num_rows * MAX_FILE_BYTES // max(1, table.nbytes)
    step = max(1, min(max_rows, by_size))
    for first in range(0, table.num_rows, step):
        yield first, table.slice(first, step)


def change_rows(
    table: pa.Table,
    *,
    op: Op,
    schema: pa.Schema,
    batch_id: str,
    written_at: datetime.datetime,
    first_position: int = 0,
    actor: str | None = None,
    reason: str | None = None,
) -> pa.Table:
    """Return rows in the form of a change file, from a position in their batch on. A tombstone's other columns are null."""
    rows = table.num_rows
    ours: dict[str, Any] = {
        OP: pa.repeat(pa.scalar(op.value), rows),
        POS: pa.arange(first_position, first_position + rows),
        ROW_SEQ: pa.nulls(rows, pa.int64()),
        BATCH_ID: pa.repeat(pa.scalar(batch_id), rows),
        WRITTEN_AT: pa.repeat(pa.scalar(written_at, pa.timestamp("us", tz="UTC")), rows),
        ACTOR: pa.repeat(pa.scalar(actor, pa.string()), rows),
        REASON: pa.repeat(pa.scalar(reason, pa.string()), rows),
    }
    have = dict(zip(table.column_names, table.columns, strict=True)) | ours
    arrays = [have[f.name] if f.name in have else pa.nulls(rows, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)

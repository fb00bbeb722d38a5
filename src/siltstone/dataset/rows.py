"""From what people pass in (dicts, Arrow, pandas) to the rows of a change file; whatever does not fit is refused by name.

Nothing here writes. A refusal names the column, the row and the value, and changes nothing.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.values import MISFITS, read_value
from siltstone.errors import InvalidRequest
from siltstone.model.columns import CHANGE_FIELDS, Op
from siltstone.model.schema import MAX_KEY_BYTES, a_type, type_name


def to_table(rows: Any, schema: pa.Schema, *, dataset: str) -> pa.Table:  # noqa: ANN401
    """Return the rows as an Arrow table with exactly the schema's columns.

    Missing columns become null where they may. Values are cast only where nothing is lost.

    Raises:
        InvalidRequest: unknown or missing columns, or a value that does not fit.
    """
    try:
        given = _as_arrow(rows, schema, dataset)
        given.validate(full=True)  # text that is not UTF-8 could be written and never be read
    except MISFITS as error:
        raise InvalidRequest(f"Dataset {dataset}: the rows cannot be read as columns of one type: {error}") from error
    if len(set(given.column_names)) != len(given.column_names):
        raise InvalidRequest(f"Dataset {dataset}: a column is given twice ({', '.join(given.column_names)}).")
    unknown = [name for name in given.column_names if name not in schema.names]
    if unknown:
        raise InvalidRequest(
            f"Dataset {dataset} has no column {', '.join(map(repr, unknown))}. It has {', '.join(schema.names)}."
        )
    columns = [_column(given, field, dataset) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    for field in schema:
        if not field.nullable and table.column(field.name).null_count:
            row = pc.index(table.column(field.name).is_null(), value=True).as_py()
            raise InvalidRequest(f"Dataset {dataset}: column {field.name!r} must not be null, but is in row {row}.")
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
        return pa.Table.from_pandas(rows, preserve_index=False)
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    raise InvalidRequest(
        f"Dataset {dataset}: rows must be a list of dicts, an Arrow table, a pandas or a Spark frame, not "
        f"{type(rows).__name__}."
    )


def _from_dicts(rows: Sequence[Any], schema: pa.Schema, dataset: str) -> pa.Table:
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRequest(
                f"Dataset {dataset}: row {number} is of type {type(row).__name__}, not a dict (an object, in JSON)."
            )
        names |= dict.fromkeys(row)
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidRequest(
            f"Dataset {dataset} has no column {', '.join(map(repr, unknown))}. It has {', '.join(schema.names)}."
        )
    arrays = {name: _array([row.get(name) for row in rows], schema.field(name), dataset) for name in names}
    return pa.table(arrays) if arrays else pa.table({schema.names[0]: pa.nulls(len(rows), schema.field(0).type)})


def _array(values: list[Any], field: pa.Field, dataset: str) -> pa.Array:
    """Build one column; text is read as a date, a time or a decimal, because JSON has no such values."""
    try:
        return pa.array([read_value(value, field.type) for value in values], field.type)
    except MISFITS as error:
        raise _misfit(values, field, dataset, error) from error


def _misfit(values: list[Any], field: pa.Field, dataset: str, error: Exception) -> InvalidRequest:
    for row, value in enumerate(values):
        try:
            pa.array([read_value(value, field.type)], field.type)
        except MISFITS:
            return InvalidRequest(
                f"Dataset {dataset}: row {row}, column {field.name!r}: {value!r} is not {a_type(field.type)}."
            )
    return InvalidRequest(f"Dataset {dataset}: column {field.name!r} does not fit {type_name(field.type)}: {error}")


def _column(given: pa.Table, field: pa.Field, dataset: str) -> pa.ChunkedArray:
    if field.name not in given.column_names:
        return pa.chunked_array([pa.nulls(given.num_rows, field.type)])
    column = given.column(field.name)
    if column.type == field.type:
        return column
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(field.type):
        if (column.type.tz is None) != (field.type.tz is None):
            raise InvalidRequest(
                f"Dataset {dataset}: column {field.name!r} is {a_type(field.type)}; the given times "
                f"{'have no' if column.type.tz is None else 'have a'} time zone."
            )
    elif _loses_meaning(column.type, field.type):
        raise InvalidRequest(
            f"Dataset {dataset}: column {field.name!r} is {a_type(field.type)}, the given column is {column.type}."
        )
    try:
        return column.cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidRequest(
            f"Dataset {dataset}: column {field.name!r} does not fit {type_name(field.type)}: {error}"
        ) from error


def _loses_meaning(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Text is no number, a number is no time and a time no date, though Arrow would turn one into the other."""
    if pa.types.is_null(given):
        return False
    if pa.types.is_dictionary(given):
        return _loses_meaning(given.value_type, wanted)
    return any(
        is_kind(given) != is_kind(wanted) for is_kind in (_is_text, pa.types.is_boolean, pa.types.is_temporal)
    ) or (pa.types.is_date(given) != pa.types.is_date(wanted))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def check_keys(table: pa.Table, key: Sequence[str], *, dataset: str) -> None:
    """Refuse null and oversized keys.

    Raises:
        InvalidRequest: a key column is null or longer than 1 KB somewhere.
    """
    for name in key:
        column = table.column(name)
        if column.null_count:
            row = pc.index(column.is_null(), value=True).as_py()
            raise InvalidRequest(f"Dataset {dataset}: key column {name!r} is missing or null in row {row}.")
        if pa.types.is_string(column.type):
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            if longest > MAX_KEY_BYTES:
                raise InvalidRequest(
                    f"Dataset {dataset}: a value of key column {name!r} takes {longest} bytes; {MAX_KEY_BYTES} at most."
                )


def change_rows(
    table: pa.Table,
    *,
    op: Op,
    schema: pa.Schema,
    batch_id: str,
    written_at: datetime.datetime,
    actor: str | None = None,
    reason: str | None = None,
) -> pa.Table:
    """Return the rows as a change file stores them; what a tombstone does not carry is null."""
    rows = table.num_rows
    ours: dict[str, Any] = {
        "_op": pa.repeat(pa.scalar(op.value), rows),
        "_pos": pa.array(range(rows), pa.int64()),
        "_row_seq": pa.nulls(rows, pa.int64()),
        "_batch_id": pa.repeat(pa.scalar(batch_id), rows),
        "_written_at": pa.repeat(pa.scalar(written_at, pa.timestamp("us", tz="UTC")), rows),
        "_actor": pa.repeat(pa.scalar(actor, pa.string()), rows),
        "_reason": pa.repeat(pa.scalar(reason, pa.string()), rows),
    }
    own = {field.name for field in CHANGE_FIELDS}
    arrays = [
        ours[f.name]
        if f.name in own
        else table.column(f.name)
        if f.name in table.column_names
        else pa.nulls(rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)

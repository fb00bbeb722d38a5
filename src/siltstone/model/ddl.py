"""Schemas from text: ``id STRING NOT NULL, amount DECIMAL(10,2), tags ARRAY<STRING>`` in Spark's words.

sqlglot reads the text; this module only maps its types. It is imported when a schema is given as text, and never
otherwise, because the parser takes a tenth of a second to load.
"""

from typing import Final

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from siltstone.errors import InvalidRequest
from siltstone.model.parsing import statements
from siltstone.model.schema import MAX_DECIMAL_DIGITS

_TYPES: Final[dict[str, pa.DataType]] = {
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "SMALLINT": pa.int16(),
    "TINYINT": pa.int8(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
}


def parse_ddl(text: str) -> pa.Schema:
    """Return the schema that a column list in Spark's dialect declares.

    Raises:
        InvalidRequest: the text cannot be read or names a type that cannot be stored.
    """
    try:
        parsed = statements(f"CREATE TABLE t ({text}\n)")
    except SqlglotError as error:
        raise _unreadable(text) from error
    create = parsed[0] if len(parsed) == 1 else None
    if not isinstance(create, exp.Create) or create.args.get("expression") or create.args.get("properties"):
        raise _unreadable(text)
    if not isinstance(create.this, exp.Schema):
        raise _unreadable(text)
    return pa.schema([_field(column, text) for column in create.this.expressions])


def _unreadable(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"The schema {text!r} cannot be read. Write columns as 'id STRING NOT NULL, amount DECIMAL(10,2), at TIMESTAMP'."
    )


def _field(column: exp.Expression, text: str) -> pa.Field:
    if not isinstance(column, exp.ColumnDef) or column.kind is None:
        raise _unreadable(text)
    required = any(
        isinstance(c.kind, exp.NotNullColumnConstraint) and not c.kind.args.get("allow_null")
        for c in column.constraints
    )
    return pa.field(column.name, _type(column.kind, column.name), nullable=not required)


def _inner_field(part: exp.Expression, column: str) -> pa.Field:
    if not isinstance(part, exp.ColumnDef) or part.kind is None:
        raise InvalidRequest(f"Column {column!r}: its struct cannot be read. Write STRUCT<a: INT, b: STRING>.")
    if part.constraints:
        raise InvalidRequest(
            f"Column {column!r}: {part.sql('spark')}: NOT NULL is for whole columns, not inside a struct."
        )
    return pa.field(part.name, _type(part.kind, f"{column}.{part.name}"))


def _type(kind: exp.DataType, column: str) -> pa.DataType:
    name = kind.this.name
    inner = kind.expressions
    match name:
        case "DECIMAL":
            digits = [int(parameter.name) for parameter in inner]
            precision, scale = (*digits, 0)[:2] if digits else (10, 0)
            if not 1 <= precision <= MAX_DECIMAL_DIGITS:
                raise InvalidRequest(f"Column {column!r}: a decimal has 1 to {MAX_DECIMAL_DIGITS} digits.")
            return pa.decimal128(precision, scale)
        case "ARRAY" | "LIST" if inner:
            return pa.list_(pa.field("element", _type(inner[0], column)))
        case "MAP" if len(inner) == 2:  # noqa: PLR2004
            return pa.map_(_type(inner[0], column), _type(inner[1], column))
        case "STRUCT" if inner:
            return pa.struct([_inner_field(f, column) for f in inner])
        case _ if name in _TYPES:
            return _TYPES[name]
        case _:
            raise InvalidRequest(f"Column {column!r}: type {kind.sql('spark')} cannot be stored.")

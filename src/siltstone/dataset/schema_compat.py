"""Compatibility of columns with a dataset's, by name and type: for files and Spark frames.

Nothing is cast with loss.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from siltstone.errors import InvalidRequest
from siltstone.model.evolution import WIDER
from siltstone.model.schema import a_type, from_struct_json, inner_types, type_name
from siltstone.spark_tasks.values import MISFITS, reader, text_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def refuse_unknown(names: Iterable[str], schema: pa.Schema, *, dataset: str) -> None:
    """Raise InvalidRequest that names the columns which a dataset does not have."""
    existing = set(schema.names)
    unknown = [name for name in names if name not in existing]
    if unknown:
        raise InvalidRequest(
            f"Dataset {dataset} has no column {', '.join(map(repr, unknown))}. It has {', '.join(schema.names)}."
        )


def check_names(names: Sequence[str], schema: pa.Schema, *, dataset: str) -> str | None:
    """Return what is wrong with a file's column names; None if they are valid."""
    existing = set(schema.names)
    unknown = [name for name in names if name not in existing]
    if unknown:
        columns = ", ".join(map(repr, unknown))
        return f"has column {columns}, which dataset {dataset} does not have ({', '.join(schema.names)})"
    if len(set(names)) != len(names):
        return "names a column twice"
    missing = [f.name for f in schema if not f.nullable and f.name not in names]
    if missing:
        return f"lacks column {', '.join(map(repr, missing))}, which must not be null"
    return None


def check_type(actual: pa.Field, expected: pa.Field, *, dataset: str) -> str | None:
    """Return what is wrong with the type of a file's column; None if it is valid."""
    if fits(actual.type, expected.type):
        return None
    return (
        f"has column {actual.name!r} of type {actual.type}; dataset {dataset} has {type_name(expected.type)}. "
        "Cast it before loading"
    )


def fits(actual: pa.DataType, expected: pa.DataType) -> bool:
    """True if every value of a type is also one of the other, without a cast that could lose data."""
    if pa.types.is_dictionary(actual):
        return fits(actual.value_type, expected)
    if actual == expected or expected in WIDER.get(actual, ()):
        return True
    if pa.types.is_large_string(actual) or pa.types.is_large_binary(actual):
        return bool(pa.types.is_string(expected) if pa.types.is_large_string(actual) else pa.types.is_binary(expected))
    if pa.types.is_timestamp(actual) and pa.types.is_timestamp(expected):
        return actual.unit in ("ms", "us") and (actual.tz is None) == (expected.tz is None)
    inner = inner_types(actual, expected)
    return inner is not None and all(fits(*pair) for pair in inner)


def all_fit(values: Sequence[Any], kind: pa.DataType, *, as_text: bool = False) -> bool:
    """True if every value is one of the type by the rules of `spark_tasks.values`; with `as_text`, text of a file."""
    read = text_reader(kind) if as_text else reader(kind)
    try:
        pa.array([read(value) for value in values], kind)
    except MISFITS:
        return False
    return True


def fitted(frame: "DataFrame", schema: pa.Schema, *, keep: Sequence[str] = ()) -> "DataFrame":
    """Return the frame with exactly the schema's columns, in order and type (null if missing), and `keep`."""
    from pyspark.sql import functions as F

    have = set(frame.columns)
    return frame.select(
        *[
            (F.col(f"`{f.name}`") if f.name in have else F.lit(None)).cast(type_name(f.type)).alias(f.name)
            for f in schema
        ],
        *keep,
    )


def check_frame(frame: "DataFrame", schema: pa.Schema, *, dataset: str) -> "DataFrame":
    """Convert a user's Spark frame to the dataset's columns; InvalidRequest names a column that does not fit."""
    columns = from_struct_json(frame.schema.jsonValue())
    refuse_unknown(columns.names, schema, dataset=dataset)
    present = set(columns.names)
    missing = [f.name for f in schema if not f.nullable and f.name not in present]
    if missing:
        raise InvalidRequest(
            f"Dataset {dataset}: the frame lacks column {', '.join(map(repr, missing))}, which must not be null."
        )
    for field in columns:
        expected = schema.field(field.name)
        if not fits(field.type, expected.type) and not pa.types.is_null(field.type):
            raise InvalidRequest(
                f"Dataset {dataset}: column {field.name!r} is {a_type(expected.type)}, the frame has {type_name(field.type)}. "
                "Cast it first."
            )
    return fitted(frame, schema)

"""One value at a time: how text and JSON numbers are read as a column's type, by upserts and by loads alike.

Spark's tasks get this module by value (see `json_worker`), so it imports only pyarrow and the standard library.
"""

import datetime
import decimal
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

MISFITS: Final = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    ValueError,
    TypeError,
    ArithmeticError,
    KeyError,
)
"""What Arrow and Python raise where a value does not fit."""


def read_value(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401
    """Read ISO text, and refuse what Arrow would cut off in silence; a time without a zone is UTC, as everywhere in a lake."""
    if isinstance(value, list | tuple) and pa.types.is_list(kind):
        return [read_value(inner, kind.value_type) for inner in value]
    if isinstance(value, Mapping) and pa.types.is_struct(kind):  # a field it does not have is a KeyError
        inside = {field.name: field.type for field in kind.fields}
        return {name: read_value(inner, inside[name]) for name, inner in value.items()}
    if _is_cut_off(value, kind):
        raise ValueError(value)
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC) if value.tzinfo is not None else value
    if not isinstance(value, str):
        return value
    if pa.types.is_timestamp(kind):
        moment = datetime.datetime.fromisoformat(value)
        if kind.tz is None and moment.tzinfo is not None:
            raise ValueError(value)
        return moment.astimezone(datetime.UTC) if moment.tzinfo is not None else moment
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(value)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(value)
    return value


def _is_cut_off(value: Any, kind: pa.DataType) -> bool:  # noqa: ANN401
    """True for what Arrow would cut or shift without a word.

    1.5 in a column of integers becomes 1, text in a list is taken apart, a time in a column of dates loses its hours, one with a
    zone in a column without shifts, and a pandas time loses its nanoseconds.
    """
    match value:
        case float() | decimal.Decimal():
            return bool(pa.types.is_integer(kind)) and value % 1 != 0
        case str() | bytes():
            return bool(pa.types.is_list(kind))
        case datetime.datetime():
            shifted = pa.types.is_timestamp(kind) and kind.tz is None and value.tzinfo is not None
            return bool(pa.types.is_date(kind)) or bool(shifted) or bool(getattr(value, "nanosecond", 0))
        case _:
            return False


def json_number(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401
    """A number with a point stays exact in a decimal column and is a float everywhere else."""
    match value:
        case decimal.Decimal():
            return value if pa.types.is_decimal(kind) else float(value)
        case list() if pa.types.is_list(kind):
            return [json_number(inner, kind.value_type) for inner in value]
        case dict() if pa.types.is_struct(kind):
            inside = {field.name: field.type for field in kind.fields}
            return {name: json_number(inner, inside.get(name, pa.null())) for name, inner in value.items()}
        case dict() if pa.types.is_map(kind):
            return {name: json_number(inner, kind.item_type) for name, inner in value.items()}
        case _:
            return value

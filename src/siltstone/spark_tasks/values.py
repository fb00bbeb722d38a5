"""The rules by which one value fits a column, the same for every input.

`reader` reads Python and JSON values (dicts, `--row`, JSON and NDJSON files), `text_reader` reads text (CSV, folder names,
keys). Both refuse values that would be rounded, truncated, shifted or guessed. `accepted` names the accepted forms, for
messages. Arrow tables, Parquet files and Spark frames are checked by type (`dataset.write.row_conversion`,
`dataset.schema_compat`), and by `outside_years`.
"""

import base64
import datetime
import decimal
import json
import math
import re
import struct
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

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
"""Exceptions of Arrow and Python for a value that does not fit."""
DAY_MICROS: Final = 86_400_000_000
FIRST_DAY: Final = -719_162
LAST_DAY: Final = 2_932_896
"""The first day of year 1 and the last day of year 9999, in days since 1970. Every reader can show this range."""
MAX_VALUE_CHARS: Final = 100
"""Longest part of a value, in characters, that a message shows."""
MAX_DECIMAL_EXPONENT: Final = 400
"""Largest exponent of a number. A larger one fits no column, and writing out its digits could fill memory."""

EXACT_SINGLES: Final = 2.0**24
EXACT_DOUBLES: Final = 2.0**53
"""Bounds below which floats of 4 and of 8 bytes represent every integer exactly."""

Reader = Callable[[Any], Any]
"""Returns a value as Arrow stores it, or raises one of `MISFITS`. Null stays null."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,400}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT: Final = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ](?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:[.,](?P<fraction>[0-9]{1,30}))?"
    r" ?(?P<zone>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_NOT_FINITE: Final = frozenset({"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_BOOLEANS: Final = {"true": True, "false": False}
MICRO_DIGITS: Final = 6


def reader(kind: pa.DataType) -> Reader:
    """Return the function that reads Python and JSON values of a type."""
    if pa.types.is_list(kind):
        inner = reader(kind.value_type)
        return _nullable(
            lambda value: [inner(item) for item in value] if isinstance(value, list | tuple) else _refuse(value)
        )
    if pa.types.is_struct(kind):
        return _nullable(_struct_reader(kind))
    if pa.types.is_map(kind):
        return _nullable(_map_reader(kind))
    return _nullable(_scalar_reader(kind))


def _scalar_reader(kind: pa.DataType) -> Reader:
    if pa.types.is_timestamp(kind):
        return lambda value: _moment_of(value, kind)
    return next((read for is_kind, read in _READERS if is_kind(kind)), lambda value: value)


def _nullable(read: Reader) -> Reader:
    """Return a reader that passes null through, and converts NumPy's and pandas' values to Python's."""

    def read_value(value: Any) -> Any:  # noqa: ANN401
        if value is None:
            return None
        if type(value).__module__.partition(".")[0] in ("numpy", "pandas", "pyarrow"):
            value = _as_python(value)
            if value is None:
                return None
        return read(value)

    return read_value


def _as_python(value: Any) -> Any:  # noqa: ANN401
    match type(value).__name__:
        case "NaTType" | "NAType":
            return None
        case "datetime64":
            if value != value:  # noqa: PLR0124  # NaT
                return None
            micros = value.astype("datetime64[us]")
            return micros.item() if micros == value else _refuse(value)
        case "timedelta64":
            return _refuse(value)  # NumPy would return a plain number in its unit
        case "ndarray":
            return list(value) if value.dtype.kind in "mM" else value.tolist()
        case _ if isinstance(value, pa.Scalar):
            return value.as_py()
        case _ if hasattr(value, "dtype") and hasattr(value, "item"):
            return value.item()
        case _:
            return value


def _refuse(value: Any) -> Any:  # noqa: ANN401
    raise ValueError(value)


def _integer_of(value: Any) -> int:  # noqa: ANN401
    match value:
        case bool():
            pass
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case decimal.Decimal() if _is_writable(value) and value == value.to_integral_value():
            return int(value)
    raise ValueError(value)


def _float_of(value: Any) -> float:  # noqa: ANN401
    """Read a number as the nearest float. An integer must be exact, and only infinity becomes infinity."""
    match value:
        case bool():
            pass
        case float():
            return value
        case int() if float(value) == value:
            return float(value)
        case decimal.Decimal() if math.isfinite(float(value)) or not value.is_finite():
            return float(value)
        case str() if value.lower() in _NOT_FINITE:
            return float(value)
    raise ValueError(value)


def _single_of(value: Any) -> float:  # noqa: ANN401
    """Read a number that a float of 4 bytes can represent. Too large numbers raise; an integer must fit exactly."""
    number = _float_of(value)
    if math.isfinite(number) and struct.unpack("<f", struct.pack("<f", number))[0] != number and isinstance(value, int):
        raise ValueError(value)
    return number


def _decimal_of(value: Any) -> decimal.Decimal:  # noqa: ANN401
    if isinstance(value, int) and not isinstance(value, bool):
        return decimal.Decimal(value)
    number = decimal.Decimal(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    if isinstance(number, decimal.Decimal) and _is_writable(number):
        return number
    raise ValueError(value)


def _is_writable(value: decimal.Decimal) -> bool:
    """True for a number whose digits can be written out: finite, and without an exponent in the thousands."""
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and abs(exponent) <= MAX_DECIMAL_EXPONENT


def _date_of(value: Any) -> datetime.date:  # noqa: ANN401
    if isinstance(value, str) and _DATE.fullmatch(value):
        return datetime.date.fromisoformat(value)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise ValueError(value)


def _moment_of(value: Any, kind: pa.DataType) -> datetime.datetime:  # noqa: ANN401
    if isinstance(value, str):
        value = _moment(value)
    if not isinstance(value, datetime.datetime) or getattr(value, "nanosecond", False):
        raise ValueError(value)
    return _zoned(value, kind)


def _zoned(moment: datetime.datetime, kind: pa.DataType) -> datetime.datetime:
    """Return a time in UTC. A time without a zone is UTC, as everywhere in a lake. A column without zones refuses a zone."""
    if moment.tzinfo is None:
        return moment
    if kind.tz is None:
        raise ValueError(moment)
    return moment.astimezone(datetime.UTC)


def _moment(text: str) -> datetime.datetime:
    """Read ISO 8601 text. Digits below a microsecond must be zeros."""
    parts = _MOMENT.fullmatch(text)
    if parts is None or (parts["fraction"] and parts["time"].count(":") == 1):
        raise ValueError(text)
    fraction = (parts["fraction"] or "").ljust(MICRO_DIGITS, "0")
    if fraction[MICRO_DIGITS:].strip("0"):
        raise ValueError(text)
    time = f"{parts['time'] or '00:00'}{'' if (parts['time'] or '').count(':') > 1 else ':00'}"
    return datetime.datetime.fromisoformat(
        f"{parts['day']}T{time}.{fraction[:MICRO_DIGITS]}{(parts['zone'] or '').upper()}"
    )


def _bytes_of(value: Any) -> bytes:  # noqa: ANN401
    """Read bytes, or base 64 text, the form in which bytes are shown."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        decoded = base64.b64decode(value, validate=True)
        if base64.b64encode(decoded).decode() == value:
            return decoded
    raise ValueError(value)


def _struct_reader(kind: pa.DataType) -> Reader:
    inner = {field.name: reader(field.type) for field in kind.fields}

    def read(value: Any) -> dict[str, Any]:  # noqa: ANN401
        if not isinstance(value, Mapping):
            raise TypeError(value)
        return {name: inner[name](item) for name, item in value.items()}  # an unknown field is a KeyError

    return read


def _map_reader(kind: pa.DataType) -> Reader:
    """Return a reader of objects, and of lists of [key, value] pairs, the form in which maps are shown."""
    key, item = reader(kind.key_type), reader(kind.item_type)
    as_text = pa.types.is_string(kind.key_type) or pa.types.is_nested(kind.key_type)
    from_text = key if as_text else text_reader(kind.key_type)

    def read(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401
        if isinstance(value, Mapping):
            pairs = [((from_text if isinstance(k, str) else key)(k), item(v)) for k, v in value.items()]
        elif isinstance(value, list | tuple) and all(isinstance(pair, list | tuple) for pair in value):
            pairs = [(key(k), item(v)) for k, v in value]
        else:
            raise TypeError(value)
        names = [k if isinstance(k, Hashable) else repr(k) for k, _ in pairs]
        if None in names or len(set(names)) < len(names):
            raise ValueError(value)
        return pairs

    return read


_READERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Reader], ...]] = (
    (pa.types.is_string, lambda value: value if isinstance(value, str) else _refuse(value)),
    (pa.types.is_boolean, lambda value: value if isinstance(value, bool) else _refuse(value)),
    (pa.types.is_integer, _integer_of),
    (pa.types.is_float32, _single_of),
    (pa.types.is_floating, _float_of),
    (pa.types.is_decimal, _decimal_of),
    (pa.types.is_date, _date_of),
    (pa.types.is_binary, _bytes_of),
)


def read_json(text: str) -> Any:  # noqa: ANN401
    """Read JSON exactly: a number with a point becomes a Decimal, and an object must not name a field twice.

    Raise ValueError, or RecursionError if the text is nested too deeply.
    """
    return json.loads(text, parse_float=decimal.Decimal, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(name for name in names if names.count(name) > 1)!r} is named twice")
    return fields


def text_reader(
    kind: pa.DataType,
    *,
    date_format: str | None = None,
    timestamp_format: str | None = None,
    decimal_comma: bool = False,
) -> Callable[[str], Any]:
    """Return the function that reads text of a type. Nested values are JSON.

    The formats are those of `strptime`; default: ISO 8601. With `decimal_comma`, numbers have a comma instead of a point.
    """
    if pa.types.is_nested(kind):
        inner = reader(kind)
        return lambda text: inner(read_json(text))
    if pa.types.is_boolean(kind):
        return lambda text: _BOOLEANS[text.lower()]
    if pa.types.is_integer(kind):
        return lambda text: int(text) if _INTEGER.fullmatch(text) else _refuse(text)
    if pa.types.is_date(kind) and date_format is not None:
        return lambda text: datetime.datetime.strptime(text, date_format).date()  # noqa: DTZ007
    if pa.types.is_timestamp(kind) and timestamp_format is not None:
        return lambda text: _zoned(datetime.datetime.strptime(text, timestamp_format), kind)  # noqa: DTZ007
    read = _scalar_reader(kind)
    if not (pa.types.is_decimal(kind) or pa.types.is_floating(kind)):
        return read
    if decimal_comma:  # a point would separate thousands and is refused
        return lambda text: read(_number(text.replace(",", "."))) if "." not in text else _refuse(text)
    return lambda text: read(_number(text))


def _number(text: str) -> Any:  # noqa: ANN401
    """Return a number in text as JSON represents it: an integer, a Decimal, or text if it is not finite."""
    if _INTEGER.fullmatch(text):
        return int(text) or decimal.Decimal(text)  # keeps -0, which an integer cannot represent but a float can
    if _NUMBER.fullmatch(text):
        return decimal.Decimal(text)
    return text


def shown(value: Any) -> str:  # noqa: ANN401
    """Return a value for a message, shortened if it is long."""
    text = str(value) if isinstance(value, decimal.Decimal) else repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def accepted(kind: pa.DataType, *, date_format: str | None = None, timestamp_format: str | None = None) -> str:
    """Return the rule of a type for a message: the values that a column accepts.

    >>> accepted(pa.int8()), accepted(pa.date32())
    ('a whole number from -128 to 127', 'a date such as 2026-01-31, in the years 1 to 9999')
    """
    if pa.types.is_integer(kind):
        half = 2 ** (kind.bit_width - 1)
        return f"a whole number from {-half} to {half - 1}"
    if pa.types.is_floating(kind):
        return f"a number that {kind.bit_width // 8} bytes can hold, or the text NaN, Infinity or -Infinity"
    if pa.types.is_decimal(kind):
        return f"an exact number with {kind.precision - kind.scale} digits before and {kind.scale} after the point"
    if pa.types.is_date(kind):
        return f"a date such as {date_format or '2026-01-31'}, in the years 1 to 9999"
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz is not None else ""
        rule = "no zone means UTC" if kind.tz is not None else "without a zone"
        return f"a time such as {timestamp_format or f'2026-01-31T10:00:00{zone}'}, {rule}, in the years 1 to 9999"
    if pa.types.is_list(kind):
        return f"a list; each item {accepted(kind.value_type)}"
    if pa.types.is_struct(kind):
        return f"an object with the fields {', '.join(field.name for field in kind.fields)}"
    if pa.types.is_map(kind):
        return "an object, or a list of [key, value] pairs; each key once"
    named = {pa.string(): "text in UTF-8", pa.bool_(): "true or false", pa.binary(): "bytes, or base 64 text"}
    return named.get(kind, str(kind))


def has_times(kind: pa.DataType) -> bool:
    """True if a type is, or contains, a date or a time."""
    if pa.types.is_nested(kind):
        return any(has_times(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def inner_arrays(array: pa.Array) -> list[pa.Array]:
    """Return the values inside a nested array, one level deep, of its own rows only; none of a plain array.

    >>> inner_arrays(pa.array([[1], [2, 3]]).slice(1))[0].to_pylist()
    [2, 3]
    """
    if pa.types.is_struct(array.type):
        return list(array.flatten())
    if pa.types.is_map(array.type):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [part.slice(first, last - first) for part in (array.keys, array.items)]
    return [array.flatten()] if pa.types.is_nested(array.type) else []


def outside_years(column: pa.Array | pa.ChunkedArray) -> bool:
    """True if a date or time of a column, at any depth, is not in the years 1 to 9999."""
    if not has_times(column.type):
        return False
    if isinstance(column, pa.ChunkedArray):
        return any(outside_years(chunk) for chunk in column.chunks)
    if pa.types.is_nested(column.type):
        return any(outside_years(part) for part in inner_arrays(column))
    if pa.types.is_dictionary(column.type):
        return outside_years(column.dictionary)
    days = pa.types.is_date32(column.type)
    bounds = pc.min_max(column.cast(pa.int32() if days else pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    scale = 1 if days else DAY_MICROS
    return low is not None and (low < FIRST_DAY * scale or high >= (LAST_DAY + 1) * scale)


def cast_exactly(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values that Arrow has parsed. Raise one of `MISFITS` if a value must be read individually.

    Such values are NaN, infinity, integers that a float may not represent exactly, times outside the years 1 to 9999.
    """
    if pa.types.is_floating(kind):
        small = pc.less(pc.abs(column), EXACT_SINGLES if pa.types.is_float32(kind) else EXACT_DOUBLES)
        if not pc.all(small, min_count=0).as_py():
            raise ValueError(kind)
    values = column.cast(kind)
    if outside_years(values):
        raise ValueError(kind)
    return values

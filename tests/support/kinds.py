"""Schemas and values for property tests: every type a key can have, with the values at the edges of each type.

Rows are compared by `plain`: floats by their bits (NaN equals NaN, -0.0 is not 0.0), times by their moment.
"""

import datetime
import decimal
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

UTC: Final = datetime.UTC
Row = dict[str, Any]
Plain = tuple[Any, ...]

_STRINGS: Final = [
    *(
        "",
        " ",
        "a",
        "A",
        "b",
        "ä",
        "a\u0308",
        "\U0001f600",
        "\u4e2d\u6587",
        "line\nbreak",
        "nul\0inside",
        "'\"`\\",
        "%41",
        "NULL",
    ),
    *("x" * 1024, "x" * 1023 + "y", "ü" * 512, "\U0010ffff", "../..", "a=b/c"),
]
_LONGS: Final = [0, 1, -1, 7, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)]
_DATES: Final = [
    datetime.date(*parts)
    for parts in ((1, 1, 1), (1500, 3, 1), (1582, 10, 4), (1582, 10, 15), (1969, 12, 31), (1970, 1, 1), (2024, 2, 29))
] + [datetime.date.max]
_MOMENTS: Final = [
    datetime.datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    datetime.datetime(1582, 10, 10, 1, 2, 3, 4, tzinfo=UTC),
    datetime.datetime(1883, 11, 18, 12, 0, 0, 0, tzinfo=UTC),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime.datetime(1970, 1, 1, tzinfo=UTC),
    datetime.datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=UTC),
    datetime.datetime(2024, 2, 29, 12, 0, 0, 123_457, tzinfo=UTC),
    datetime.datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
    datetime.datetime.max.replace(tzinfo=UTC),
]
_DECIMALS: Final = [
    decimal.Decimal(text)
    for text in ("0.0000", "0.0001", "-0.0001", "1.5000", "12.3450", "9999999999999999.9999", "-9999999999999999.9999")
]
_DOUBLES: Final = [0.0, -0.0, 1.5, -1e308, 5e-324, float("inf"), float("-inf"), float("nan")]

VALUES: Final = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int16()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("note", pa.string()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("amount", pa.decimal128(20, 4)),
        ("bytes", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("id", pa.string()), ("xs", pa.list_(pa.float64()))])),
        ("attrs", pa.map_(pa.string(), pa.int64())),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of dataset: its key columns, and the keys at their edges."""

    name: str
    fields: tuple[tuple[str, pa.DataType], ...]
    keys: tuple[tuple[Any, ...], ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return tuple(name for name, _ in self.fields)

    @property
    def schema(self) -> pa.Schema:
        """The key is in the middle, where no reader can mistake it for the first column."""
        values = list(VALUES)
        return pa.schema([*values[:12], *(pa.field(n, t, nullable=False) for n, t in self.fields), *values[12:]])

    def row(self, key: Sequence[Any], values: Mapping[str, Any]) -> Row:
        """Return a whole row."""
        return dict(zip(self.key, key, strict=True)) | {name: values.get(name) for name in VALUES.names}

    def __str__(self) -> str:
        return self.name


def _single(name: str, kind: pa.DataType, keys: Sequence[Any]) -> Kind:
    return Kind(name=name, fields=(("id", kind),), keys=tuple((key,) for key in keys))


KINDS: Final = (
    _single("string", pa.string(), _STRINGS),
    _single("long", pa.int64(), _LONGS),
    _single("short", pa.int16(), [0, 1, -1, 2**15 - 1, -(2**15)]),
    _single("date", pa.date32(), _DATES),
    _single("timestamp", pa.timestamp("us", tz="UTC"), _MOMENTS),
    _single("timestamp_ntz", pa.timestamp("us"), [moment.replace(tzinfo=None) for moment in _MOMENTS]),
    _single("decimal", pa.decimal128(20, 4), _DECIMALS),
    _single("boolean", pa.bool_(), [True, False]),
    Kind(
        name="composite",
        fields=(("region", pa.string()), ("no", pa.int64()), ("born", pa.date32()), ("open", pa.bool_())),
        keys=tuple(
            (text, number, day, open_)
            for text in ("", "a", "\U0001f600")
            for number in (-1, 2**63 - 1)
            for day in (datetime.date(1969, 12, 31), datetime.date(2024, 2, 29))
            for open_ in (True, False)
        ),
    ),
)


def random_values(rng: random.Random) -> Row:
    """Return the columns outside the key; each is null now and then."""
    makers: dict[str, Callable[[], Any]] = {
        "n": lambda: rng.choice(_LONGS),
        "small": lambda: rng.choice([0, -(2**15), 2**15 - 1]),
        "x": lambda: rng.choice(_DOUBLES),
        "f": lambda: rng.choice([0.0, -0.0, 0.5, float("nan"), float("inf")]),
        "note": lambda: rng.choice(_STRINGS),
        "flag": lambda: rng.random() < 0.5,
        "day": lambda: rng.choice(_DATES),
        "at": lambda: rng.choice(_MOMENTS),
        "amount": lambda: rng.choice(_DECIMALS),
        "bytes": lambda: rng.choice([b"", b"\0", b"\xff\xfe", b"abc"]),
        "tags": lambda: rng.choice([[], [None], ["a", None, "b"], [""]]),
        "place": lambda: {
            "id": rng.choice([None, *_STRINGS[:5]]),
            "xs": rng.choice([None, [], [-0.0, None], [float("nan")]]),
        },
        "attrs": lambda: dict(rng.sample([("a", 1), ("b", None), ("", -1)], rng.randrange(4))),
    }
    return {name: None if rng.random() < 0.2 else make() for name, make in makers.items()}


def to_table(kind: Kind, rows: Sequence[Row]) -> pa.Table:
    """Return rows as Arrow, as a user would pass them."""
    ready = [
        {name: list(v.items()) if isinstance(v, dict) and name == "attrs" else v for name, v in r.items()} for r in rows
    ]
    return pa.Table.from_pylist(ready, schema=kind.schema)


def plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value in a comparable form with a total order."""
    match value:
        case bool() | None:
            return repr(value)
        case float():
            return "nan" if value != value else struct.pack(">d", value).hex()  # noqa: PLR0124
        case datetime.datetime():
            return (value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)).isoformat()
        case dict():
            return tuple(sorted((str(name), plain(inner)) for name, inner in value.items()))
        case list() | tuple():
            return tuple(plain(inner) for inner in value)
        case bytearray():
            return repr(bytes(value))
        case _:
            return repr(value)


def plain_rows(rows: Sequence[Row]) -> list[Plain]:
    """Return rows as sorted values, each map as a dict."""
    values = [
        tuple((name, plain(_as_dict(row[name]) if name == "attrs" else row[name])) for name in sorted(row))
        for row in rows
    ]
    return sorted(values, key=repr)


def _as_dict(value: Any) -> Any:  # noqa: ANN401
    """Convert the pairs of Arrow's maps to a dict."""
    return None if value is None else dict(value)

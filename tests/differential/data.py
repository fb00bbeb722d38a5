"""Rows with every type and its edges, and a few tables to join with them."""

import datetime
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

UTC = datetime.UTC
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("k", pa.int32()),
        ("n", pa.int32()),
        ("b", pa.int8()),
        ("s", pa.int16()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("e", pa.float64()),
        ("m", pa.decimal128(10, 2)),
        ("p", pa.decimal128(18, 4)),
        ("q", pa.decimal128(38, 10)),
        ("z", pa.string()),
        ("w", pa.string()),
        ("o", pa.bool_()),
        ("t", pa.date32()),
        ("u", pa.timestamp("us", tz="UTC")),
        ("v", pa.timestamp("us")),
        ("x", pa.binary()),
        ("a", pa.list_(pa.field("element", pa.int32()))),
        ("st", pa.struct([("g", pa.int32()), ("Txt", pa.string())])),
        ("mp", pa.map_(pa.string(), pa.int32())),
    ]
)
OTHER = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("k", pa.int32()),
        ("Label", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("since", pa.date32()),
        ("g", pa.float64()),
    ]
)

EDGES: dict[str, list[Any]] = {
    "b": [0, 1, -1, 127, -128, 5],
    "s": [0, 1, -1, 32767, -32768, 300],
    "i": [0, 1, -1, 2147483647, -2147483648, 70000],
    "l": [0, 1, -1, 9223372036854775807, -9223372036854775808, 2**53 + 1],
    "f": [0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 1.1, 3.4e38],
    "d": [0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 0.1, 1e300, 5e-324, 2.5, -0.5, 1e18],
    "e": [0.0, 0.25, -0.75, 2.5, 3.5, -3.5, 100.0, 1e6],
    "m": [
        Decimal("0.00"),
        Decimal("1.25"),
        Decimal("-1.25"),
        Decimal("99999999.99"),
        Decimal("-0.05"),
        Decimal("2.50"),
    ],
    "p": [Decimal("0.0000"), Decimal("12345678901234.5678"), Decimal("-0.0001"), Decimal("3.3333"), Decimal("-7.5000")],
    "q": [Decimal(0), Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001"), Decimal("5.5")],
    "z": [
        "",
        " ",
        "a",
        "A",
        "ab",
        "é",
        "Straße",
        "日本語",
        "a%b",
        "a_b",
        "  padded  ",
        "\t",
        "Ünï",
        "zzz",
        "😀x",
        "e\u0301x",
    ],
    "w": ["", "alpha", "Beta", "GAMMA delta", " x ", "100", "alp", "a-b-c"],
    "o": [True, False],
    "t": [
        datetime.date(1, 1, 1),
        datetime.date(1500, 2, 28),
        datetime.date(1582, 10, 10),
        datetime.date(1969, 12, 31),
        datetime.date(2024, 2, 29),
        datetime.date(2026, 1, 31),
        datetime.date(2026, 11, 16),
        datetime.date(9999, 12, 31),
    ],
    "u": [
        datetime.datetime(1, 1, 1, tzinfo=UTC),
        datetime.datetime(1582, 10, 10, 12, tzinfo=UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime.datetime(2024, 2, 29, 13, 14, 15, 123456, tzinfo=UTC),
        datetime.datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        datetime.datetime(2026, 11, 16, tzinfo=UTC),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "x": [b"", b"\x00", b"a", b"\xff\xfe", b"ab"],
    "a": [[], [1, 2], [None], [3, None, 5]],
    "st": [{"g": 1, "Txt": "a"}, {"g": None, "Txt": "b"}, {"g": 3, "Txt": None}],
    "mp": [[], [("a", 1)], [("a", None), ("b", 2)]],
}
EDGES["v"] = [moment.replace(tzinfo=None) for moment in EDGES["u"]]


def rows(count: int = 64, *, seed: int = 7) -> pa.Table:
    """Return rows with every edge of every type, and nulls between them."""
    chance = random.Random(seed)
    found: list[dict[str, Any]] = []
    for at in range(count):
        row: dict[str, Any] = {"id": at, "k": at % 5 or None, "n": chance.choice([None, -5, -2, 0, 1, 2, 3, 7])}
        for name, edges in EDGES.items():
            row[name] = edges[at % (len(edges) + 1)] if at % (len(edges) + 1) < len(edges) else None
        found.append(row)
    return pa.Table.from_pylist(found, schema=SCHEMA)


def others(count: int = 12, *, seed: int = 8) -> pa.Table:
    """Return a second table: keys that match some rows, several rows for one key, and keys without a match."""
    chance = random.Random(seed)
    found = [
        {
            "id": at * 3,
            "k": chance.choice([None, 1, 2, 2, 3, 9]),
            "Label": chance.choice(["red", "Red", "blue", None, "grün"]),
            "price": Decimal(chance.randrange(-50000, 99999)) / 100,
            "since": datetime.date(2026, 1, 1) + datetime.timedelta(days=at * 40),
            "g": chance.choice([0.0, -0.0, math.nan, 2.5, None]),
        }
        for at in range(count)
    ]
    return pa.Table.from_pylist(found, schema=OTHER)

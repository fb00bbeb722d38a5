"""Random tables by seed: every type, values at its edges and between them, nulls, and keys that join.

Columns that a sum may safely use (`n`, `sm`, `tn`, `li`, `e`, `m`) are beside those whose edges overflow (`i`, `l`,
`b`, `s`, `d`).
"""

import datetime
import math
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

ROWS: Final = 48
OTHER_ROWS: Final = 14
NULLS: Final = 0.12
"""Probability of a null."""
LAST_DAY: Final = 2**31 - 2
LAST_MICROSECOND: Final = 9_150_000_000_000_000_000
"""The outermost values on both sides that the hot cache accepts."""
DAY_US: Final = 86_400_000_000

INNER = pa.struct([("h", pa.date32()), ("Big", pa.decimal128(38, 0)), ("t_list", pa.list_(pa.string()))])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("k", pa.int32()),
        ("n", pa.int32()),
        ("tn", pa.int8()),
        ("sm", pa.int16()),
        ("li", pa.int64()),
        ("b", pa.int8()),
        ("s", pa.int16()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("e", pa.float64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("m", pa.decimal128(10, 2)),
        ("p", pa.decimal128(18, 4)),
        ("c", pa.decimal128(5, 5)),
        ("y", pa.decimal128(20, 2)),
        ("h", pa.decimal128(38, 0)),
        ("j", pa.decimal128(38, 38)),
        ("q", pa.decimal128(38, 10)),
        ("z", pa.string()),
        ("w", pa.string()),
        ("o", pa.bool_()),
        ("t", pa.date32()),
        ("tt", pa.date32()),
        ("u", pa.timestamp("us", tz="UTC")),
        ("uu", pa.timestamp("us", tz="UTC")),
        ("v", pa.timestamp("us")),
        ("vv", pa.timestamp("us")),
        ("x", pa.binary()),
        ("a", pa.list_(pa.int32())),
        ("st", pa.struct([("g", pa.int32()), ("Txt", pa.string()), ("deep", INNER)])),
        ("mp", pa.map_(pa.string(), pa.int32())),
        ("ls", pa.list_(pa.struct([("one", pa.int64()), ("two", pa.map_(pa.int32(), pa.date32()))]))),
    ]
)
OTHER = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("k", pa.int32()),
        ("n", pa.int16()),
        ("Label", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("since", pa.date32()),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("g", pa.float64()),
    ]
)

WORDS = ("", "alpha", "Beta", "GAMMA delta", " x ", "100", "alp", "a-b-c", "a", "ab", "zz  ", "%", "a_c")
TEXTS = (
    *("", " ", "  ", "a", "A", "a ", "a  ", " a", "ab", "aB", "a%b", "a_b", "100%", "é", "e\u0301", "É", "ß", "SS"),
    *(
        "Straße",
        "日本語",
        "\u00a0",
        "\t",
        "a\n",
        "a\0",
        "a\0b",
        "\0",
        "😀",
        "😀x",
        "👩\u200d👧",
        "\U0010ffff",
        "\uffff",
        "\ue000",
    ),
    *(
        "it's",
        'say "x"',
        "back\\slash",
        "\\",
        "z" * 300,
        "\u0130",
        "\u0131",
        "\u017f",
        "\u212a",
        "\u2028",
        "١٢",
        "NULL",
        "null",
        "-0",
        "1e3",
    ),
)
MONTH_ENDS = ("2024-02-29", "2023-02-28", "2026-01-31", "2026-03-31", "2026-12-31", "2026-01-01", "1970-01-01")
DAYS = (*MONTH_ENDS, "1969-12-31", "2000-02-29", "1900-03-01", "1582-10-04", "1582-10-15", "0001-01-01", "9999-12-31")
MOMENTS = (
    *("2024-02-29T13:14:15.123456", "2026-03-29T00:59:59.999999", "2026-03-29T01:00:00", "2026-10-25T00:30:00"),
    *(
        "2026-10-25T01:30:00",
        "1969-12-31T23:59:59.999999",
        "1970-01-01T00:00:00",
        "1900-01-01T00:00:00",
        "2026-11-16T00:00:00",
    ),
    *("1582-10-10T12:00:00", "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "2016-12-31T23:59:59.5"),
)
FLOATS = (
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    1.5,
    -2.25,
    0.1,
    0.5,
    -0.5,
    2.5,
    1e18,
    5e-324,
    1e300,
    -1e300,
    2.0**53,
)
EPOCH = datetime.datetime.fromisoformat("1970-01-01T00:00:00")

Draw = Callable[[random.Random], Any]


def _whole(bits: int) -> Draw:
    last = 2 ** (bits - 1) - 1
    edges = (0, 1, -1, last, last - 1, -last, -last - 1)
    return lambda chance: chance.choice(edges) if chance.random() < 0.5 else chance.randint(-last - 1, last)


def _small(reach: int) -> Draw:
    return lambda chance: chance.randint(-reach, reach)


def _decimal(precision: int, scale: int) -> Draw:
    last = 10**precision - 1

    def draw(chance: random.Random) -> Decimal:
        digits = chance.choice((0, 1, -1, 5, -5, last, -last, 10 ** (precision - 1), chance.randint(-last, last)))
        if chance.random() < 0.4:
            digits = chance.randint(-999, 999)
        return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))

    return draw


def _money(chance: random.Random) -> Decimal:
    return Decimal(chance.choice((0, 125, -125, 5, -5, 250, 100, chance.randint(-99_999, 99_999)))).scaleb(-2)


def _quarter(chance: random.Random) -> float:
    return chance.choice((0.0, 0.25, -0.75, 2.5, 3.5, -3.5, 100.0, 1e6, chance.randint(-400, 400) / 4))


def _double(chance: random.Random) -> float:
    if chance.random() < 0.7:
        return chance.choice(FLOATS)
    return float(struct.unpack("<d", chance.randbytes(8))[0])


def _float(chance: random.Random) -> float:
    if chance.random() < 0.7:
        return chance.choice((0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25, 1.1, 3.4e38, 1e-45, 16777217.0))
    return float(struct.unpack("<f", chance.randbytes(4))[0])


def _text(chance: random.Random) -> str:
    if chance.random() < 0.8:
        return chance.choice(TEXTS)
    return "".join(chance.choice(TEXTS)[:2] for _ in range(3))


def _days(text: str) -> int:
    return (datetime.date.fromisoformat(text) - EPOCH.date()).days


def _microseconds(text: str) -> int:
    return (datetime.datetime.fromisoformat(text) - EPOCH) // datetime.timedelta(microseconds=1)


def _day(chance: random.Random) -> int:
    return _days(chance.choice(DAYS)) if chance.random() < 0.6 else chance.randint(-40_000, 60_000)


def _far_day(chance: random.Random) -> int:
    far = (-719_162, -719_163, -800_000, 2_932_896, 2_932_897, 50_000_000, -50_000_000)
    return chance.choice((*far, chance.randint(-1_500_000, 4_000_000)))


def _moment(chance: random.Random) -> int:
    return _microseconds(chance.choice(MOMENTS)) if chance.random() < 0.6 else chance.randint(-(2**51), 2**51)


def _far_moment(chance: random.Random) -> int:
    return chance.choice(
        (_far_day(chance) % 60_000_000 * DAY_US, -800_000 * DAY_US + 1, chance.randint(-(2**60), 2**60))
    )


def _struct(chance: random.Random) -> dict[str, Any]:
    inner = {"h": _in_range(chance), "Big": _decimal(38, 0)(chance), "t_list": _some(chance, _text)}
    return {
        "g": _maybe(chance, _small(9)),
        "Txt": _maybe(chance, _text),
        "deep": inner if chance.random() < 0.8 else None,
    }


def _in_range(chance: random.Random) -> datetime.date:
    return datetime.date.fromisoformat(chance.choice(DAYS))


def _maybe(chance: random.Random, draw: Draw) -> Any:  # noqa: ANN401
    return None if chance.random() < NULLS else draw(chance)


def _some(chance: random.Random, draw: Draw) -> list[Any]:
    return [_maybe(chance, draw) for _ in range(chance.randrange(4))]


def _pairs(chance: random.Random) -> list[tuple[str, Any]]:
    keys = chance.sample(["", "a", "A", "é", "a "], chance.randrange(4))
    return [(key, _maybe(chance, _small(9))) for key in keys]


def _list(chance: random.Random) -> list[Any]:
    made = [{"one": _whole(64)(chance), "two": [(1, _in_range(chance)), (2, None)]} for _ in range(chance.randrange(3))]
    return [*made, None] if chance.random() < 0.2 else list(made)


DRAWS: dict[str, Draw] = {
    "k": lambda chance: chance.randrange(5),
    "n": _small(9),
    "tn": _small(9),
    "sm": _small(99),
    "li": _small(10**6),
    "b": _whole(8),
    "s": _whole(16),
    "i": _whole(32),
    "l": _whole(64),
    "e": _quarter,
    "f": _float,
    "d": _double,
    "m": _money,
    "p": _decimal(18, 4),
    "c": _decimal(5, 5),
    "y": _decimal(20, 2),
    "h": _decimal(38, 0),
    "j": _decimal(38, 38),
    "q": _decimal(38, 10),
    "z": _text,
    "w": lambda chance: chance.choice(WORDS),
    "o": lambda chance: chance.random() < 0.5,
    "t": _day,
    "tt": _far_day,
    "u": _moment,
    "uu": _far_moment,
    "v": _moment,
    "vv": _far_moment,
    "x": lambda chance: chance.choice((b"", b"\0", b"a", b"a\0", b"\xff\xfe", b"ab", chance.randbytes(3))),
    "a": lambda chance: _some(chance, _whole(32)),
    "st": _struct,
    "mp": _pairs,
    "ls": _list,
}
OTHER_DRAWS: dict[str, Draw] = {
    "k": lambda chance: chance.choice((1, 2, 2, 3, 9)),
    "n": _small(9),
    "Label": lambda chance: chance.choice(("red", "Red", "blue", "grün", "red ", "")),
    "price": _money,
    "since": _day,
    "seen": _moment,
    "g": lambda chance: chance.choice((0.0, -0.0, math.nan, 2.5, math.inf)),
}


def generated_tables(seed: int) -> dict[str, pa.Table]:
    """Return the tables `r`, `p` and `none` (without rows); the same for the same seed."""
    chance = random.Random(seed)
    made = {"r": _table(SCHEMA, DRAWS, chance, ROWS), "p": _table(OTHER, OTHER_DRAWS, chance, OTHER_ROWS)}
    return {**made, "none": made["r"].slice(0, 0)}


def _table(schema: pa.Schema, draws: dict[str, Draw], chance: random.Random, rows: int) -> pa.Table:
    ids = pa.array(chance.sample(range(rows * 2), rows), pa.int64())
    columns = [
        _column(schema.field(name).type, [_maybe(chance, draw) for _ in range(rows)]) for name, draw in draws.items()
    ]
    return pa.Table.from_arrays([ids, *columns], schema=schema)


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return values as a column; days and times were drawn as numbers, because Python has no year 10000."""
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, kind)

"""Every type of the lake passes through the hot cache unchanged: types, values, signs and nulls."""

import datetime
import decimal
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from siltstone import Lake, Settings
from siltstone.query.hot import NotResident
from siltstone.query.hot.duckdb_types import UnsupportedType, columns_sql
from tests.support.folds import fold_by_arrow
from tests.support.hot import assert_same, hot_table
from tests.support.unchecked import write_unchecked

D = decimal.Decimal
UTC = pa.timestamp("us", tz="UTC")
NAME = "all.types.rows"
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a\0b", "", "ü𝄞é", "e\u0301", "x" * 100_000]),
    "bytes": (pa.binary(), [b"\0\xff", b"", b"\x80", b"abc", b"z" * 5000]),
    "i8": (pa.int8(), [-128, 127, 0, 1, -1]),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1, 0, 1, -1]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1, 0, 1, -1]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, 0, 1, -1]),
    "f32": (pa.float32(), [math.nan, -0.0, math.inf, -math.inf, 1e-45]),
    "f64": (pa.float64(), [math.nan, -0.0, math.inf, 5e-324, 1.7976931348623157e308]),
    "flag": (pa.bool_(), [True, False, True, False, True]),
    "day": (
        pa.date32(),
        [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1582, 10, 4), datetime.date(1970, 1, 1), None],
    ),
    "moment": (
        UTC,
        [
            datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC),
            datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.UTC),
            None,
        ],
    ),
    "wall": (pa.timestamp("us"), [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59), None, None, None]),  # noqa: DTZ001
    "d38": (pa.decimal128(38, 10), [D("9" * 28 + "." + "9" * 10), -D("9" * 28), D(0), D("0.0000000001"), D(1)]),
    "d38all": (pa.decimal128(38, 38), [D("0." + "9" * 38), D("-0.5"), D(0), None, D(0)]),
    "d9": (pa.decimal128(9, 2), [D("1234567.89"), D("-0.01"), D(0), D(1), D("0.10")]),
    "list": (pa.list_(pa.field("element", pa.string())), [["a", None], [], ["\0"], [""], [None]]),
    "lists": (
        pa.list_(pa.field("element", pa.list_(pa.field("element", pa.float64())))),
        [[[math.nan, -0.0], None], [[]], [], None, [[None]]],
    ),
    "struct": (
        pa.struct([pa.field("x", pa.int32()), pa.field("Big", pa.list_(pa.field("element", pa.float32())))]),
        [{"x": 1, "Big": [1.0]}, {"x": None, "Big": None}, {"x": 2, "Big": []}, {"x": 0, "Big": [math.nan]}, None],
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], [], [("", 2)], [("z", 1), ("a", 2)], None]),
    "deep": (
        pa.map_(pa.int32(), pa.struct([pa.field("p", pa.decimal128(5, 2)), pa.field("t", UTC)])),
        [[(1, {"p": D("1.20"), "t": None})], [], [(2, None)], [(3, {"p": None, "t": None})], None],
    ),
}  # fmt: skip
SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), *(pa.field(n, kind) for n, (kind, _) in VALUES.items())]
)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False)) as opened:
        yield opened


def rows(*, start: int = 0) -> pa.Table:
    """One row for each value, one row of nulls, and two more for each value, so that columns are worth compressing."""
    nulls = [*range(5), None] * 3
    columns = {n: [None if at is None else values[at] for at in nulls] for n, (_, values) in VALUES.items()}
    return pa.table({"id": [f"{start + at:04d}" for at in range(len(nulls))]} | columns, schema=SCHEMA)


def test_every_value_is_returned_unchanged_from_base_and_from_changes(lake: Lake) -> None:
    dataset = lake.create(NAME, SCHEMA, key="id")
    dataset.upsert(rows())
    fold_by_arrow(dataset)
    dataset.upsert(rows(start=100))
    lake.hot.fill(NAME)
    assert_same(lake, dataset)
    dataset.upsert(rows(start=200))
    assert_same(lake, dataset)
    assert hot_table(lake, NAME).num_rows == 54


def test_many_floats_keep_every_bit(lake: Lake) -> None:
    numbers = [[-0.0, math.nan, 0.1, 1e300, math.inf, 2.5][at % 6] * (1 if at % 7 else -1) for at in range(5000)]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), ("y", pa.float32())])
    dataset = lake.create(NAME, schema, key="id")
    dataset.upsert(pa.table([list(range(5000)), numbers, pa.array(numbers, pa.float32())], schema=schema))
    lake.hot.fill(NAME)
    hot, view = hot_table(lake, NAME).sort_by("id"), dataset.to_arrow().sort_by("id")
    for name in ("x", "y"):
        assert hot[name].to_numpy().tobytes() == view[name].to_numpy().tobytes()


def test_a_map_with_a_key_twice_cannot_be_hot_and_has_a_reason(lake: Lake) -> None:
    dataset = lake.create(NAME, "id STRING, m MAP<STRING, BIGINT>", key="id")
    doubled = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    write_unchecked(dataset, pa.table({"id": pa.array(["1"]), "m": doubled}, schema=dataset.schema))
    with pytest.raises(NotResident, match="duplicate key"):
        lake.hot.fill(NAME)
    decision = lake.hot.decide(NAME)
    assert not decision.admitted
    assert decision.reason


@pytest.mark.parametrize("kind", [UTC, pa.timestamp("us"), pa.date32()], ids=["timestamp", "timestamp_ntz", "date"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_time_that_duckdb_takes_for_infinity_cannot_be_hot(lake: Lake, kind: pa.DataType, nested: bool) -> None:  # noqa: FBT001
    whole = pa.int32() if pa.types.is_date(kind) else pa.int64()
    last = pa.array([2 ** (whole.bit_width - 1) - 1], whole).view(kind)
    column = pa.ListArray.from_arrays([0, 1], last) if nested else last
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("at", column.type)])
    dataset = lake.create(NAME, schema, key="id")
    lake.hot.fill(NAME)
    rows = pa.table([pa.array(["1"]), column.cast(dataset.schema.field("at").type)], schema=dataset.schema)
    write_unchecked(dataset, rows)
    with pytest.raises(NotResident), lake.hot.snapshot([NAME]):
        pass
    assert not lake.hot.decide(NAME).admitted


@pytest.mark.parametrize(
    "kind", [pa.struct([("a", pa.int64()), ("A", pa.int64())]), pa.null(), pa.struct([])], ids=["case", "null", "empty"]
)
def test_columns_that_duckdb_cannot_hold_are_named(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedType, match="'odd'"):
        columns_sql(pa.schema([("fine", pa.int64()), ("odd", pa.list_(kind))]))

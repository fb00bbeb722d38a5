import datetime
import decimal
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from siltstone.dataset.write.row_conversion import change_rows, check_keys, to_table
from siltstone.errors import InvalidRequest
from siltstone.model.columns import Op
from siltstone.model.schema import MAX_KEY_BYTES, change_schema
from tests.support.refusals import refused as refuses

UTC = datetime.UTC
BERLIN = datetime.timezone(datetime.timedelta(hours=2))
NOON = datetime.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
WALL = datetime.datetime(2024, 5, 1, 12)  # noqa: DTZ001
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("small", pa.int16()),
        pa.field("f", pa.float64()),
        pa.field("m", pa.decimal128(10, 2)),
        pa.field("b", pa.bool_()),
        pa.field("d", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("wall", pa.timestamp("us")),
        pa.field("raw", pa.binary()),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)


def table(rows: object) -> pa.Table:
    return to_table(rows, SCHEMA, dataset="a.b.c")


def value(column: str, given: object) -> object:
    """Pass one value as a dict and return the stored value."""
    return table([{"id": "x", column: given}]).column(column)[0].as_py()


def refused(rows: object, *words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        table(rows)
    for word in ("a.b.c", *words):
        assert word in str(caught.value), str(caught.value)


# ---- shapes ----------------------------------------------------------------------------------------------------------

ONE = [{"id": "x", "n": 1}]
SHAPES = {
    "dicts": ONE,
    "a dict": ONE[0],
    "a tuple of dicts": tuple(ONE),
    "an Arrow table": pa.table({"id": ["x"], "n": [1]}),
    "an Arrow batch": pa.RecordBatch.from_pydict({"id": ["x"], "n": [1]}),
    "an Arrow reader": pa.table({"id": ["x"], "n": [1]}).to_reader(),
    "a pandas frame": pd.DataFrame({"id": ["x"], "n": [1]}),
    "a pandas frame with an index": pd.DataFrame({"id": ["x"], "n": [1]}, index=[7]),
    "columns in another order": pa.table({"n": [1], "id": ["x"]}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_every_shape_become_the_same_table(shape: str):
    found = table(SHAPES[shape])
    assert found.schema == SCHEMA
    assert found.to_pylist() == [dict.fromkeys(SCHEMA.names) | {"id": "x", "n": 1}]


@pytest.mark.parametrize("rows", [None, 5, "id", b"id", object(), {1, 2}], ids=lambda rows: type(rows).__name__)
def test_a_value_that_is_not_a_set_of_rows_is_rejected_by_its_type(rows: object):
    refused(rows, type(rows).__name__)


def test_a_row_of_another_type_is_named_by_its_number():
    refused([{"id": "x"}, ["y"]], "row 1", "list")


@pytest.mark.parametrize(
    "rows",
    [[], pa.table({"id": pa.array([], pa.string())}), pd.DataFrame({"id": pd.Series([], dtype=str)}), pa.table({})],
    ids=["dicts", "arrow", "pandas", "no columns"],
)
def test_no_rows_are_an_empty_table(rows: object):
    found = table(rows)
    assert (found.num_rows, found.schema) == (0, SCHEMA)


def test_rows_of_unlike_dicts_are_filled_with_null():
    assert table([{"id": "x", "n": 1}, {"id": "y", "f": 2.0}]).select(["id", "n", "f"]).to_pylist() == [
        {"id": "x", "n": 1, "f": None},
        {"id": "y", "n": None, "f": 2.0},
    ]


# ---- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [[{"id": "x", "zip": 1}], pa.table({"id": ["x"], "zip": [1]}), pd.DataFrame({"id": ["x"], "zip": [1]})],
    ids=["dicts", "arrow", "pandas"],
)
def test_an_unknown_column_is_refused_by_name_with_those_there_are(rows: object):
    refused(rows, "'zip'", "id, n, small")


def test_names_differ_by_case():
    refused([{"ID": "x"}], "'ID'")


def test_system_columns_are_rejected_like_unknown_columns():
    refused([{"id": "x", "_op": "D"}], "'_op'")


@pytest.mark.parametrize(
    "rows",
    [
        pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["id", "id"]),
        pd.DataFrame([["x", "y"]], columns=["id", "id"]),
    ],
    ids=["arrow", "pandas"],
)
def test_a_column_that_is_given_twice_is_refused(rows: object):
    refused(rows, "id")


def test_a_required_column_that_is_missing_or_null_is_named_with_its_row():
    refused([{"n": 1}], "'id'", "row 0")
    refused([{"id": "x"}, {"id": None}], "'id'", "row 1")
    refused(pa.table({"id": ["x", "y", None]}), "'id'", "row 2")
    refused(pa.table({"n": [1]}), "'id'", "row 0")


# ---- values ----------------------------------------------------------------------------------------------------------

KEPT = {
    ("n", 2**63 - 1): 2**63 - 1,
    ("n", -(2**63)): -(2**63),
    ("f", 1): 1.0,
    ("f", math.inf): math.inf,
    ("m", decimal.Decimal("1.5")): decimal.Decimal("1.50"),
    ("m", "1.5"): decimal.Decimal("1.50"),
    ("m", 2): decimal.Decimal("2.00"),
    ("d", datetime.date(2024, 2, 29)): datetime.date(2024, 2, 29),
    ("d", "2024-02-29"): datetime.date(2024, 2, 29),
    ("at", NOON): NOON,
    ("at", NOON.astimezone(BERLIN)): NOON,
    ("at", "2024-05-01T12:00:00.123456Z"): NOON,
    ("at", "2024-05-01 14:00:00.123456+02:00"): NOON,
    ("wall", WALL): WALL,
    ("wall", "2024-05-01T12:00:00"): WALL,
    ("id", "日本 🙂 \x00"): "日本 🙂 \x00",
    ("id", ""): "",
    ("raw", b"\x00\xff"): b"\x00\xff",
}


@pytest.mark.parametrize(("column", "given"), KEPT, ids=lambda part: str(part)[:30])
def test_a_value_that_fits_is_kept(column: str, given: object):
    assert value(column, given) == KEPT[column, given]


@pytest.mark.parametrize("number", [np.int64(5), np.int16(5), 5])
def test_numbers_of_numpy_are_numbers(number: object):
    assert value("n", number) == 5


def test_a_list_is_kept():
    assert value("tags", ["a", None, "b"]) == ["a", None, "b"]


MISFITS = [
    ("n", "1"),
    ("n", 2**63),
    ("n", 1.5),
    ("n", math.nan),
    ("n", True),
    ("n", decimal.Decimal("1.5")),
    ("small", 40_000),
    ("f", "1.0"),
    ("m", decimal.Decimal("1.234")),
    ("m", "1.234"),
    ("m", "one"),
    ("m", decimal.Decimal(123456789)),
    ("b", 1),
    ("b", "true"),
    ("d", "yesterday"),
    ("d", datetime.datetime(2024, 5, 1, 12, tzinfo=UTC)),
    ("at", "noon"),
    ("wall", "2024-05-01T12:00:00Z"),
    ("wall", NOON),
    ("id", 5),
    ("id", math.nan),
    ("id", "\ud800"),
    ("tags", "abc"),
    ("tags", [1]),
]


@pytest.mark.parametrize(("column", "given"), MISFITS, ids=lambda part: repr(part)[:30])
def test_a_value_that_does_not_fit_is_named_by_row_and_column(column: str, given: object):
    refused([{"id": "fine"}, {"id": "fine"} | {column: given}], "row 1", f"'{column}'")


def test_a_timestamp_that_counts_nanoseconds_is_refused_and_one_that_fits_is_kept():
    assert value("at", pd.Timestamp("2024-05-01T12:00:00.123456Z")) == NOON
    refused([{"id": "x", "at": pd.Timestamp("2024-05-01T12:00:00.123456789Z")}], "row 0", "'at'")


def test_a_broken_number_behind_whole_ones_is_refused_and_not_cut():
    refused([{"id": "x", "n": 1}, {"id": "y", "n": 1.5}], "row 1", "'n'")


def test_a_time_without_a_zone_is_utc():
    assert value("at", datetime.datetime(2024, 5, 1, 12, 0, 0, 123456)) == NOON  # noqa: DTZ001
    assert value("at", "2024-05-01T12:00:00.123456") == NOON


def test_not_a_number_stays_what_it_is_in_dicts_and_arrow():
    assert math.isnan(value("f", math.nan))  # type: ignore[arg-type]
    found = table(pa.table({"id": ["x"], "f": [math.nan]})).column("f")
    assert found.null_count == 0


def test_gaps_of_pandas_are_null():
    frame = pd.DataFrame({"id": ["x", "y"], "n": [1, None], "f": [math.nan, 1.0], "at": [pd.NaT, pd.Timestamp(NOON)]})
    found = table(frame).select(["n", "f", "at"]).to_pylist()
    assert found == [{"n": 1, "f": None, "at": None}, {"n": None, "f": 1.0, "at": NOON}]


# ---- typed columns ---------------------------------------------------------------------------------------------------

TYPED_KEPT = {
    "narrower integers": ("n", pa.array([1], pa.int8()), 1),
    "wider integers that fit": ("small", pa.array([7], pa.int64()), 7),
    "large text": ("id", pa.array(["x"], pa.large_string()), "x"),
    "a dictionary": ("id", pa.array(["x"]).dictionary_encode(), "x"),
    "nulls": ("n", pa.nulls(1), None),
    "whole floats": ("n", pa.array([2.0]), 2),
    "nanoseconds that fit": ("at", pa.array([1_000], pa.timestamp("ns", tz="UTC")), None),
    "another zone": ("at", pa.array([NOON], pa.timestamp("us", tz="Europe/Berlin")), NOON),
    "seconds": ("wall", pa.array([0], pa.timestamp("s")), datetime.datetime(1970, 1, 1)),  # noqa: DTZ001
    "a narrower decimal": ("m", pa.array([decimal.Decimal("1.5")], pa.decimal128(3, 1)), decimal.Decimal("1.50")),
}
TYPED_REFUSED = {
    "text for a number": ("n", pa.array(["1"])),
    "a number for text": ("id", pa.array([1])),
    "a boolean for a number": ("n", pa.array([True])),
    "a number for a boolean": ("b", pa.array([1])),
    "integers too large": ("small", pa.array([40_000])),
    "broken floats": ("n", pa.array([1.5])),
    "not a number": ("n", pa.array([math.nan])),
    "nanoseconds that do not fit": ("at", pa.array([1], pa.timestamp("ns", tz="UTC"))),
    "a zone where there is none": ("wall", pa.array([NOON], pa.timestamp("us", tz="UTC"))),
    "no zone where there is one": ("at", pa.array([0], pa.timestamp("us"))),
    "a decimal with more places": ("m", pa.array([decimal.Decimal("1.234")])),
    "text for a time": ("at", pa.array(["2024-05-01T12:00:00Z"])),
    "integers for a time": ("at", pa.array([1])),
    "a time for an integer": ("n", pa.array([NOON])),
    "a list for text": ("id", pa.array([["x"]])),
    "a time of day for a date": ("d", pa.array([NOON])),
}


@pytest.mark.parametrize("case", TYPED_KEPT)
def test_a_typed_column_is_cast_where_nothing_is_lost(case: str):
    column, array, expected = TYPED_KEPT[case]
    given = pa.table({"id": ["x"], column: array}) if column != "id" else pa.table({"id": array})
    found = table(given).column(column)[0].as_py()
    assert found == expected or case == "nanoseconds that fit"
    assert case != "nanoseconds that fit" or found.microsecond == 1


@pytest.mark.parametrize("case", TYPED_REFUSED)
def test_a_typed_column_that_would_lose_something_is_refused_by_name(case: str):
    column, array = TYPED_REFUSED[case]
    refused(pa.table({"id": ["x"], column: array}) if column != "id" else pa.table({"id": array}), f"'{column}'")


def test_a_pandas_column_of_mixed_kinds_is_refused_and_not_an_error_of_arrow():
    refused(pd.DataFrame({"id": ["x", 1]}), "id")


# ---- keys ------------------------------------------------------------------------------------------------------------

LOOSE = pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int64())])


def test_a_null_key_is_named_by_its_row():
    with refuses(InvalidRequest, None, "'n'", "row 1"):
        check_keys(pa.table({"id": ["x", "y"], "n": [1, None]}, schema=LOOSE), ["id", "n"], dataset="a.b.c")


@pytest.mark.parametrize(
    ("key", "fits"),
    [("x" * MAX_KEY_BYTES, True), ("x" * (MAX_KEY_BYTES + 1), False), ("ä" * 512, True), ("ä" * 513, False)],
)
def test_a_key_takes_at_most_a_kilobyte_and_bytes_are_what_counts(key: str, *, fits: bool):
    given = pa.table({"id": [key], "n": [1]}, schema=LOOSE)
    if fits:
        check_keys(given, ["id"], dataset="a.b.c")
        return
    with pytest.raises(InvalidRequest, match="1024"):
        check_keys(given, ["id"], dataset="a.b.c")


def test_long_values_of_columns_outside_the_key_are_accepted():
    check_keys(pa.table({"id": ["x" * 5000], "n": [1]}, schema=LOOSE), ["n"], dataset="a.b.c")


# ---- change rows -----------------------------------------------------------------------------------------------------


def test_a_change_row_carries_its_position_its_batch_and_its_time():
    schema = change_schema(SCHEMA, ["id"])
    given = table([{"id": "x", "n": 1}, {"id": "x", "n": 2}])
    found = change_rows(given, op=Op.UPSERT, schema=schema, batch_id="b1", written_at=NOON)
    assert found.schema == schema
    assert found.select(["id", "n", "_op", "_pos", "_row_seq", "_batch_id", "_written_at", "_actor"]).to_pylist() == [
        {
            "id": "x",
            "n": n,
            "_op": "U",
            "_pos": n - 1,
            "_row_seq": None,
            "_batch_id": "b1",
            "_written_at": NOON,
            "_actor": None,
        }
        for n in (1, 2)
    ]


def test_a_tombstone_carries_only_the_key_the_actor_and_the_reason():
    schema = change_schema(SCHEMA, ["id"])
    keys = pa.table({"id": ["x"]})
    found = change_rows(keys, op=Op.TOMBSTONE, schema=schema, batch_id="b1", written_at=NOON, actor="dpo", reason="17")
    row = found.to_pylist()[0]
    assert (row["id"], row["_op"], row["_actor"], row["_reason"]) == ("x", "D", "dpo", "17")
    assert all(row[name] is None for name in SCHEMA.names if name != "id")

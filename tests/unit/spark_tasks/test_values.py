"""One set of rules for every kind of input, and an exact round trip through JSON and CSV for every type."""

import base64
import datetime
import decimal
import io
import json
import math
import struct
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.cli.render import plain, write_csv
from siltstone.dataset.write.row_conversion import to_table
from siltstone.errors import InvalidRequest
from siltstone.spark_tasks import csv_rows, json_rows
from siltstone.spark_tasks.csv_rows import PLAIN, START, CsvForm, CsvJob
from siltstone.spark_tasks.json_rows import FILE, TEXT, UNREAD, JsonJob
from siltstone.spark_tasks.values import accepted, outside_years, read_json
from tests.support.refusals import refused

UTC = datetime.UTC
ZONED, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")


def column_of(kind: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("c", kind)])


def from_dict(value: Any, kind: pa.DataType) -> pa.Table:  # noqa: ANN401
    return to_table([{"c": value}], column_of(kind), dataset="a.b.c")


def from_json(text: str, kind: pa.DataType) -> pa.RecordBatch:
    """Read a JSON value as a load does."""
    schema = column_of(kind)
    job = JsonJob(schema=schema, rules={"c": f"is wrong. Accepted: {accepted(kind)}"}, whole=False)
    lines = [f'{{"c": {text}}}'.encode()]
    batch = pa.RecordBatch.from_arrays([pa.array(lines, pa.binary()), pa.array(["f"])], names=[TEXT, FILE])
    [found] = json_rows.in_tasks(job)(iter([batch]))
    return found


def from_csv(lines: list[str], schema: pa.Schema, form: CsvForm = PLAIN, *, start: int = 1) -> pa.RecordBatch:
    """Read lines of CSV as a load does; from the middle of a file, unless it starts at 0."""
    rules = {field.name: f"is wrong. Accepted: {accepted(field.type)}" for field in schema}
    texts = pa.array([line.encode(form.encoding) for line in lines], pa.binary())
    batch = pa.RecordBatch.from_arrays(
        [texts, pa.array(["f"] * len(lines)), pa.array([start] * len(lines))], names=[TEXT, FILE, START]
    )
    work = csv_rows.in_tasks(CsvJob(schema=schema, rules=rules, form=form))
    return pa.Table.from_batches(work(iter([batch]))).combine_chunks().to_batches()[0]


REFUSED_TEXT = [
    ("10.509", pa.decimal128(10, 2)),
    ("123456789.00", pa.decimal128(10, 2)),
    ("1_0", pa.decimal128(10, 2)),
    ("NaN", pa.decimal128(10, 2)),
    ("1e999999", pa.decimal128(10, 2)),
    ("10:00", ZONED),
    ("10:00", LOCAL),
    ("2026-01-05T10:00:00Z", LOCAL),
    ("2026-01-05T10:00:00.1234567Z", ZONED),
    ("2026-01-05T25:00:00Z", ZONED),
    ("0001-01-01T00:00:00+05:00", ZONED),
    ("0000-12-31T00:00:00", LOCAL),
    ("1700000000", ZONED),
    ("12026-01-05T00:00:00Z", ZONED),
    ("2026-01-05 junk", pa.date32()),
    ("2026-01-05T10:00:00", pa.date32()),
    ("20260105", pa.date32()),
    ("0000-01-01", pa.date32()),
    ("2026-02-30", pa.date32()),
    ("20", pa.date32()),
    ("not base 64!", pa.binary()),
]


@pytest.mark.parametrize(("text", "kind"), REFUSED_TEXT, ids=lambda part: str(part)[:40])
def test_text_that_does_not_fit_is_refused_by_every_input(text: str, kind: pa.DataType):
    with refused(InvalidRequest, None, "row 0", "'c'"):
        from_dict(text, kind)
    for found in (from_json(json.dumps(text), kind), from_csv([text], column_of(kind))):
        assert found.column(UNREAD)[0].as_py().startswith(f"column 'c': {text!r} ")
        assert found.column("c").null_count == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1700000000", ZONED),
        ("1700000000", LOCAL),
        ("1.5", ZONED),
        ("19000", pa.date32()),
        ("true", pa.float64()),
        ("true", pa.int64()),
        ("true", pa.decimal128(10, 2)),
        ("1e400", pa.float64()),
        ("-1e400", pa.float64()),
        ("1e300", pa.float32()),
        ("9007199254740993", pa.float64()),
        ("16777217", pa.float32()),
        ("1.5", pa.int64()),
        ("1e999999", pa.int64()),
        ("10.509", pa.decimal128(10, 2)),
        ("1", pa.bool_()),
        ("1", pa.string()),
        ("[1.5]", pa.list_(pa.int64())),
        ('{"b": 1}', pa.struct([("a", pa.int64())])),
        ('{"a": true}', pa.struct([("a", pa.float64())])),
        ('[["a", 1], ["a", 2]]', pa.map_(pa.string(), pa.int64())),
        ("[[null, 1]]", pa.map_(pa.string(), pa.int64())),
    ],
    ids=lambda part: str(part)[:40],
)
def test_json_values_that_neither_an_upsert_nor_a_load_accepts(text: str, kind: pa.DataType):
    with refused(InvalidRequest, None, "row 0", "'c'"):
        from_dict(read_json(text), kind)
    assert "'c'" in from_json(text, kind).column(UNREAD)[0].as_py()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, pa.float64()),
        (np.bool_(True), pa.float64()),  # noqa: FBT003
        (np.float32(1.5), pa.int64()),
        (np.array([1.5]), pa.list_(pa.int64())),
        (1e300, pa.float32()),
        (1.5, pa.decimal128(10, 2)),
        (1700000000, ZONED),
        (datetime.date(2026, 1, 5), ZONED),
        (b"x", pa.string()),
        ({1, 2}, pa.list_(pa.int64())),
        ((1, 2), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        ([("a", 1), ("a", 2)], pa.map_(pa.string(), pa.int64())),
        (datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5))), ZONED),
    ],
    ids=lambda part: str(part)[:40],
)
def test_python_values_that_would_be_cut_or_guessed_are_refused(value: object, kind: pa.DataType):
    with refused(InvalidRequest, None, "row 0", "'c'"):
        from_dict(value, kind)


def test_gaps_of_pandas_in_dicts_are_null():
    for kind in (pa.date32(), ZONED, pa.int64(), pa.string()):
        assert from_dict(pd.NaT, kind).column("c").null_count == 1
        assert from_dict(pd.NA, kind).column("c").null_count == 1


FIELDS = pa.struct([("a", pa.int64())])
TYPED = {
    "floats for decimals": (pa.array([10.509]), pa.decimal128(10, 2), "'c'"),
    "floats too large": (pa.array([1.0, 1e300]), pa.float32(), "row 1.*'c'.*1e\\+300"),
    "a field too many": (pa.array([{"a": 1, "b": 2}]), FIELDS, "row 0.*'c'"),
    "text inside": (pa.array([{"a": 1}, {"a": 2}]).cast(pa.struct([("a", pa.string())])), FIELDS, "row 0.*'c'"),
    "text in a list": (pa.array([["1"]]), pa.list_(pa.int64()), "row 0.*'c'"),
    "a date past 9999": (
        pa.array([0, 2_932_897], pa.int32()).cast(pa.date32()),
        pa.date32(),
        "'c'.*row 1",
    ),
    "a date before 1": (pa.array([-719_163], pa.int32()).cast(pa.date32()), pa.date32(), "'c'.*row 0"),
    "a time past 9999": (pa.array([253402300800000000], ZONED), ZONED, "'c'.*row 0"),
    "seconds past 9999": (pa.array([253402300800], pa.timestamp("s")), LOCAL, "'c'.*row 0"),
    "a time in a list": (pa.array([[0], [2**60]], pa.list_(ZONED)), pa.list_(ZONED), "'c'.*row 1"),
    "a time in a map": (
        pa.array([[("k", 2**60)]], pa.map_(pa.string(), LOCAL)),
        pa.map_(pa.string(), LOCAL),
        "'c'.*row 0",
    ),
    "a time in a struct": (
        pa.array([{"at": 2**60}], pa.struct([("at", LOCAL)])),
        pa.struct([("at", LOCAL)]),
        "'c'.*row 0",
    ),
}


def test_a_typed_column_without_rows_that_cannot_be_cast_is_refused():
    empty = pa.table({"c": pa.array([], pa.time32("s"))})
    with pytest.raises(InvalidRequest, match="'c'"):
        to_table(empty, column_of(ZONED), dataset="a.b.c")
    far = pa.table({"c": pa.array([2**62], pa.timestamp("s"))})
    with refused(InvalidRequest, None, "row 0", "'c'"):
        to_table(far, column_of(LOCAL), dataset="a.b.c")


@pytest.mark.parametrize("case", TYPED)
def test_arrow_columns_that_would_lose_something_are_refused_with_their_row(case: str):
    array, kind, message = TYPED[case]
    with pytest.raises(InvalidRequest, match=message):
        to_table(pa.table({"c": array}), column_of(kind), dataset="a.b.c")


def test_the_first_and_the_last_day_of_all_years_fit():
    for kind in (pa.date32(), ZONED, LOCAL):
        last = datetime.date(9999, 12, 31) if kind == pa.date32() else "9999-12-31T23:59:59.999999"
        for value in ("0001-01-01", last):
            assert not outside_years(from_dict(value, kind).column("c"))


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("NaN", pa.float64(), math.nan),
        ("-Infinity", pa.float32(), -math.inf),
        ("inf", pa.float64(), math.inf),
        ("1.500", pa.decimal128(10, 2), decimal.Decimal("1.50")),
        ("0E-2", pa.decimal128(10, 2), decimal.Decimal("0.00")),
        ("2026-01-05", ZONED, datetime.datetime(2026, 1, 5, tzinfo=UTC)),
        ("2026-01-05 10:00", LOCAL, datetime.datetime(2026, 1, 5, 10)),  # noqa: DTZ001
        ("2026-01-05T10:00:00.123000000Z", ZONED, datetime.datetime(2026, 1, 5, 10, 0, 0, 123000, tzinfo=UTC)),
        ("2026-01-05T10:00:00+0200", ZONED, datetime.datetime(2026, 1, 5, 8, tzinfo=UTC)),
        ("AP8=", pa.binary(), b"\x00\xff"),
    ],
)
def test_text_that_fits_is_accepted_by_every_input(text: str, kind: pa.DataType, expected: object):
    tables = [from_dict(text, kind), from_json(json.dumps(text), kind), from_csv([text], column_of(kind))]
    assert [repr(found.column("c")[0].as_py()) for found in tables] == [repr(pa.scalar(expected, kind).as_py())] * 3


@pytest.mark.parametrize(
    "text", ["2026-01-05T10Z", "2026-01-05T10", "2026-01-05T1000", "20260105T100000Z", "2026-W02-1"]
)
def test_short_forms_of_times_are_refused_by_the_quick_parser_too(text: str):
    with pytest.raises(InvalidRequest):
        from_dict(text, ZONED)
    assert from_json(json.dumps(text), ZONED).column("c").null_count == 1


def test_a_map_is_an_object_or_a_list_of_pairs_and_keys_of_an_object_are_text():
    kind = pa.map_(pa.int32(), pa.string())
    for value in ({"1": "a", "2": None}, [[1, "a"], [2, None]], {1: "a", 2: None}):
        assert from_dict(value, kind).column("c")[0].as_py() == [(1, "a"), (2, None)]


def test_a_field_that_is_named_twice_is_not_read():
    with pytest.raises(ValueError, match="'a'"):
        read_json('{"a": 1, "a": 2}')
    found = from_json('1, "c": 2', pa.int64())
    assert "'c'" in found.column(UNREAD)[0].as_py()


MOMENTS = st.datetimes()
SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(st.characters(codec="utf-8")),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 18): st.decimals(-(10**19), 10**19, places=18),
    pa.decimal128(5, 0): st.integers(-99999, 99999).map(decimal.Decimal),
    pa.date32(): st.dates(),
    ZONED: MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    LOCAL: MOMENTS,
    pa.binary(): st.binary(),
}
KEYS = [pa.string(), pa.int64(), pa.date32(), ZONED, pa.decimal128(5, 0), pa.bool_()]


def typed(depth: int = 2) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    """A type with its values."""
    scalars = st.sampled_from(list(SCALARS.items()))
    if not depth:
        return scalars
    inner = typed(depth - 1)

    def as_list(part: tuple[pa.DataType, st.SearchStrategy[Any]]) -> Any:  # noqa: ANN401
        kind, values = part
        return pa.list_(pa.field("element", kind)), st.lists(st.none() | values, max_size=3)

    def as_struct(parts: list[tuple[pa.DataType, st.SearchStrategy[Any]]]) -> Any:  # noqa: ANN401
        fields = {f"f{number}": part for number, part in enumerate(parts)}
        kind = pa.struct([pa.field(name, kind) for name, (kind, _) in fields.items()])
        return kind, st.fixed_dictionaries({name: st.none() | values for name, (_, values) in fields.items()})

    def as_map(parts: tuple[pa.DataType, tuple[pa.DataType, st.SearchStrategy[Any]]]) -> Any:  # noqa: ANN401
        key, (item, values) = parts
        pairs = st.lists(st.tuples(SCALARS[key], st.none() | values), max_size=3, unique_by=lambda pair: pair[0])
        return pa.map_(key, item), pairs

    return st.one_of(
        scalars,
        inner.map(as_list),
        st.lists(inner, min_size=1, max_size=3).map(as_struct),
        st.tuples(st.sampled_from(KEYS), inner).map(as_map),
    )


@st.composite
def columns(draw: st.DrawFn) -> pa.Table:
    kind, values = draw(typed())
    rows = draw(st.lists(st.none() | values, min_size=1, max_size=4))
    return to_table([{"c": value} for value in rows], column_of(kind), dataset="a.b.c")


def same(one: Any, other: Any) -> bool:  # noqa: ANN401
    """Compare values bit by bit: NaN is NaN, and 0.0 is not -0.0."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@given(columns())
def test_rows_shown_as_json_are_read_as_the_same_rows(table: pa.Table):
    rows = table.to_pylist()
    shown = json.dumps(plain(rows), ensure_ascii=False)
    assert same(to_table(read_json(shown), table.schema, dataset="a.b.c").to_pylist(), rows)
    kind = table.schema.field("c").type
    for row in rows:
        [loaded] = from_json(json.dumps(plain(row["c"])), kind).to_pylist()
        assert loaded[UNREAD] is None
        assert same(loaded["c"], row["c"])


@given(columns())
def test_rows_shown_as_csv_are_read_as_the_same_rows(table: pa.Table):
    text = io.StringIO()
    rows = [row["c"] for row in table.to_pylist() if row["c"] != ""]  # an empty field is null
    for value in rows:
        write_csv(["c"], [[value]], file=text)
    fields = text.getvalue().removeprefix("c\n").removesuffix("\n").split("\nc\n") if rows else []
    for field, value in zip(fields, rows, strict=True):
        if "\n" in field or "\r" in field:  # a line is a row
            continue
        [loaded] = from_csv([field], table.schema).to_pylist()
        assert loaded[UNREAD] is None, loaded
        assert same(loaded["c"], value)


def test_bytes_are_shown_and_read_as_base_64():
    table = from_dict(b"abc", pa.binary())
    assert plain(table.to_pylist()) == [{"c": base64.b64encode(b"abc").decode()}]
    assert from_dict("YWJj", pa.binary()).equals(table)


COUNTS = pa.map_(pa.string(), pa.int32())


def test_dicts_of_a_pandas_column_do_not_take_the_keys_of_other_rows():
    frame = pd.DataFrame({"c": [{"a": 1}, None, {"b": 2}, float("nan"), {}]})
    found = to_table(frame, column_of(COUNTS), dataset="a.b.c")
    assert found.column("c").to_pylist() == [[("a", 1)], None, [("b", 2)], None, []]
    lists = pd.DataFrame({"c": [[{"a": 1}], [{"b": 2}]], "n": [1, 2]})
    schema = pa.schema([("c", pa.list_(COUNTS)), ("n", pa.int64())])
    assert to_table(lists, schema, dataset="a.b.c").column("c").to_pylist() == [[[("a", 1)]], [[("b", 2)]]]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (COUNTS, pa.array([{"a": 1}, {"b": 2}])),
        (pa.list_(COUNTS), pa.array([[{"a": 1}], [{"b": 2}]])),
        (pa.struct([("m", COUNTS)]), pa.array([{"m": {"a": 1}}, {"m": {"b": 2}}])),
        (
            pa.map_(pa.string(), COUNTS),
            pa.array([[("k", {"a": 1})]], pa.map_(pa.string(), pa.struct([("a", pa.int32())]))),
        ),
    ],
)
def test_an_arrow_struct_is_refused_as_a_map(kind: pa.DataType, given: pa.Array):
    with pytest.raises(InvalidRequest, match="'c'"):
        to_table(pa.table({"c": given}), column_of(kind), dataset="a.b.c")


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.date32(), [datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 2, 3, tzinfo=UTC)]),
        (pa.int64(), pd.period_range("2026-01", periods=1, freq="D")),
    ],
)
def test_pandas_values_are_neither_cut_nor_taken_for_numbers(kind: pa.DataType, column: object):
    with pytest.raises(InvalidRequest, match="'c'"):
        to_table(pd.DataFrame({"c": column}), column_of(kind), dataset="a.b.c")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), np.timedelta64(5, "ns")),
        (pa.list_(pa.int64()), np.array(["1970-01-01T00:00:00.000000005"], dtype="datetime64[ns]")),
        (pa.binary(), "YWJ="),  # the trailing bits are unused
    ],
)
def test_a_value_that_only_looks_like_another_is_refused(kind: pa.DataType, value: object):
    with pytest.raises(InvalidRequest):
        from_dict(value, kind)


def test_a_struct_that_names_a_field_twice_is_refused():
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(InvalidRequest, match="'c'"):
        to_table(pa.table({"c": twice}), column_of(pa.struct([("a", pa.int64())])), dataset="a.b.c")


@pytest.mark.parametrize("others", [[], ["1e0"]])
def test_minus_zero_in_csv_does_not_depend_on_the_lines_beside_it(others: list[str]):
    found = from_csv(["-0", *others], column_of(pa.float64())).column("c")
    assert math.copysign(1, found[0].as_py()) == -1


MAP = pa.map_(pa.string(), pa.int32())
TWICE = [("a", 1), ("b", 2), ("a", 3)]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (MAP, [("a", 1)], TWICE),
        (pa.list_(MAP), [[("a", 1)], [("a", 2)]], [[("a", 1)], TWICE]),
        (pa.struct([("m", MAP)]), {"m": [("a", 1)]}, {"m": TWICE}),
        (pa.map_(pa.string(), MAP), [("a", [("a", 1)])], [("b", TWICE)]),
        (pa.map_(pa.struct([("x", pa.int32())]), pa.int32()), [({"x": 1}, 1)], [({"x": 1}, 1), ({"x": 1}, 2)]),
    ],
)
def test_a_map_with_a_key_twice_is_refused_from_arrow_as_from_dicts(kind: pa.DataType, good: object, bad: object):
    schema = pa.schema([pa.field("id", pa.int32()), pa.field("m", kind)])
    sound = pa.table({"id": [1, 2, 3, 4], "m": pa.array([good, None, good, good], kind)}, schema=schema)
    assert to_table(sound.slice(1), schema, dataset="a.b.c").num_rows == 3
    broken = pa.table({"id": [1, 2, 3], "m": pa.array([good, None, bad], kind)}, schema=schema)
    with refused(InvalidRequest, None, "'m'", "row 1"):
        to_table(broken.slice(1), schema, dataset="a.b.c")
    assert to_table(broken.slice(0, 2), schema, dataset="a.b.c").num_rows == 2

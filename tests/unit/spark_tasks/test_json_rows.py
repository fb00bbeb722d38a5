"""JSON in Spark's tasks, without Spark: rows that an upsert accepts are read the same, all others have a reason."""

import datetime
import decimal
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.dataset.write.row_conversion import to_table
from siltstone.model.schema import a_type
from siltstone.spark_tasks.json_rows import FILE, TEXT, UNREAD, JsonJob, in_tasks, output, read_quickly

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("small", pa.int8()),
        pa.field("x", pa.float64()),
        pa.field("single", pa.float32()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("flag", pa.bool_()),
    ]
)
NESTED = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("place", pa.struct([pa.field("city", pa.string()), pa.field("since", pa.date32())])),
    ]
)


def job(schema: pa.Schema = SCHEMA, *, whole: bool = False) -> JsonJob:
    return JsonJob(schema=schema, rules={f.name: f"is not {a_type(f.type)}" for f in schema}, whole=whole)


def batch(*texts: bytes | str) -> pa.RecordBatch:
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return pa.RecordBatch.from_arrays(
        [pa.array(encoded, pa.binary()), pa.array(["a.json"] * len(texts))], names=[TEXT, FILE]
    )


def read(*texts: bytes | str, schema: pa.Schema = SCHEMA, whole: bool = False) -> list[dict[str, Any]]:
    work = job(schema, whole=whole)

    def found() -> Iterator[dict[str, Any]]:
        for out in in_tasks(work)(iter([batch(*texts)])):
            assert out.schema.equals(output(work.schema, work.passed))
            yield from out.to_pylist()

    return list(found())


def values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None and name != FILE}


EARLY, LATE = datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)  # noqa: DTZ001
ROWS = st.fixed_dictionaries(
    {"id": st.text(st.characters(codec="utf-8"), max_size=5)},
    optional={
        "n": st.integers(-(2**63), 2**63 - 1),
        "small": st.integers(-128, 127),
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "single": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "price": st.decimals(-(10**7), 10**7, places=2).map(str),
        "at": st.datetimes(
            EARLY,
            LATE,
            timezones=st.just(datetime.UTC),
        ).map(datetime.datetime.isoformat),
        "local": st.datetimes(EARLY, LATE).map(datetime.datetime.isoformat),
        "day": st.dates().map(datetime.date.isoformat),
        "flag": st.one_of(st.booleans(), st.none()),
    },
)


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_lines_are_read_as_an_upsert_reads_the_same_rows(rows: list[dict[str, Any]]):
    expected = to_table(rows, SCHEMA, dataset="a.b.c").to_pylist()
    lines = [json.dumps(row) for row in rows]
    for found in (read(*lines), read(json.dumps(rows), whole=True), read("\n".join(lines), whole=True)):
        assert [{name: row[name] for name in SCHEMA.names} for row in found] == expected
        assert {row[UNREAD] for row in found} == {None}


def test_plain_lines_are_read_by_the_quick_parser():
    assert read_quickly(batch('{"id": "a", "n": 1, "at": "2026-11-16T10:00:00Z", "price": "1.25"}'), job()) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"id": "a", "n": 1.5}', "column 'n': 1.5 is not a long"),
        ('{"id": "a", "n": "1"}', "column 'n': '1' is not a long"),
        ('{"id": "a", "n": true}', "column 'n': True is not a long"),
        ('{"id": "a", "n": 9223372036854775808}', "column 'n': 9223372036854775808 is not a long"),
        ('{"id": "a", "small": 128}', "column 'small': 128"),
        ('{"id": 5}', "column 'id': 5 is not a string"),
        ('{"id": "a", "price": 1.239}', "column 'price': 1.239 is not a decimal"),
        ('{"id": "a", "price": "x"}', "column 'price': 'x'"),
        ('{"id": "a", "at": "yesterday"}', "column 'at': 'yesterday' is not a timestamp"),
        ('{"id": "a", "local": "2026-11-16T10:00:00Z"}', "column 'local'"),
        ('{"id": "a", "day": "2026-02-30"}', "column 'day'"),
        ('{"id": "a", "flag": 1}', "column 'flag': 1"),
        ('{"id": "a", "colour": "red"}', "'colour'"),
        ('{"id": ', "JSON"),
        ('{"id": "a"} {"id": "b"}', "Extra data"),
        ("[1]", "JSON"),
        ('"text"', "JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"id": "\xff"}', "UTF-8"),
        ('{"id": "\\ud800"}', "column 'id'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_line_that_does_not_fit_has_a_reason_and_no_values(text: str | bytes, reason: str):
    good = '{"id": "b", "n": 2}'
    first, bad, last = read(good, text, good)
    assert values(first) == values(last) == {"id": "b", "n": 2}
    assert reason in bad[UNREAD]
    assert set(values(bad)) == {UNREAD, TEXT}


def test_numbers_with_a_point_are_read_exactly_where_the_column_is_exact():
    [row] = read('{"id": "a", "price": 12.10, "x": 12.10, "n": 3.0}')
    assert values(row) == {"id": "a", "price": decimal.Decimal("12.10"), "x": 12.1, "n": 3}


def test_a_time_without_a_zone_is_utc_where_the_column_has_one():
    [row] = read('{"id": "a", "at": "2026-11-16T10:00:00"}')
    assert row["at"].isoformat() == "2026-11-16T10:00:00+00:00"


def test_blank_lines_and_a_byte_order_mark_are_skipped():
    assert [values(row) for row in read("", b"\xef\xbb\xbf" + b'{"id": "a"}', "  ")] == [{"id": "a"}]


def test_nested_values_are_read_and_unknown_fields_inside_refused():
    good, bad = read(
        '{"id": "a", "tags": ["x", null], "place": {"city": "Ulm", "since": "2026-01-02"}}',
        '{"id": "a", "place": {"city": "Ulm", "zip": 1}}',
        schema=NESTED,
    )
    assert good["place"] == {"city": "Ulm", "since": datetime.date(2026, 1, 2)}
    assert good["tags"] == ["x", None]
    assert "column 'place'" in bad[UNREAD]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ('[{"id": "a"}, {"id": "b"}]', ["a", "b"]),
        ('{"id": "a"}', ["a"]),
        ('{\n "id": "a"\n}', ["a"]),
        ('{"id": "a"}\n{"id": "b"}\n', ["a", "b"]),
        ("", []),
        ("[]", []),
        ('[{"id": "a"}, 5]', ["a", None]),
        ('[{"id": "a"}, ', [None]),
    ],
)
def test_a_json_file_is_one_array_one_object_or_lines(text: str, ids: list[str | None]):
    rows = read(text, whole=True)
    assert [row["id"] for row in rows] == ids
    assert [row[UNREAD] is None for row in rows] == [found is not None for found in ids]

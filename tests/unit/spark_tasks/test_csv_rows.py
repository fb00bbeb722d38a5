"""CSV in Spark's tasks, without Spark: forms, headers, quotes, and equal results of the fast and the slow parser."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.dataset.load.csv_options import csv_form
from siltstone.dataset.load.row_validation import line_of
from siltstone.errors import InvalidRequest
from siltstone.spark_tasks import csv_rows
from siltstone.spark_tasks.csv_rows import PLAIN, START, CsvForm, CsvJob
from siltstone.spark_tasks.json_rows import FILE, TEXT, UNREAD
from siltstone.spark_tasks.text_columns import quick_column
from siltstone.spark_tasks.values import MISFITS, text_reader
from tests.support.refusals import figures

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64()), ("x", pa.float64())])


def read(*lines: bytes | str, form: CsvForm = PLAIN, schema: pa.Schema = SCHEMA, places: Any = None) -> list[Any]:  # noqa: ANN401
    """Read lines of one file; `places` are the file and the start of each line's part."""
    encoded = [line if isinstance(line, bytes) else line.encode(form.encoding) for line in lines]
    places = places or [("f", 0)] * len(lines)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(encoded, pa.binary()),
            pa.array([p[0] for p in places]),
            pa.array([p[1] for p in places], pa.int64()),
        ],
        names=[TEXT, FILE, START],
    )
    job = CsvJob(schema=schema, rules=dict.fromkeys(schema.names, "does not fit"), form=form)
    half = len(lines) // 2
    work = csv_rows.in_tasks(job)(iter([batch.slice(0, half), batch.slice(half)]))
    return [row for part in work for row in part.to_pylist()]


def ids(rows: list[Any]) -> list[Any]:
    return [row["id"] for row in rows]


def reasons(rows: list[Any]) -> list[Any]:
    return [row[UNREAD] for row in rows]


def test_the_first_line_of_each_file_is_left_out_and_of_its_later_parts_is_not():
    places = [("a", 0), ("a", 0), ("a", 0), ("b", 0), ("b", 0), ("a", 512), ("a", 512), ("c", 0)]
    lines = ["id,n,x", "1,1,1", "id,2,2", "id,n,x", "3,3,3", "4,4,4", "5,5,5", "id,n,x"]
    assert ids(read(*lines, places=places)) == ["1", "id", "3", "4", "5"]


def test_without_a_header_the_first_line_is_a_row_and_its_byte_order_mark_is_not_text():
    form = CsvForm(header=False)
    assert ids(read(b"\xef\xbb\xbf1,1,1", "\ufeff2,2,2", form=form)) == ["1", "\ufeff2"]


def test_blank_lines_are_skipped_and_each_row_needs_a_field_per_column():
    rows = read("id,n,x", "", "a,1,1", "b,1", "c,1,1,1", " ")
    assert ids(rows) == ["a", None, None, None]
    assert [reason and figures(reason) for reason in reasons(rows)] == [None, "2 3", "4 3", "1 3"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('"open,1,1', csv_rows.UNCLOSED),
        ('"a"b,1,1', "expected after"),
        ('y",1,1', csv_rows.STRAY),
        ('a"b"c,1,1', csv_rows.STRAY),
        (' "a",1,1', csv_rows.STRAY),
        ('a"b,1,"x', csv_rows.UNCLOSED),
        ('"a"b,1,"x', csv_rows.UNCLOSED),
        (b'"Z\xfcrich,1,1', csv_rows.UNCLOSED),
        (b"Z\xfcrich,1,1", "UTF-8 (invalid start byte at byte 1)"),
        ("a,1.5,1", "column 'n': '1.5' does not fit"),
        ("a,0x1F,1", "column 'n': '0x1F' does not fit"),
        ("a, 1,1", "column 'n': ' 1' does not fit"),
        ("a,9223372036854775808,1", "column 'n': '9223372036854775808' does not fit"),
        ("a,1,1e400", "column 'x': '1e400' does not fit"),
        ("a,1,9007199254740993", "column 'x': '9007199254740993' does not fit"),
        ('a,1,"1,5"', "column 'x': '1,5' does not fit"),
    ],
)
def test_a_line_that_does_not_fit_has_a_reason_and_its_neighbours_are_read(line: str | bytes, reason: str):
    first, bad, last = read("id,n,x", "a,1,1.5", line, 'b,+2,"2.5"')
    assert (first["id"], first["n"], first["x"]) == ("a", 1, 1.5)
    assert (last["id"], last["n"], last["x"]) == ("b", 2, 2.5)
    assert reason in bad[UNREAD]
    assert (bad["id"], bad["n"], bad["x"]) == (None, None, None)
    assert bad[TEXT] == (line.decode(errors="replace") if isinstance(line, bytes) else line)


def test_a_field_over_three_lines_leaves_the_reason_that_refuses_the_load():
    rows = read("id,n,x", '"first', "middle,1,1", 'last",2,2', 'b,3,"3"')
    assert reasons(rows) == [csv_rows.UNCLOSED, None, csv_rows.STRAY, None]


@pytest.mark.parametrize("quote", ['"', "'", "^", "]", "\\", "-"])
@pytest.mark.parametrize("delimiter", [",", "|", "\t", "-", "]"])
def test_quotes_around_fields_and_doubled_inside_are_well_formed(delimiter: str, quote: str):
    if delimiter == quote:
        return
    form = CsvForm(delimiter=delimiter, quote=quote)
    good = delimiter.join([f"{quote}a{quote}{quote}{delimiter}b{quote}", "1", f"{quote}2{quote}"])
    bad = delimiter.join([f"a{quote}b", "1", "2"])
    rows = read(delimiter.join(["id", "n", "x"]), good, good + "\r", bad, form=form)
    assert ids(rows) == [f"a{quote}{delimiter}b"] * 2 + [None]
    assert reasons(rows) == [None, None, csv_rows.STRAY]


def test_every_csv_option_is_applied():
    form = csv_form(
        delimiter="tab",
        quote="'",
        encoding="cp1252",
        header=False,
        null_text=["NULL", "-"],
        date_format="%d.%m.%Y",
        timestamp_format="%d/%m/%y %I:%M %p",
        decimal_comma=True,
    )
    assert form is not None
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("x", pa.float64()),
            ("m", pa.decimal128(10, 2)),
            ("d", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
        ]
    )
    row, empty, bad = read(
        "'Z\u00fcrich\t''\u20ac'''\t-1,5\t10,50\t31.01.2026\t05/11/26 02:03 PM",
        "\tNULL\t-\tNULL\t-",
        "a\t1.5\t-\t-\t-",
        form=form,
        schema=schema,
    )
    assert list(row.values())[:5] == [
        "Z\u00fcrich\t'\u20ac'",
        -1.5,
        decimal.Decimal("10.50"),
        datetime.date(2026, 1, 31),
        datetime.datetime(2026, 11, 5, 14, 3, tzinfo=datetime.UTC),
    ]
    assert list(empty.values())[:5] == ["", None, None, None, None]
    assert figures(bad[UNREAD]) == "'x' '1.5'"


def test_without_a_quote_character_quotes_are_text():
    assert ids(read("id,n,x", '"a,1,1', form=CsvForm(quote=""))) == ['"a']


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delimiter": ",,"}, "delimiter"),
        ({"delimiter": ""}, "delimiter"),
        ({"delimiter": "\n"}, "delimiter"),
        ({"delimiter": "x"}, "delimiter"),
        ({"quote": ","}, "quote"),
        ({"quote": "''"}, "quote"),
        ({"encoding": "klingon"}, "encoding"),
        ({"encoding": "utf-16"}, "UTF-8"),
        ({"encoding": "base64"}, "encoding"),
        ({"date_format": "dd.MM.yyyy"}, "%d.%m.%Y"),
        ({"date_format": "%d.%m."}, "date_format"),
        ({"date_format": "%x"}, "date_format"),
        ({"date_format": "%d.%m.%Y %H"}, "date_format"),
        ({"timestamp_format": "%d.%m.%Y %I:%M"}, "%p"),
        ({"timestamp_format": "%H:%M"}, "timestamp_format"),
    ],
)
def test_an_option_that_is_not_valid_is_refused_by_name(options: dict[str, Any], says: str):
    with pytest.raises(InvalidRequest) as refused:
        csv_form(**options)
    assert says in str(refused.value)
    assert next(iter(options)) in str(refused.value)


def test_no_csv_options_give_no_csv_form():
    assert csv_form() is None
    assert csv_form(decimal_comma=True) == CsvForm(decimal_comma=True)


NUMBERS = st.from_regex(r"[+-]?[0-9]{0,20}([.,][0-9]{0,4})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
TIMES = st.from_regex(
    r"[0-9]{1,5}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,8})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?",
    fullmatch=True,
)
KINDS = [
    *(pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.bool_()),
    *(pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
]


@given(
    st.sampled_from(KINDS),
    st.lists(
        st.one_of(NUMBERS, TIMES, st.sampled_from(["true", "FALSE", "1", "nan", "inf", " 1", "0x1F"])), max_size=3
    ),
    st.booleans(),
)
def test_the_quick_way_reads_what_the_slow_way_reads(kind: pa.DataType, texts: list[str], comma: bool):  # noqa: FBT001
    try:
        quick = quick_column(pa.array(texts, pa.string()), kind, decimal_comma=comma)
    except MISFITS:
        return
    slow = text_reader(kind, decimal_comma=comma)
    assert quick.to_pylist() == pa.array([slow(text) for text in texts], kind).to_pylist()


def test_the_line_of_a_text_is_found(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes("id,n\r\nZ\u00fcrich,1\r\nb,2\r\n".encode("cp1252"))
    assert line_of(tmp_path / "a.csv", "Z\u00fcrich,1", encoding="cp1252") == 2
    assert line_of(tmp_path / "a.csv", "nothing", encoding="cp1252") is None
    assert line_of(tmp_path / "gone.csv", "b", encoding="utf-8") is None

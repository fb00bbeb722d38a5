"""Loads of every format: the same rows as an upsert of them, through compression and partitioned folders."""

import base64
import bz2
import csv
import datetime
import decimal
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, InvalidRequest, Lake
from siltstone.cli.render import write_csv
from tests.support.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLAT = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("tiny", pa.int8()),
        pa.field("short", pa.int16()),
        pa.field("n", pa.int32()),
        pa.field("big", pa.int64()),
        pa.field("single", pa.float32()),
        pa.field("x", pa.float64()),
        pa.field("price", pa.decimal128(12, 3)),
        pa.field("flag", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
    ]
)
NESTED = pa.schema(
    [
        *FLAT,
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("place", pa.struct([pa.field("city", pa.string()), pa.field("since", pa.date32())])),
    ]
)
BYTES = pa.schema([*NESTED, pa.field("raw", pa.binary())])
ODD = ["plain", 'quote " and, comma', "\u00fc\U0001f600", " spaces ", "\\ back", "'", "null", "NaN", "#"]


def rows(count: int = 40) -> list[dict[str, Any]]:
    """Rows with every type; in every fifth row all columns but the key are null."""
    start = datetime.datetime(2026, 11, 16, 10, 0, 0, 123456, tzinfo=datetime.UTC)
    made = []
    for i in range(count):
        at = start + datetime.timedelta(days=i * 37, microseconds=i)
        row: dict[str, Any] = {"id": f"{ODD[i % len(ODD)]}{i}"}
        if i % 5:
            row |= {
                "tiny": i % 128 - 64,
                "short": i * 500 - 16_000,
                "n": i * 50_000_000 - 10**9,
                "big": (2**63 - 1) // (i + 1),
                "single": i / 4,
                "x": i / 3,
                "price": decimal.Decimal(i * 1001).scaleb(-3),
                "flag": bool(i % 2),
                "day": at.date(),
                "at": at,
                "local": at.replace(tzinfo=None),
                "tags": [ODD[i % len(ODD)], None],
                "place": {"city": ODD[i % len(ODD)], "since": at.date()},
                "raw": bytes([i, 255]),
            }
        made.append(row)
    return made


def shown(value: Any) -> Any:  # noqa: ANN401
    """Return a value in its JSON form."""
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shown(inner) for inner in value]
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, decimal.Decimal) else value


def only(found: list[dict[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    return [{name: row[name] for name in schema.names if name in row} for row in found]


def as_lines(found: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(shown(row), ensure_ascii=False) + "\n" for row in found).encode()


def as_array(found: list[dict[str, Any]]) -> bytes:
    return json.dumps([shown(row) for row in found], indent=1).encode()


def as_csv(found: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FLAT.names)
    for row in found:
        values = [shown(row.get(name)) for name in FLAT.names]
        writer.writerow(["" if v is None else str(v).lower() if isinstance(v, bool) else v for v in values])
    return text.getvalue().encode()


def as_csv_of_all(found: list[dict[str, Any]]) -> bytes:
    """CSV as `silt --csv` writes it: nested values are JSON, bytes base 64."""
    text = io.StringIO()
    write_csv(BYTES.names, [[row.get(name) for name in BYTES.names] for row in found], file=text)
    return text.getvalue().encode()


def as_parquet(found: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(found, schema=BYTES), sink)
    return sink.getvalue()


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark) as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "schema", "write"),
    [
        ("a.parquet", BYTES, as_parquet),
        ("a.csv", FLAT, as_csv),
        ("b.csv", BYTES, as_csv_of_all),
        ("a.csv.gz", FLAT, lambda found: gzip.compress(as_csv(found))),
        ("a.csv.bz2", FLAT, lambda found: bz2.compress(as_csv(found))),
        ("a.json", NESTED, as_array),
        ("a.json.gz", NESTED, lambda found: gzip.compress(as_array(found))),
        ("a.ndjson", NESTED, as_lines),
        ("a.jsonl", FLAT, as_lines),
        ("b.ndjson", BYTES, as_lines),
        ("a.ndjson.bz2", NESTED, lambda found: bz2.compress(as_lines(found))),
    ],
)
def test_a_load_is_the_same_as_an_upsert_of_its_rows(
    lake: Lake, tmp_path: Path, name: str, schema: pa.Schema, write: Callable[[list[dict[str, Any]]], bytes]
) -> None:
    wanted = only(rows(), schema)
    (tmp_path / name).write_bytes(write(wanted))
    loaded, upserted = lake.create("a.b.loaded", schema, key="id"), lake.create("a.b.upserted", schema, key="id")
    upserted.upsert(wanted)
    assert loaded.ingest(tmp_path / name).rows == len(wanted)
    assert loaded.to_arrow().sort_by("id").to_pylist() == upserted.to_arrow().sort_by("id").to_pylist()


PLACES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("region", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("part", pa.int32()),
    ]
)


@pytest.fixture
def places(lake: Lake) -> Dataset:
    return lake.create("a.b.places", PLACES, key="id")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "ndjson", "json"])
def test_partitioned_folders_become_columns(places: Dataset, tmp_path: Path, suffix: str) -> None:
    folders = {
        "region=eu/day=2026-11-16/part=7": ("eu", datetime.date(2026, 11, 16), 7),
        "region=__HIVE_DEFAULT_PARTITION__/day=2026-11-17/part=007": (None, datetime.date(2026, 11, 17), 7),
        "region=a%2Fb%3D%C3%BC%20c/day=2026-11-18/part=__HIVE_DEFAULT_PARTITION__": (
            "a/b=\u00fc c",
            datetime.date(2026, 11, 18),
            None,
        ),
    }
    content = {
        "csv": lambda i: f"id,n\nk{i},{i}\n".encode(),
        "ndjson": lambda i: f'{{"id": "k{i}", "n": {i}}}\n'.encode(),
        "json": lambda i: f'[{{"id": "k{i}", "n": {i}}}]'.encode(),
        "parquet": lambda i: _parquet_bytes({"id": [f"k{i}"], "n": [i]}),
    }[suffix]
    for number, folder in enumerate(folders):
        path = tmp_path / "in" / folder / f"f.{suffix}"
        path.parent.mkdir(parents=True)
        path.write_bytes(content(number))
    assert places.ingest(tmp_path / "in").rows == 3
    found = places.to_arrow().sort_by("id").to_pylist()
    assert [(row["region"], row["day"], row["part"]) for row in found] == list(folders.values())
    assert [row["n"] for row in found] == [0, 1, 2]


def _parquet_bytes(columns: dict[str, list[Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_several_partitioned_folders_and_single_files_of_them_are_loaded_together(
    places: Dataset, tmp_path: Path
) -> None:
    for root, number in (("x", 1), ("y", 2), ("y", 3)):
        path = tmp_path / root / f"region=r{number}" / "f.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"id,n\nk{number},{number}\n")
    places.ingest([tmp_path / "x", tmp_path / "y" / "region=r2" / "f.csv", f"{tmp_path}/y/region=r3/*.csv"])
    assert [row["region"] for row in places.to_arrow().sort_by("id").to_pylist()] == ["r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        (
            "a.ndjson",
            b'{"id": "a"}\n{"id": "b", "n": "x"}\n',
            ("1 row", "a.ndjson", "line 2", "'n'", "'x'"),
        ),
        ("a.ndjson", b'{"id": "a", "colour": 1}\n', ("'colour'",)),
        ("a.ndjson", b'{"id": "a"\n', ("JSON",)),
        ("a.ndjson", b'{"n": 1}\n', ("1 row",)),
        ("a.json", b'[{"id": "a"}, 5]', ("row 1", "JSON", "5")),
        ("a.json", b"<xml/>", ("JSON",)),
        ("a.json", b"[]", ()),
        (
            "a.csv.gz",
            gzip.compress(b"id,n\na,x\n", mtime=0),
            ("1 row", "a.csv.gz", "line 2", "'n'", "'x'", "(a,x)"),
        ),
    ],
)
def test_rows_that_do_not_fit_refuse_the_load_by_file_and_reason(
    places: Dataset, tmp_path: Path, name: str, content: bytes, facts: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(content)
    with refused(InvalidRequest, None, *facts):
        places.ingest(tmp_path / name)
    status = places.status()
    assert (status.rows_in_base, status.sequence, status.unreferenced_files) == (0, 0, 0)


WRONG = {
    "price": ("10.5099", "not a decimal"),
    "at": ("10:00", "not a timestamp"),
    "day": ("2026-01-05 junk", "not a date"),
    "x": ("1e400", "not a double"),
    "flag": ("1", "not a boolean"),
    "n": ("0x1F", "not an integer"),
}


def test_csv_refuses_what_json_and_an_upsert_refuse(lake: Lake, tmp_path: Path) -> None:
    dataset = lake.create("a.b.flat", FLAT, key="id")
    lines = ["id,price,at,day,x,flag,n", "good,10.509,2026-01-05T10:00:00Z,2026-01-05,1.5,true,-7"]
    for column, (text, _) in WRONG.items():
        fields = {"id": column, column: text}
        lines.append(",".join(fields.get(name, "") for name in lines[0].split(",")))
        with pytest.raises(InvalidRequest, match=f"'{column}'"):
            dataset.upsert([{"id": "1", column: text}])
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with refused(InvalidRequest, None, "6 rows", "a.csv", "line 3", "'price'", "'10.5099'"):
        dataset.ingest(tmp_path / "a.csv")
    report = dataset.ingest(tmp_path / "a.csv", quarantine=tmp_path / "bad")
    assert (report.rows, report.rows_quarantined) == (1, len(WRONG))
    [rows] = (tmp_path / "bad").glob("*/rows")
    reasons = {row["_text"].partition(",")[0]: row["_reason"] for row in pq.read_table(rows).to_pylist()}
    assert set(reasons) == set(WRONG)
    assert all(f"{text!r} is {says}" in reasons[column] for column, (text, says) in WRONG.items())
    assert dataset.to_arrow().column("price").to_pylist() == [decimal.Decimal("10.509")]


def test_headers_are_skipped_however_spark_divides_the_files(lake: Lake, spark: "SparkSession", tmp_path: Path) -> None:
    dataset = lake.create("a.b.parts", "id STRING NOT NULL, n BIGINT", key="id")
    for name in ("a", "b"):
        lines = "".join(f"{name}{i},{i}\r\n" for i in range(300))
        (tmp_path / f"{name}.csv").write_text(f"id,n\r\n{lines}", newline="")
    small = {"spark.sql.files.maxPartitionBytes": "500", "spark.sql.files.openCostInBytes": "1"}
    before = {option: spark.conf.get(option) for option in small}
    try:
        for option, value in small.items():
            spark.conf.set(option, value)
        assert dataset.ingest(f"{tmp_path}/*.csv").rows == 600
    finally:
        for option, old in before.items():
            spark.conf.set(option, str(old))
    found = dataset.to_arrow()
    assert sorted(found.column("id").to_pylist()) == sorted(f"{name}{i}" for name in "ab" for i in range(300))


def test_csv_of_another_form_is_loaded_by_its_options(lake: Lake, tmp_path: Path) -> None:
    dataset = lake.create("a.b.form", "id STRING NOT NULL, price DECIMAL(10,2), day DATE, at TIMESTAMP", key="id")
    (tmp_path / "a.csv").write_bytes(
        "'Z\u00fcrich;1';10,50;31.01.2026;31.01.2026 10:00\n\u20ac;NULL;NULL;NULL\n".encode("cp1252")
    )
    dataset.ingest(
        tmp_path / "a.csv",
        delimiter=";",
        quote="'",
        encoding="cp1252",
        header=False,
        null_text="NULL",
        date_format="%d.%m.%Y",
        timestamp_format="%d.%m.%Y %H:%M",
        decimal_comma=True,
    )
    empty = dict.fromkeys(["price", "day", "at"])
    at = datetime.datetime(2026, 1, 31, 10, tzinfo=datetime.UTC)
    assert dataset.to_arrow().sort_by("id").to_pylist() == [
        {"id": "Z\u00fcrich;1", "price": decimal.Decimal("10.50"), "day": at.date(), "at": at},
        {"id": "\u20ac", **empty},
    ]
    (tmp_path / "a.ndjson").write_text('{"id": "a"}')
    with pytest.raises(InvalidRequest, match="CSV"):
        dataset.ingest(tmp_path / "a.ndjson", delimiter=";")


def test_times_outside_of_all_years_are_refused_in_every_column(lake: Lake, tmp_path: Path) -> None:
    schema = "id STRING NOT NULL, days ARRAY<DATE>, at TIMESTAMP, local TIMESTAMP_NTZ"
    dataset = lake.create("a.b.years", schema, key="id")
    far: dict[str, pa.Array] = {
        "days": pa.array([[2_932_897]], pa.list_(pa.date32())),
        "at": pa.array([253402300800000000], pa.timestamp("us", tz="UTC")),
        "local": pa.array([-62135596800000001], pa.timestamp("us")),
    }
    for name, column in far.items():
        pq.write_table(pa.table({"id": ["a"], name: column}), tmp_path / f"{name}.parquet")
        with refused(InvalidRequest, None, "1 row", f"'{name}'", f"{name}.parquet"):
            dataset.ingest(tmp_path / f"{name}.parquet")


def test_a_map_with_a_key_twice_is_refused_in_a_parquet_file(lake: Lake, tmp_path: Path) -> None:
    dataset = lake.create("a.b.maps", "id STRING NOT NULL, m ARRAY<MAP<STRING, INT>>", key="id")
    kind = pa.list_(pa.map_(pa.string(), pa.int32()))
    rows = pa.table({"id": ["a", "b"], "m": pa.array([[[("x", 1), ("y", 1)]], [[("x", 1), ("x", 2)]]], kind)})
    pq.write_table(rows, tmp_path / "twice.parquet")
    with refused(InvalidRequest, None, "1 row", "'m'", "twice.parquet"):
        dataset.ingest(tmp_path / "twice.parquet")
    pq.write_table(rows.slice(0, 1), tmp_path / "once.parquet")
    assert dataset.ingest(tmp_path / "once.parquet").rows == 1

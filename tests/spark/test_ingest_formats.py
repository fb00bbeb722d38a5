"""Loads of every format: the same rows as an upsert of them, through compression and partitioned folders."""

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
    """Rows with every type; every fifth is null but for its key."""
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
    """Return a value as JSON has it."""
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, datetime.date):
        return value.isoformat()
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
        ("a.csv.gz", FLAT, lambda found: gzip.compress(as_csv(found))),
        ("a.csv.bz2", FLAT, lambda found: bz2.compress(as_csv(found))),
        ("a.json", NESTED, as_array),
        ("a.json.gz", NESTED, lambda found: gzip.compress(as_array(found))),
        ("a.ndjson", NESTED, as_lines),
        ("a.jsonl", FLAT, as_lines),
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
    ("name", "content", "match"),
    [
        (
            "a.ndjson",
            b'{"id": "a"}\n{"id": "b", "n": "x"}\n',
            r"1 row that cannot be read, .*a\.ndjson: column 'n': 'x'",
        ),
        ("a.ndjson", b'{"id": "a", "colour": 1}\n', "column 'colour' is not one of the dataset's"),
        ("a.ndjson", b'{"id": "a"\n', "not JSON"),
        ("a.ndjson", b'{"n": 1}\n', "1 row without a key"),
        ("a.json", b'[{"id": "a"}, 5]', "not a JSON object but 5"),
        ("a.json", b"<xml/>", "not JSON"),
        ("a.json", b"[]", "no rows"),
        (
            "a.csv.gz",
            gzip.compress(b"id,n\na,x\n", mtime=0),
            r"1 row that cannot be read, .*a\.csv\.gz: a field does not fit .*\(a,x\)",
        ),
    ],
)
def test_rows_that_do_not_fit_refuse_the_load_by_file_and_reason(
    places: Dataset, tmp_path: Path, name: str, content: bytes, match: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequest, match=match):
        places.ingest(tmp_path / name)
    status = places.status()
    assert (status.rows_in_base, status.sequence, status.unreferenced_files) == (0, 0, 0)


def test_json_cannot_carry_bytes(lake: Lake, tmp_path: Path) -> None:
    dataset = lake.create("a.b.bytes", BYTES, key="id")
    (tmp_path / "a.ndjson").write_text('{"id": "a"}\n')
    with pytest.raises(InvalidRequest, match="'raw' is a binary; JSON cannot carry that"):
        dataset.ingest(tmp_path / "a.ndjson")

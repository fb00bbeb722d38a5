"""Exports: complete or absent; every reader finds the rows of the merged view."""

import csv
import datetime
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone import Dataset, InvalidRequest, Lake, NotFound, Settings, Unavailable
from siltstone.dataset.read.export import MARKER
from siltstone.dataset.read.merged_view import view_frame
from siltstone.failpoints import arm
from tests.support.people import by_id, create, key, person, write_people
from tests.support.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
FORMATS = ["parquet", "csv", "delta"]


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=Settings(durable=False)) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake, tmp_path: Path) -> Dataset:
    made = create(lake)
    made.ingest(write_people(tmp_path / "in.parquet", 50))
    made.upsert([person(1, city='a "quoted", city\nof two lines'), person(2, city=""), person(3, city="  blanks ")])
    made.tombstone([key(4), key(5)])
    return made


def in_duckdb(query: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.sql(query).to_arrow_table()


def read_back(target: Path, format_name: str) -> pa.Table:
    """Read an export with an engine that does not know our format."""
    match format_name:
        case "parquet":
            return in_duckdb(f"SELECT * FROM read_parquet('{target}/*.parquet')")
        case "csv":
            return in_duckdb(
                f'SELECT id, n, city, "at"::TIMESTAMPTZ AS "at" FROM read_csv(\'{target}/*.csv\', header=true, '
                "auto_detect=false, delim=',', quote='\"', escape='\"', allow_quoted_nulls=false, "
                "columns={'id': 'VARCHAR', 'n': 'BIGINT', 'city': 'VARCHAR', 'at': 'VARCHAR'})"
            )
        case _:
            return DeltaTable(target).to_pyarrow_table()


def beside(target: Path) -> list[str]:
    """Return the hidden files in the target's folder."""
    return sorted(path.name for path in target.parent.iterdir() if path.name.startswith("."))


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_export_read_by_others_is_the_merged_view(dataset: Dataset, tmp_path: Path, format_name: str) -> None:
    target = tmp_path / "out" / "people"
    report = dataset.export(target, format=format_name)
    rows = by_id(dataset.to_arrow())
    assert by_id(read_back(target, format_name)).equals(rows)
    assert (report.rows, report.sequence, report.format, report.path) == (48, 2, format_name, str(target))
    data = [path for path in target.rglob("*") if path.suffix == f".{'csv' if format_name == 'csv' else 'parquet'}"]
    assert (report.files, report.bytes) == (len(data), sum(path.stat().st_size for path in data))
    names = [path.name for path in target.rglob("*") if path.is_file() and path.name != MARKER]
    assert not [name for name in names if name.startswith((".", "_")) or name.endswith(".crc")]
    assert beside(target) == []
    assert dataset.status().unreferenced_files == 0


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_export_of_an_earlier_moment_and_of_raw_rows(dataset: Dataset, tmp_path: Path, format_name: str) -> None:
    dataset.compact()
    dataset.upsert([person(number) for number in range(100, 110)])
    then = dataset.export(tmp_path / "then", format=format_name, at=1)
    assert (then.rows, then.sequence) == (50, 1)
    assert by_id(read_back(tmp_path / "then", format_name)).equals(by_id(dataset.to_arrow(at=1)))
    raw = dataset.export(tmp_path / "raw", format=format_name, raw=True, at=2)
    assert (raw.rows, read_back(tmp_path / "raw", format_name).num_rows) == (48, 48)
    with pytest.raises(NotFound, match=r"\b99\b"):
        dataset.export(tmp_path / "never", format=format_name, at=99)
    assert not (tmp_path / "never").exists()


def test_a_delta_export_is_a_plain_table_with_the_columns_of_the_user(
    dataset: Dataset, tmp_path: Path, spark: "SparkSession"
) -> None:
    target = tmp_path / "table"
    dataset.export(target, format="delta", files=3)
    table = DeltaTable(target)
    assert (table.version(), len(table.file_uris())) == (1, 3)
    assert pa.schema(table.schema().to_arrow()).names == dataset.schema.names
    assert not table.schema().fields[0].nullable
    assert table.metadata().configuration == {}
    assert spark.read.format("delta").load(str(target)).count() == 48
    info = table.history(1)[0]
    assert (info["siltstone.dataset"], info["siltstone.sequence"]) == (str(dataset.name), "2")
    assert "P000" not in (target / "_delta_log" / f"{1:020d}.json").read_text()  # subjects are not stored in logs


def test_the_argument_files_sets_the_number_of_written_files(dataset: Dataset, tmp_path: Path) -> None:
    assert dataset.export(tmp_path / "one", files=1).files == 1
    assert dataset.export(tmp_path / "four", files=4).files == 4
    assert len(list((tmp_path / "four").glob("*.parquet"))) == 4


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_empty_dataset_is_exported_with_its_columns(lake: Lake, tmp_path: Path, format_name: str) -> None:
    empty = create(lake, "crm.sales.nobody")
    target = tmp_path / "empty"
    report = empty.export(target, format=format_name)
    assert (report.rows, report.sequence) == (0, 0)
    if format_name == "parquet":
        assert pq.read_table(target).schema.names == empty.schema.names
    if format_name == "delta":
        assert DeltaTable(target).to_pyarrow_table().num_rows == 0


def test_every_flat_type_survives_csv(lake: Lake, tmp_path: Path) -> None:
    ddl = (
        "id BIGINT NOT NULL, d DECIMAL(20,5), f DOUBLE, b BOOLEAN, day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, s STRING"
    )
    kinds = lake.create("crm.sales.kinds", ddl, key="id")
    moment = datetime.datetime(2026, 3, 29, 1, 30, 0, 123_456)  # noqa: DTZ001
    row: dict[str, Any] = {
        "id": 1,
        "d": decimal.Decimal("-123456789012345.00001"),
        "f": 0.1,
        "b": True,
        "day": datetime.date(1969, 12, 31),
        "at": moment.replace(tzinfo=datetime.UTC),
        "wall": moment,
        "s": 'back\\slash "and" ,comma',
    }
    kinds.upsert([row, {"id": 2}, {"id": 3, "s": ""}])
    target = tmp_path / "csv"
    kinds.export(target, format="csv", files=1)
    [file] = target.glob("*.csv")
    with file.open(newline="") as opened:
        header, *lines = sorted(csv.reader(opened), reverse=True)
    assert header == list(row)
    found = dict(zip(header, lines[-1], strict=True))
    assert found == {
        "id": "1",
        "d": "-123456789012345.00001",
        "f": "0.1",
        "b": "true",
        "day": "1969-12-31",
        "at": "2026-03-29T01:30:00.123456Z",
        "wall": "2026-03-29T01:30:00.123456",
        "s": row["s"],
    }
    assert "\n2,,,,,,,\n" in file.read_text()
    assert '\n3,,,,,,,""\n' in file.read_text()


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ("id STRING, tags ARRAY<STRING>", ("'tags'", "array<string>")),
        ("id STRING, photo BINARY", ("'photo'",)),
        ("id STRING, who STRUCT<a: INT>", ("'who'",)),
        ("id STRING, m MAP<STRING, INT>", ("'m'",)),
    ],
)
def test_csv_refuses_what_it_cannot_hold_by_name(
    lake: Lake, tmp_path: Path, columns: str, facts: tuple[str, ...]
) -> None:
    nested = lake.create("crm.sales.nested", columns, key="id")
    with refused(InvalidRequest, None, *facts):
        nested.export(tmp_path / "out", format="csv")
    assert not (tmp_path / "out").exists()


def test_targets_that_must_not_be_written_are_refused(lake: Lake, dataset: Dataset, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter.txt").write_text("mine")
    (tmp_path / "link").symlink_to(full)
    (tmp_path / "file").write_text("a file")
    old = tmp_path / "old"
    old.mkdir()
    (old / "part.parquet").write_text("an export")
    before = sorted(path.as_posix() for path in tmp_path.rglob("*"))
    bad: list[str | Path] = [
        full,
        old,
        lake.path / "out",
        lake.path,
        dataset.path / "base",
        tmp_path,
        tmp_path / "link",
        tmp_path / "file",
        tmp_path / "file" / "out",
        tmp_path / "a*b",
        "s3://bucket/out",
        "",
    ]
    for target in bad:
        with refused(InvalidRequest, None, target):
            dataset.export(target, overwrite=target == tmp_path)
    for target in (full, old):  # the second folder only looks like an export
        with pytest.raises(InvalidRequest):
            dataset.export(target, overwrite=True)
    with pytest.raises(InvalidRequest, match="'avro'"):
        dataset.export(tmp_path / "out", format="avro")
    for files in (0, -1, True):
        with pytest.raises(InvalidRequest):
            dataset.export(tmp_path / "out", files=files)
    assert sorted(path.as_posix() for path in tmp_path.rglob("*")) == before


def test_overwrite_replaces_an_earlier_export_of_any_format(dataset: Dataset, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    for format_name in (*FORMATS, "parquet"):
        dataset.export(target, format=format_name, overwrite=True)
        assert by_id(read_back(target, format_name)).equals(by_id(dataset.to_arrow()))
        assert beside(target) == []


def test_overwrite_leaves_a_folder_with_any_file_that_no_export_wrote(dataset: Dataset, tmp_path: Path) -> None:
    target = tmp_path / "out"
    dataset.export(target, format="delta")
    for inner in ("mine.parquet", "_delta_log/mine.json", "data/mine", "folder"):
        mine = target / inner
        mine.mkdir() if inner == "folder" else mine.write_text("mine")
        with pytest.raises(InvalidRequest, match=f"'{inner}'"):
            dataset.export(target, format="delta", overwrite=True)
        mine.rmdir() if inner == "folder" else mine.unlink()
    (target / "link").symlink_to(tmp_path)
    with pytest.raises(InvalidRequest, match="'link'"):
        dataset.export(target, format="delta", overwrite=True)
    assert by_id(read_back(target, "delta")).equals(by_id(dataset.to_arrow()))


def test_a_folder_beside_the_target_that_only_looks_like_ours_is_kept(dataset: Dataset, tmp_path: Path) -> None:
    mine = tmp_path / f".out.{'ab' * 16}.old"
    mine.mkdir()
    dataset.export(tmp_path / "out")
    assert mine.is_dir()


@pytest.mark.parametrize(
    "place", ["export.after_write", "export.after_commit", "export.before_rename", "export.after_aside"]
)
def test_an_export_that_fails_leaves_the_one_before_it(dataset: Dataset, tmp_path: Path, place: str) -> None:
    target = tmp_path / "out"
    dataset.export(target, format="delta")
    before = by_id(dataset.to_arrow())
    dataset.upsert([person(900)])
    with arm(place, "raise"), pytest.raises((OSError, Unavailable)):
        dataset.export(target, format="delta", overwrite=True)
    assert by_id(read_back(target, "delta")).equals(before)
    assert beside(target) == []
    dataset.export(target, format="delta", overwrite=True)
    assert by_id(read_back(target, "delta")).equals(by_id(dataset.to_arrow()))


def test_an_export_beside_a_purge_takes_a_new_snapshot_or_reports_the_old_one_as_deleted(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset.compact()
    dataset.upsert([person(1, city="new")])
    calls: list[int] = []

    def purged_meanwhile(*arguments: object, **named: object) -> object:
        frame = view_frame(*arguments, **named)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 1:
            dataset.compact(purge=True)
        return frame

    monkeypatch.setattr("siltstone.dataset.read.export.view_frame", purged_meanwhile)
    report = dataset.export(tmp_path / "now")
    assert (report.rows, len(calls)) == (48, 2)
    dataset.upsert([person(1, city="newer")])
    dataset.compact()
    calls.clear()
    with pytest.raises(NotFound, match=r"\b3\b"):
        dataset.export(tmp_path / "then", at=3)
    assert not (tmp_path / "then").exists()
    assert beside(tmp_path / "then") == []


def test_a_target_that_is_filled_meanwhile_is_left_alone(dataset: Dataset, tmp_path: Path) -> None:
    target = tmp_path / "out"

    def fill(_name: str) -> None:
        target.mkdir()
        (target / "theirs.parquet").write_text("theirs")

    with arm("export.after_write", fill), pytest.raises(InvalidRequest):
        dataset.export(target)
    assert [path.name for path in target.iterdir()] == ["theirs.parquet"]
    assert beside(target) == []

"""Files and rows that a load skips: files loaded before, and bad rows in quarantine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, InvalidRequest, Lake
from siltstone.failpoints import arm
from tests.support.people import by_id, create, key, people, write_people
from tests.support.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    return create(lake)


def ids(dataset: Dataset) -> list[str]:
    return sorted(dataset.to_arrow().column("id").to_pylist())


# ---- loaded before -----------------------------------------------------------------------------------------------------


def test_loading_the_same_file_twice_is_a_no_op(dataset: Dataset, lake: Lake, tmp_path: Path) -> None:
    first = dataset.ingest(write_people(tmp_path / "a.parquet", 10))
    versions = dataset.status().base_version, dataset.status().sequence
    moved = (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    for handle in (dataset, lake.dataset(str(dataset.name))):
        again = handle.ingest(moved)
        assert (again.rows, again.files, again.files_skipped, again.sequence) == (0, 0, 1, first.sequence)
    assert (dataset.status().base_version, dataset.status().sequence) == versions


def test_only_the_new_files_of_several_are_loaded(dataset: Dataset, tmp_path: Path) -> None:
    write_people(tmp_path / "in" / "a.parquet", 10)
    dataset.ingest(tmp_path / "in")
    write_people(tmp_path / "in" / "b.parquet", 10, start=10)
    (tmp_path / "in" / "copy of b.parquet").write_bytes((tmp_path / "in" / "b.parquet").read_bytes())
    report = dataset.ingest(tmp_path / "in")
    assert (report.rows, report.files_skipped, report.sequence) == (10, 2, 1)
    assert dataset.ingest(tmp_path / "in").files_skipped == 3
    assert by_id(dataset.to_arrow()).equals(by_id(people(20)))


def test_a_file_is_remembered_after_its_rows_are_tombstoned_folded_and_purged(dataset: Dataset, tmp_path: Path) -> None:
    first, second = write_people(tmp_path / "a.parquet", 10), write_people(tmp_path / "b.parquet", 5, start=10)
    dataset.ingest(first)
    dataset.ingest(second)
    dataset.tombstone([key(0), key(12)])
    dataset.compact(purge=True)
    assert dataset.ingest([first, second]).files_skipped == 2
    assert len(ids(dataset)) == 13
    assert dataset.ingest([first, second], reload=True).rows == 15
    assert len(ids(dataset)) == 15


def test_a_file_that_was_refused_is_not_remembered(dataset: Dataset, tmp_path: Path) -> None:
    pq.write_table(pa.concat_tables([people(3), people(1)]), tmp_path / "a.parquet")
    with pytest.raises(InvalidRequest):
        dataset.ingest(tmp_path / "a.parquet")
    assert dataset.ingest(tmp_path / "a.parquet", order_by="n").rows == 3


@pytest.mark.parametrize("has_rows", [False, True], ids=["first load", "changes"])
def test_of_two_concurrent_loads_of_the_same_file_one_does_nothing(
    dataset: Dataset, lake: Lake, tmp_path: Path, *, has_rows: bool
) -> None:
    if has_rows:
        dataset.upsert([{"id": "other"}])
    source = write_people(tmp_path / "a.parquet", 10)
    other = lake.dataset(str(dataset.name))

    def load_first(_: str) -> None:
        assert other.ingest(source).rows == 10

    with arm("ingest.after_write", load_first):
        report = dataset.ingest(source)
    assert (report.rows, report.files_skipped) == (0, 1)
    assert dataset.status().sequence == int(has_rows) * 2
    assert dataset.status().unreferenced_files == 0


def test_a_load_of_two_files_skips_the_one_that_was_loaded_meanwhile(
    dataset: Dataset, lake: Lake, tmp_path: Path
) -> None:
    shared, own = write_people(tmp_path / "a.parquet", 10), write_people(tmp_path / "b.parquet", 5, start=10)
    other = lake.dataset(str(dataset.name))

    def load_first(_: str) -> None:
        other.ingest(shared)

    with arm("ingest.after_write", load_first):
        report = dataset.ingest([shared, own])
    assert (report.rows, report.files_skipped) == (5, 1)
    assert by_id(dataset.to_arrow()).equals(by_id(people(15)))
    assert dataset.status().unreferenced_files == 0


# ---- quarantine --------------------------------------------------------------------------------------------------------


def write_mixed(folder: Path) -> Path:
    """One good file, one with bad rows, two that cannot be read."""
    folder.mkdir()
    (folder / "a.csv").write_text("id,n,city\nP1,1,Ulm\n")
    (folder / "b.csv").write_text("id,n,city\nP2,x,Ulm\nP3,3,Ulm\n,4,Ulm\n" + "k" * 2000 + ",5,Ulm\nP6,1,2,3,4\n")
    (folder / "c.csv").write_text("")
    (folder / "d.csv").write_text("id,colour\nP7,red\n")
    return folder


def test_without_a_quarantine_all_bad_files_are_named_and_nothing_is_loaded(dataset: Dataset, tmp_path: Path) -> None:
    with refused(InvalidRequest, None, "2 of 4", "c.csv", "d.csv", "'colour'"):
        dataset.ingest(write_mixed(tmp_path / "in"))
    assert ids(dataset) == []


def test_bad_files_and_rows_are_quarantined_with_their_reasons(dataset: Dataset, tmp_path: Path) -> None:
    report = dataset.ingest(write_mixed(tmp_path / "in"), quarantine=tmp_path / "bad")
    assert (report.rows, report.files_quarantined, report.rows_quarantined) == (2, 2, 4)
    assert ids(dataset) == ["P1", "P3"]
    [folder] = (tmp_path / "bad").iterdir()
    assert report.quarantine == str(folder)
    reasons = [json.loads(line) for line in (folder / "reasons.ndjson").read_text().splitlines()]
    assert [Path(line["file"]).name for line in reasons] == ["c.csv", "d.csv"]
    assert reasons[0]["reason"]
    assert "'colour'" in reasons[1]["reason"]
    assert (folder / reasons[1]["copy"]).read_text() == "id,colour\nP7,red\n"
    rows: list[dict[str, Any]] = pq.read_table(folder / "rows").to_pylist()
    assert all(row["_file"].endswith("in/b.csv") for row in rows)
    rejected = sorted((row["_reason"], row["_text"] or row["n"]) for row in rows)
    facts = ("1024", "(id)", "column 'n': 'x'", "5 fields")
    assert [sum(fact in reason for reason, _ in rejected) for fact in facts] == [1, 1, 1, 1]
    assert {text for _, text in rejected} == {"P2,x,Ulm", "P6,1,2,3,4", 4, 5}
    assert not [file for file in folder.rglob("*") if file.name.startswith(("_", "."))]


def test_each_load_with_bad_rows_has_its_own_quarantine_folder(dataset: Dataset, tmp_path: Path) -> None:
    mixed = write_mixed(tmp_path / "in")
    dataset.ingest(mixed, quarantine=tmp_path / "bad")
    dataset.ingest(mixed, quarantine=tmp_path / "bad", reload=True)
    assert len(list((tmp_path / "bad").iterdir())) == 2
    report = dataset.ingest(write_people(tmp_path / "good.parquet", 3), quarantine=tmp_path / "none")
    assert (report.rows, report.quarantine) == (3, None)
    assert not (tmp_path / "none").exists()


def test_order_by_chooses_among_good_rows_only(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text(
        '{"id": "P1", "n": 1}\n{"id": "P1", "n": 2}\n{"id": "P1", "n": "9"}\n{"n": 7}\n{"n": 8}\n'
    )
    report = dataset.ingest(tmp_path / "a.ndjson", order_by="n", quarantine=tmp_path / "bad")
    assert (report.rows, report.rows_quarantined) == (1, 3)
    assert dataset.to_arrow().column("n").to_pylist() == [2]


def test_a_quote_that_is_not_closed_refuses_the_load_even_with_a_quarantine(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,n\nP1,1\n"first\nmiddle,2\nlast",3\n')
    with refused(InvalidRequest, None, "a.csv", "line 3", '("first'):
        dataset.ingest(tmp_path / "a.csv", quarantine=tmp_path / "bad")
    assert ids(dataset) == []
    assert dataset.status().unreferenced_files == 0
    assert not (tmp_path / "bad").exists()


def test_repeated_keys_refuse_the_load_even_with_a_quarantine(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text('{"id": "P1"}\n{"id": "P1"}\n')
    with pytest.raises(InvalidRequest, match=r"\b2 rows"):
        dataset.ingest(tmp_path / "a.ndjson", quarantine=tmp_path / "bad")
    assert ids(dataset) == []


@pytest.mark.parametrize("content", ["id,n\n,1\n", "colour\n"], ids=["rows", "files"])
def test_a_load_without_a_good_row_is_refused_and_its_bad_rows_are_quarantined(
    dataset: Dataset, tmp_path: Path, content: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InvalidRequest, match="bad"):
        dataset.ingest(tmp_path / "a.csv", quarantine=tmp_path / "bad")
    assert list((tmp_path / "bad").iterdir())
    assert dataset.status().unreferenced_files == 0


def test_a_quarantine_inside_the_lake_or_the_source_is_refused(dataset: Dataset, lake: Lake, tmp_path: Path) -> None:
    mixed = write_mixed(tmp_path / "in")
    for folder in (lake.path / "bad", mixed / "bad"):
        with refused(InvalidRequest, None, folder):
            dataset.ingest(mixed, quarantine=folder)
        assert not folder.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match=str(tmp_path / "file")):
        dataset.ingest(mixed, quarantine=tmp_path / "file")

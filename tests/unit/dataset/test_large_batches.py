"""A batch of any size is one commit: several files, one sequence, positions that continue through the files."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, Lake
from siltstone.config import Settings
from siltstone.dataset.write import row_conversion
from siltstone.dataset.write.row_conversion import file_parts, to_table
from siltstone.errors import InvalidRequest
from siltstone.failpoints import arm
from tests.support.folds import fold_by_arrow

NAME = "crm.sales.people"
TWO_ROWS = Settings(durable=False, upsert_rows=2)


def made(path: Path, settings: Settings = TWO_ROWS) -> Dataset:
    return Lake.open(path / "lake", settings=settings).create(NAME, "id BIGINT NOT NULL, n BIGINT", key="id")


def change_files(dataset: Dataset) -> list[Path]:
    return sorted((dataset.path / "changes" / "data").iterdir())


def by_id(dataset: Dataset) -> list[dict[str, Any]]:
    return list(dataset.to_arrow().sort_by("id").to_pylist())


def test_a_million_and_one_rows_are_one_upsert(tmp_path: Path):
    dataset = made(tmp_path, Settings(durable=False))
    count = 1_000_001
    ack = dataset.upsert(pa.table({"id": pa.arange(0, count), "n": pa.arange(0, count)}))
    assert (ack.sequence, ack.rows) == (1, count)
    assert [pq.read_metadata(file).num_rows for file in change_files(dataset)] == [1, count - 1]
    assert dataset.to_arrow().num_rows == count


def test_positions_are_unique_in_the_batch_and_follow_its_order(tmp_path: Path):
    dataset = made(tmp_path)
    dataset.upsert([{"id": number, "n": number} for number in range(5)])
    tables = [pq.read_table(file, columns=["id", "_pos"]) for file in change_files(dataset)]
    assert sorted(table.num_rows for table in tables) == [1, 2, 2]
    whole = pa.concat_tables(tables).sort_by("_pos")
    assert whole.column("_pos").to_pylist() == whole.column("id").to_pylist() == list(range(5))


def test_the_last_of_a_repeated_key_wins_across_files_for_every_reader(tmp_path: Path):
    dataset = made(tmp_path)
    dataset.upsert([{"id": 7, "n": n} for n in range(5)] + [{"id": 8, "n": 0}])
    wanted = [{"id": 7, "n": 4}, {"id": 8, "n": 0}]
    assert by_id(dataset) == wanted
    assert dataset.get([7, 8]).to_pylist() == wanted
    assert dataset.changes_to_arrow().column("n").to_pylist() == [0, 1, 2, 3, 4, 0]
    dataset.squash()
    assert by_id(dataset) == wanted
    fold_by_arrow(dataset)
    assert by_id(dataset) == wanted


def test_a_producers_repeat_of_a_large_batch_leaves_no_file(tmp_path: Path):
    dataset = made(tmp_path)
    batch = [{"id": number, "n": 0} for number in range(5)]
    assert dataset.upsert(batch, producer="feed", sequence=1).applied
    before = change_files(dataset)
    assert not dataset.upsert(batch, producer="feed", sequence=1).applied
    assert change_files(dataset) == before


def test_a_batch_whose_third_file_cannot_be_written_leaves_none(tmp_path: Path):
    dataset = made(tmp_path)
    with arm("upsert.after_stage", "raise", count=3), pytest.raises(OSError, match=r"upsert\.after_stage"):
        dataset.upsert([{"id": number, "n": 0} for number in range(6)])
    assert change_files(dataset) == []
    assert dataset.upsert([{"id": 1, "n": 1}]).sequence == 1


def test_a_bad_row_behind_many_good_ones_refuses_the_batch_by_its_number(tmp_path: Path):
    dataset = made(tmp_path)
    with pytest.raises(InvalidRequest, match="row 4"):
        dataset.upsert([{"id": 1 if number != 4 else "x", "n": 0} for number in range(6)])
    assert not (dataset.path / "changes" / "data").exists()


def test_tombstones_and_appends_take_any_number_too(tmp_path: Path):
    dataset = made(tmp_path)
    dataset.upsert([{"id": number, "n": 0} for number in range(5)])
    assert dataset.tombstone(list(range(3))).rows == 3
    assert [row["id"] for row in by_id(dataset)] == [3, 4]
    lake = Lake.open(tmp_path / "lake", settings=TWO_ROWS)
    log = lake.create("crm.sales.events", "at TIMESTAMP, id BIGINT", time="at", subject="id")
    log.append([{"at": "2026-11-15T14:03:00Z", "id": number} for number in range(5)])
    assert log.to_arrow().num_rows == 5


def test_wide_rows_are_divided_by_their_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_conversion, "MAX_FILE_BYTES", 4_000)
    table = pa.table({"text": ["x" * 1_000] * 10})
    parts = list(file_parts(table, max_rows=100))
    assert [first for first, _ in parts] == [0, 3, 6, 9]
    assert pa.concat_tables([part for _, part in parts]).equals(table)


def test_text_is_cast_in_parts_that_fit_short_offsets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_conversion, "MAX_CAST_BYTES", 4_000)
    schema = pa.schema([("text", pa.string())])
    given = pa.table({"text": pa.array([f"{n:01000d}" for n in range(10)], pa.large_string())})
    found = to_table(given, schema, dataset="a.b.c").column("text")
    assert found.num_chunks > 1
    assert pc.all(pc.equal(found, given.column("text").cast(pa.string()))).as_py()

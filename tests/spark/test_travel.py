"""Time travel on Spark: the same rows as without it."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from siltstone import Dataset, Lake, NotFound, Settings
from siltstone.clock import SystemClock
from siltstone.delta.checkpoints import forget_history, write_checkpoint
from tests.support.folds import squash_here
from tests.support.people import by_id, create, key, person, write_people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WAYS = {
    "changes as Arrow": Settings(durable=False),
    "changes read by executors": Settings(durable=False, arrow_changes_rows=0),
    "by position": Settings(durable=False, positions_from_rows=0),
}


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
def lake(request: pytest.FixtureRequest, lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=request.param) as opened:
        yield opened


def grown(dataset: Dataset, steps: int, tmp_path: Path) -> dict[int, pa.Table]:
    """Load, write and fold at random; return the rows after every sequence."""
    rng = random.Random(11)
    dataset.ingest(write_people(tmp_path / "in.parquet", 20))
    seen = {0: by_id(dataset.to_arrow())}
    for step in range(steps):
        match rng.choices(["upsert", "tombstone", "fold", "squash"], [5, 3, 1, 1])[0]:
            case "upsert":
                dataset.upsert([person(rng.randrange(30), city=f"step {step}") for _ in range(4)])
            case "tombstone":
                dataset.tombstone([key(rng.randrange(30)) for _ in range(2)])
            case "fold":
                dataset.compact()
            case _:
                if dataset.status().backlog_files > 1:
                    squash_here(dataset)
        seen[dataset.status().sequence] = by_id(dataset.to_arrow())
    return seen


def check_past(dataset: Dataset, seen: dict[int, pa.Table], sample: list[int]) -> None:
    now = dataset.read()
    for sequence in sample:
        rows = by_id(dataset.to_arrow(at=sequence))
        assert rows.equals(seen[sequence]), sequence
        assert by_id(dataset.read(at=sequence).toArrow()).equals(rows), sequence
        changes = dataset.changes(since=sequence)
        expected = dataset.changes_to_arrow(since=sequence)
        assert changes.columns == expected.column_names
        found = changes.orderBy("_seq", "_pos").toArrow().cast(expected.schema)
        assert found.combine_chunks().equals(expected.combine_chunks()), sequence
    assert by_id(now.toArrow()).equals(seen[max(seen)])
    assert by_id(dataset.read().toArrow()).equals(seen[max(seen)])  # old rows are not mistaken for the new ones


def test_every_earlier_state_is_the_same_on_spark_and_without_it(lake: Lake, tmp_path: Path) -> None:
    dataset = create(lake)
    seen = grown(dataset, 12, tmp_path)
    check_past(dataset, seen, [*sorted(seen)[1::4], max(seen)])


@pytest.mark.deep
def test_every_earlier_state_of_a_long_history_is_the_same(lake: Lake, tmp_path: Path) -> None:
    dataset = create(lake)
    seen = grown(dataset, 80, tmp_path)
    check_past(dataset, seen, sorted(seen))


def test_the_raw_rows_of_an_earlier_state_keep_what_was_tombstoned(lake: Lake) -> None:
    dataset = create(lake)
    dataset.upsert([person(1), person(2)])
    dataset.tombstone([key(1)])
    dataset.upsert([person(3)])
    for raw, count in ((True, 2), (False, 1)):
        assert dataset.read(at=2, raw=raw).count() == dataset.to_arrow(at=2, raw=raw).num_rows == count


def test_a_state_that_is_not_stored_is_refused_before_spark_is_used(lake: Lake) -> None:
    dataset = create(lake)
    for number in range(3):
        dataset.upsert([person(number)])
    dataset.compact()
    for table in ("changes", "base"):
        write_checkpoint(dataset.path / table, durable=False)
        forget_history(dataset.path / table)
    with pytest.raises(NotFound, match=r"\b3\b"):
        dataset.read(at=1)
    with pytest.raises(NotFound, match=r"\b3\b"):
        dataset.changes(since=1)
    assert dataset.read(at=3).count() == 3


def test_an_old_frame_whose_files_were_purged_raises_a_missing_file(lake: Lake) -> None:
    dataset = create(lake)
    dataset.upsert([person(number) for number in range(5)])
    dataset.compact()
    dataset.upsert([person(1, city="new")])
    dataset.compact()
    frame = dataset.read(at=1)
    assert frame.count() == 5
    dataset.compact(purge=True)
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FileNotFound|PATH_NOT_FOUND"):
        frame.toArrow()
    with pytest.raises(NotFound, match=r"\b1\b"):
        dataset.read(at=1)


def test_a_time_without_writes_after_a_fold_is_found_when_the_log_of_changes_was_cleaned(lake: Lake) -> None:
    dataset = create(lake)
    dataset.upsert([person(1), person(2)])
    dataset.compact()
    time.sleep(0.01)
    quiet = SystemClock().now()
    time.sleep(0.01)
    dataset.upsert([person(3)])
    dataset.compact()
    write_checkpoint(dataset.path / "changes", durable=False)
    forget_history(dataset.path / "changes")
    assert dataset.read(at=quiet).count() == dataset.to_arrow(at=quiet).num_rows == 2
